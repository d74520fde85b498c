"""`steelyard plan retriever`: towers and index for a load, from a ladder of trained sizes."""

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cyclopts
import numpy as np
from numpy.typing import NDArray

from steelyard.cli.numbers import require_range
from steelyard.cli.output import Switch, print_report
from steelyard.cli.retrieve.planned import keep_retriever
from steelyard.errors import ConfigError, DataError
from steelyard.plan.retrieve.retriever_cost import (
    DocumentIndex,
    RetrieverLoad,
    TowerOption,
    TrainingPlan,
)
from steelyard.retrieve.reading import read_vectors
from steelyard.runs.report import Cell, Column, Facts, Report, Section, Table
from steelyard.units import parse, pretty

if TYPE_CHECKING:
    from steelyard.laws.fitting.fitted import Fit
    from steelyard.plan.retrieve.retriever import RetrieverDesign, RetrieverPlan, StudentGap
    from steelyard.plan.retrieve.retriever_speed import SpeedLine

__all__ = ["retriever"]

_SHOWN = 8
_LEAST_RUNS, _LEAST_VECTORS = 5, 1200
_TIMED = ((1, 32), (1, 96), (2, 128))
"""Layers and widths of the towers that are timed."""


@cyclopts.Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RetrieverLoadOptions:
    """What the retriever has to carry.

    Args:
        docs: documents, such as 1M.
        qps: queries per second.
        p95: deadline that 95 % of the queries keep, such as "20 ms".
        recall: share of the exact neighbours that the index must find.
        budget: money for training, encoding and service, such as "$500"; no limit when empty.
        hours: hours of service that count.
        core_price: what an hour of a core costs, such as "$0.04".
        memory: memory for the index, such as "8 GB"; no limit when empty.
    """

    docs: str
    qps: float
    p95: str
    recall: float = 0.9
    budget: str = ""
    hours: float = 720.0
    core_price: str = "$0.04"
    memory: str = ""

    def load(self) -> RetrieverLoad:
        """Return the load in plain units."""
        documents = parse(self.docs, "count", where="--docs")
        p95_s = parse(self.p95, "s", where="--p95")
        price = parse(self.core_price, "USD", where="--core-price")
        usd = parse(self.budget, "USD", where="--budget") if self.budget else math.inf
        memory = parse(self.memory, "byte", where="--memory") if self.memory else math.inf
        # A limit of 0 is no limit to the planner; who types it means none of it.
        require_range(0, is_open=True, docs=documents, qps=self.qps, p95=p95_s)
        require_range(0, is_open=True, budget=usd, memory=memory, hours=self.hours)
        return RetrieverLoad(
            documents=int(documents),
            queries_per_s=self.qps,
            p95_s=p95_s,
            recall=self.recall,
            budget_usd=0.0 if math.isinf(usd) else usd,
            hours=self.hours,
            usd_per_core_hour=price,
            memory_bytes=0.0 if math.isinf(memory) else memory,
        )


def retriever(
    ladder: Path,
    *,
    vectors: Path,
    load: RetrieverLoadOptions,
    sizes: str = "100k,300k,1M,3M,10M,30M,100M",
    query_tokens: int = 16,
    document_tokens: int = 128,
    pairs: str = "100k",
    epochs: float = 4.0,
    hard: int = 2,
    texts: str = "1M",
    keep: Switch = False,
    json: Switch = False,
) -> None:
    """Choose teacher, student and index for a load: predicted quality, latency and money.

    A law of sizes is fitted to the ladder; towers and indexes are timed here, on one core.

    Example: steelyard plan retriever ladder.csv --vectors vectors.npy --docs 1M --qps 50 --p95
    "20 ms" --budget "$500"

    Args:
        ladder: CSV, JSON lines or Parquet with parameters and entropy, as `steelyard retrieve
            towers train --json` tells them, and pairs where these differ; of students, the
            column "teacher" holds the parameters of what they were distilled from.
        vectors: .npy file of `steelyard retrieve towers encode`, a sample of the documents.
        load: what the retriever has to carry.
        sizes: parameters of the towers to choose from.
        query_tokens: tokens of a query.
        document_tokens: tokens of a document.
        pairs: labelled pairs that differ.
        epochs: times that each is seen.
        hard: mined documents of a pair.
        texts: queries without labels that a student learns from.
        keep: write the plan into the run store; `steelyard retrieve build --plan` and `retrieve
            serve --plan` then measure the retriever beside its forecasts.
        json: print JSON instead of tables.
    """
    from steelyard.plan.retrieve.retriever import retriever as choose

    asked, rows = load.load(), _sample(vectors)
    law, gap = _law(ladder)
    training = replace(
        _training(pairs, texts),
        epochs=epochs,
        hard_negatives=hard,
        query_tokens=query_tokens,
        document_tokens=document_tokens,
    )
    towers = _towers(sizes)
    plan = choose(
        asked,
        law=law,
        training=training,
        teachers=towers,
        students=towers,
        indexes=_indexes(rows, asked.documents),
        speed=_speed(query_tokens),
        gap=gap,
    )
    run_id = keep_retriever(plan.best, asked) if keep else ""
    values = {"run": run_id} | _values(plan, is_known=gap is not None)
    rate = f"{asked.queries_per_s:g} queries/s"
    goal = f"{asked.documents:,} documents, {rate}, 95 % within {load.p95}"
    page = Report("Retriever", goal, _sections(plan, is_known=gap is not None))
    print_report(page, json=json, values=values)
    if run_id and not json:
        print(f"kept as run {run_id}: give it to `steelyard retrieve serve --plan {run_id}`")


def _values(plan: "RetrieverPlan", *, is_known: bool) -> dict[str, Any]:
    """Return the figures, for programs."""
    return {
        "best": asdict(plan.best),
        "others": [asdict(item) for item in plan.others],
        "rejected": [{"what": what, "why": why} for what, why in plan.rejected],
        "teacher_p95_s": plan.teacher_p95_s,
        "students_measured": is_known,
    }


def _training(pairs: str, texts: str) -> TrainingPlan:
    """Return how many pairs and texts the stages see."""
    number = int(parse(texts, "count", where="--texts"))
    return TrainingPlan(
        pairs=int(parse(pairs, "count", where="--pairs")),
        distilled_texts=number,
        unique_texts=number,
    )


def _law(path: Path) -> "tuple[Fit, StudentGap | None]":
    """Fit the law to teachers, and what students lose to the others."""
    from steelyard.laws import fit, law_named
    from steelyard.laws.tables.files import read_frame
    from steelyard.plan.retrieve.retriever_gap import fit_gap

    frame = read_frame(path)
    missing = [name for name in ("parameters", "entropy") if name not in frame.columns]
    if missing:
        raise DataError(
            f"{path} lacks {', '.join(missing)}", hint=f"it has {', '.join(frame.columns)}"
        )
    columns = {
        name: _numbers(path, name, frame[name].to_list())
        for name in ("parameters", "entropy", "pairs", "teacher")
        if name in frame.columns
    }
    teacher = columns.get("teacher", np.full(len(frame), np.nan))
    is_large = ~np.isfinite(teacher)
    if is_large.sum() < _LEAST_RUNS:
        raise DataError(
            f"{path} has {int(is_large.sum())} towers that were trained on pairs",
            hint=f"a law takes {_LEAST_RUNS} sizes or more",
        )
    points = {name: columns[name][is_large] for name in ("parameters", "pairs") if name in columns}
    # Runs on equally many pairs say nothing about pairs.
    if "pairs" in points and len(np.unique(points["pairs"])) > 1:
        form = "dense_retrieval"
    else:
        form, points = "power_law:parameters", {"parameters": points["parameters"]}
    fitted = fit(law_named(form), points, columns["entropy"][is_large], prior=None)
    return fitted, fit_gap(columns, teacher)


def _numbers(path: Path, name: str, cells: list[Any]) -> NDArray[np.float64]:
    """Return a column of a ladder; an empty cell is not a number."""
    try:
        return np.array([np.nan if cell is None else float(cell) for cell in cells])
    except (TypeError, ValueError) as error:
        raise DataError(
            f"column {name} of {path}: {error}", hint="give a number in each row"
        ) from error


def _towers(sizes: str) -> list[TowerOption]:
    """Return towers of the sizes asked for, ascending."""
    found = sorted({int(parse(part, "parameter", where="--sizes")) for part in sizes.split(",")})
    if not found or found[0] < 1:
        raise ConfigError(f"--sizes is {sizes!r}", hint="give sizes such as 300k,1M,3M")
    return [TowerOption(name=pretty(size, "parameter"), parameters=size) for size in found]


def _speed(tokens: int) -> "SpeedLine":
    """Time towers of three sizes on one core."""
    import torch

    from steelyard.cli.retrieve.towers.texts import ShapeOptions, parameters_of
    from steelyard.nn.towers import Tower
    from steelyard.nn.transformer import build
    from steelyard.parallel import torch_threads
    from steelyard.plan.retrieve.retriever_measured import encoder_speed

    encoders = []
    batch = torch.zeros(1, tokens, dtype=torch.int64), torch.tensor([tokens])
    with torch_threads(1), torch.inference_mode():
        for layers, width in _TIMED:
            arch = ShapeOptions(layers=layers, width=width).architecture(1024, tokens)
            tower = Tower(build(arch), 64, pooling="mean").eval()
            flops = 2.0 * parameters_of(tower) * tokens
            encoders.append((flops, lambda _, tower=tower: tower(*batch)))
        return encoder_speed(encoders, ["query"])


def _sample(path: Path) -> NDArray[np.float32]:
    """Return the vectors that indexes are tried on; too few are refused before any work."""
    rows = np.asarray(read_vectors(path), np.float32)
    if len(rows) < _LEAST_VECTORS:
        raise DataError(
            f"--vectors {path} has {len(rows):,} vectors",
            hint=f"give {_LEAST_VECTORS:,} or more: an index is tried on them",
        )
    return rows


def _indexes(rows: NDArray[np.float32], documents: int) -> list[DocumentIndex]:
    """Try an exact index and codes on a sample; every tenth vector asks."""
    from steelyard.plan.retrieve.retriever_measured import (
        flat_option,
        pq_option,
        scan_trial,
        trial_index,
    )

    asked, kept = rows[::10][:200], np.delete(rows, np.s_[::10], axis=0)
    dim = rows.shape[1]
    parts = next(n for n in (16, 8, 4, 2, 1) if dim % n == 0)
    nlist = max(4, round(len(kept) ** 0.5))
    probes = sorted({max(1, nlist // share) for share in (32, 8, 2)})
    found = [flat_option(kept, asked, documents)]
    index = trial_index(kept, nlist=nlist, parts=parts)
    trial = scan_trial(index, kept, asked, probes=probes)
    found += [pq_option(trial, nprobe, documents, dim=dim, parts=parts) for nprobe in probes]
    return found


def _sections(plan: "RetrieverPlan", *, is_known: bool) -> list[Section]:
    """Return what people see."""
    best = plan.best
    nats = best.entropy
    of_student = "fitted" if is_known else "fitted: of the teacher, no student was measured"
    facts = Facts(
        [
            ("teacher, and tower of documents", best.teacher.name, ""),
            ("tower of queries", best.student.name, ""),
            ("index", best.index.name, f"recall {best.index.recall:.3f} on the sample"),
            ("95 % of queries within", pretty(best.p95_s, "s"), "predicted"),
            ("the teacher itself would take", pretty(plan.teacher_p95_s, "s"), "predicted"),
            ("cores that serve", f"{best.cores}", "predicted"),
            ("before the first query", f"${best.offline_usd:,.2f}", "predicted"),
            ("serving, an hour", f"${best.online_usd_per_hour:,.2f}", "predicted"),
            ("memory of the index", pretty(best.index.memory_bytes, "byte"), "predicted"),
            ("entropy", f"{nats.value:.3f} ({nats.low:.3f} to {nats.high:.3f}) nat", of_student),
        ]
    )
    heads = [
        Column("teacher"),
        Column("queries"),
        Column("index"),
        *(Column(name, align="right") for name in ("entropy", "p95", "total")),
    ]
    rows = [_row(item) for item in plan.others[:_SHOWN]]
    lost: list[list[Cell]] = [[what, why] for what, why in plan.rejected[:_SHOWN]]
    left = len(plan.rejected) - _SHOWN
    more = f"and {left} more" if left > 0 else ""
    return [
        Section("Best", [facts]),
        Section("Others that fit", [Table(heads, rows)]),
        Section("Others", [Table([Column("what"), Column("why not")], lost, caption=more)]),
    ]


def _row(item: "RetrieverDesign") -> list[Cell]:
    """Return a design as a row."""
    return [
        item.teacher.name,
        item.student.name,
        item.index.name,
        f"{item.entropy.value:.3f}",
        pretty(item.p95_s, "s"),
        f"${item.total_usd:,.2f}",
    ]

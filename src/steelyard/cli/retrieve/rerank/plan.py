"""`steelyard retrieve rerank plan`: when to prefetch and how many documents to rank."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.catalog import storage_tier
from steelyard.cli.output import Switch, print_report
from steelyard.cli.retrieve.rerank.search import read_queries
from steelyard.errors import ConfigError, DataError
from steelyard.plan.retrieve.rerank import RerankDesign, RerankPlan, plan_rerank
from steelyard.plan.retrieve.rerank_check import check_rerank
from steelyard.plan.retrieve.rerank_picture import hit_chart
from steelyard.retrieve.multivector.folder import WEIGHT, RerankFolder
from steelyard.retrieve.multivector.profile import profile_rerank
from steelyard.runs.report import Cell, Column, Facts, Report, Section, Table
from steelyard.runs.save import save_chart
from steelyard.units import parse, pretty

__all__ = ["plan"]

_QUERY_WORDS, _LEAST_QUERIES, _RERANKS = 12, 8, (16, 32, 64, 128, 256)


def plan(
    folder: Path,
    *,
    p95: str = "50 ms",
    recall_loss: float = 0.005,
    drive: str = "this-machine",
    queries: Path | None = None,
    samples: int = 40,
    depth: int = 32,
    k: int = 10,
    chart: Path | None = None,
    json: Switch = False,
) -> None:
    """Choose when to prefetch and how many documents to rank, for a latency and a drive.

    The index is searched with sample queries on this machine; the drive may be another one.

    Example: steelyard retrieve rerank plan papers --p95 '20 ms' --drive pm9a3

    Args:
        folder: folder that `steelyard retrieve rerank build` wrote.
        p95: latency that 95 of 100 queries must keep.
        recall_loss: share of the best texts that may be lost against ranking all candidates.
        drive: drive of the catalog, such as pm9a3, or this-machine once it is calibrated.
        queries: file with a query in each line, 8 or more; beginnings of the texts themselves when
            there is none.
        samples: queries that are looked at, at most.
        depth: reads under way at once.
        k: texts of each query.
        chart: picture of what is guessed over the share of the search: .svg, .png, .html or .json.
        json: print JSON instead of tables.
    """
    if samples < _LEAST_QUERIES:
        raise ConfigError(f"--samples is {samples}, but must be {_LEAST_QUERIES} or more")
    limit_s = parse(p95, "s", where="--p95")
    tier = storage_tier(drive)
    found = RerankFolder.open(folder)
    asked = read_queries(queries)[:samples] if queries else _made(found, samples)
    if len(asked) < _LEAST_QUERIES:
        raise DataError(
            f"{len(asked)} sample queries, {_LEAST_QUERIES} are needed",
            hint="give --queries a file with more lines",
        )
    texts, tokens = found.encoder.encode_queries(asked)
    most = len(found.store)
    profile = profile_rerank(
        found.index,
        found.store,
        texts,
        tokens,
        reranks=[count for count in _RERANKS if k <= count <= most] or [min(max(k, 1), most)],
        k=min(k, most),
        weight=WEIGHT,
    )
    errors = check_rerank(
        profile, found.index, found.store, texts, tokens, tier, depth=depth, weight=WEIGHT
    )
    chosen = plan_rerank(
        profile, tier, p95_s=limit_s, recall_loss=recall_loss, depth=depth, errors=errors
    )
    if chart is not None:
        save_chart(hit_chart(chosen), chart)
    page = Report(
        f"Re-ranking {folder} from {drive}",
        f"p95 within {p95}, at most {recall_loss:.1%} of the best lost",
        [Section("Chosen", [_facts(chosen)]), Section("All designs", [_table(chosen)])],
    )
    print_report(page, json=json, values=_values(chosen))


def _made(found: RerankFolder, samples: int) -> list[str]:
    """Return beginnings of evenly spread texts."""
    places = np.linspace(0, len(found.passages) - 1, min(samples, len(found.passages)))
    texts = [found.passages.text(int(place)) for place in places.round()]
    return [" ".join(text.split()[:_QUERY_WORDS]) for text in texts]


def _facts(chosen: RerankPlan) -> Facts:
    """Say what was chosen."""
    best = chosen.best
    return Facts(
        [
            ("prefetch after", f"{best.prefetch_step:.0%} of the search", "of its cells"),
            ("ranked by words", f"{best.rerank} documents", f"{best.kept:.1%} of the best kept"),
            ("guessed early", f"{best.hit_rate:.0%}", "measured"),
            ("p50", _interval(best, "p50_s"), "simulated, 80 % interval"),
            ("p95", _interval(best, "p95_s"), "simulated, 80 % interval"),
            ("queries/s", _interval(best, "queries_per_s"), f"bound by the {best.bound_by}"),
            ("memory", pretty(chosen.memory_bytes, "byte"), "index, table, buffers"),
            ("with words in memory", pretty(chosen.in_memory_bytes, "byte"), ""),
        ]
    )


def _interval(design: RerankDesign, name: str) -> str:
    """Return a forecast with its interval."""
    item = getattr(design, name)
    if name == "queries_per_s":
        return f"{item.value:,.0f} ({item.low:,.0f} to {item.high:,.0f})"
    low, high = pretty(item.low, "s"), pretty(item.high, "s")
    return f"{pretty(item.value, 's')} ({low} to {high})"


def _table(chosen: RerankPlan) -> Table:
    """List all designs, the chosen one first."""
    rows: list[list[Cell]] = [
        [
            f"{item.prefetch_step:.0%}",
            item.rerank,
            f"{item.kept:.1%}",
            f"{item.hit_rate:.0%}",
            pretty(item.p50_s.value, "s"),
            pretty(item.p95_s.value, "s"),
            why,
        ]
        for item, why in [(chosen.best, "chosen"), *chosen.others]
    ]
    heads = ("prefetch after", "ranked", "kept", "guessed", "p50", "p95", "why")
    return Table([Column(head) for head in heads], rows)


def _values(chosen: RerankPlan) -> dict[str, Any]:
    """Return the figures, for programs."""
    return {
        "best": asdict(chosen.best),
        "memory_bytes": chosen.memory_bytes,
        "in_memory_bytes": chosen.in_memory_bytes,
        "drive": asdict(chosen.drive),
        "depth": chosen.depth,
        "others": [asdict(item) | {"why": why} for item, why in chosen.others],
    }

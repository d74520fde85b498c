"""`steelyard plan codesign`: index and FPGA of a vector search, chosen together."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from steelyard.catalog.fpga import fpga
from steelyard.cli.numbers import require_range
from steelyard.cli.output import Switch, print_report
from steelyard.cli.places import require_place
from steelyard.cost.vector_search import FpgaStages
from steelyard.errors import CapacityError, ConfigError
from steelyard.files import write_json
from steelyard.plan.retrieve import Codesign, RecallTable, SearchDesign
from steelyard.plan.retrieve import codesign as search
from steelyard.runs.report import Cell, Column, Facts, Report, Section, Table
from steelyard.sim.pipeline import PipelineRun, SearchPipeline
from steelyard.units import parse, pretty

__all__ = ["codesign"]

_SHOWN = 8
_QUERIES = 60
_SIMULATED = ("scan", "selection")


def codesign(
    recalls: Path,
    *,
    where: str = "",
    vectors: str,
    k: int = 10,
    recall: float = 0.8,
    device: str = "U55C",
    utilization: float = 0.6,
    accelerators: int = 1,
    out: Path | None = None,
    json: Switch = False,
) -> None:
    """Choose an index with codes and the FPGA design that serves it, from measured recalls.

    Every number of cells is tried with every way to build the six stages; the result is a file of
    parameters, not a bitstream.

    Example: steelyard plan codesign recalls.csv --vectors 100M --k 10 --recall 0.8 --device U55C

    Args:
        recalls: CSV file with nlist, opq, k, recall_at_k and min_nprobe: the fewest cells to scan
            that reach each recall.
        where: values that other columns of it must have, such as "engine=cpu, dataset=SIFT100M".
        vectors: vectors in the whole data set, such as 100M.
        k: neighbours that are returned.
        recall: share of queries whose true nearest vector must be among them.
        device: U280, U280-local or U55C.
        utilization: share of the card that may be used, the shell included.
        accelerators: cards over which the vectors are divided; each answers every query.
        out: JSON file for the parameters of the best design.
        json: print JSON instead of tables.
    """
    count = int(parse(vectors, "count", where="--vectors"))
    require_range(1, accelerators=accelerators, vectors=count, k=k)
    require_range(0, 1, is_open=True, utilization=utilization)
    if out is not None:
        require_place(out)
    # Vectors are dealt out to the cards, and each answers for its own.
    held = -(-count // accelerators)
    table = RecallTable.read(recalls, where=_pairs(where))
    card = fpga(device)
    found = search(table.points(held, k, recall), FpgaStages(card, utilization=utilization))
    if not found.designs:
        reason = next(iter(found.rejected.values()))
        raise CapacityError(
            f"no index of {held:,} vectors fits {utilization:.0%} of a {device}: {reason}",
            hint="give --accelerators more, or a larger --utilization",
        )
    best = found.designs[0]
    fixed = {name: took for name, took in best.stage_s.items() if name not in _SIMULATED}
    pipeline = SearchPipeline(best.point, best.config, fixed, hz=card.hz)
    run = pipeline.run(_QUERIES)
    if out is not None:
        write_json(out, _parameters(best, device))
    goal = f"the nearest of {held:,} vectors among {k} in {recall:.0%} of queries"
    page = Report(f"Vector search on {device}", goal, _sections(found, run))
    print_report(page, json=json, values=_values(found, run, device))


def _pairs(given: str) -> dict[str, str]:
    """Return columns with their values from "a=b, c=d"."""
    parts = [part.strip() for part in given.split(",") if part.strip()]
    if bad := [part for part in parts if "=" not in part]:
        raise ConfigError(
            f"--where has {bad[0]!r}, but each part is a column and its value",
            hint='such as --where "engine=cpu, dataset=SIFT100M"',
        )
    split = [part.split("=", 1) for part in parts]
    return {name.strip(): value.strip() for name, value in split}


def _sections(found: Codesign, run: PipelineRun) -> list[Section]:
    """Return what people see."""
    best = found.designs[0]
    facts = Facts(
        [
            ("index", _index(best), ""),
            ("queries per second", f"{best.queries_per_s:,.0f}", "predicted"),
            ("queries per second", f"{run.queries_per_s:,.0f}", "simulated"),
            ("time in the stages", pretty(best.latency_s, "s"), "predicted"),
            ("slowest stage", best.bottleneck, ""),
            ("designs of this index", f"{best.designs:,.0f}", ""),
        ]
    )
    stages: list[list[Cell]] = [[name, pretty(took, "s")] for name, took in best.stage_s.items()]
    built: list[list[Cell]] = [
        [name.replace("_", " "), str(value)] for name, value in best.config.items()
    ]
    taken: list[list[Cell]] = [[name, f"{value:,.0f}"] for name, value in best.taken.items()]
    right = [Column("time of a query", align="right")]
    return [
        Section("Best design", [facts, Table([Column("stage"), *right], stages)]),
        Section("Parameters", [Table([Column("what"), Column("built as")], built)]),
        Section("Resources", [Table([Column("resource"), Column("taken", align="right")], taken)]),
        Section("Indexes", [_ranking(found)]),
    ]


def _index(design: SearchDesign) -> str:
    """Return an index in words."""
    point = design.point
    rotated = "rotated, " if point.opq else ""
    return f"{rotated}{point.nlist:,} cells, {point.nprobe} scanned"


def _ranking(found: Codesign) -> Table:
    """List the best design of each index, then those without one."""
    rows: list[list[Cell]] = [
        [_index(item), f"{item.queries_per_s:,.0f}", item.bottleneck]
        for item in found.designs[:_SHOWN]
    ]
    for point, why in found.rejected.items():
        rows.append([f"{point.nlist:,} cells, {point.nprobe} scanned", "", f"does not fit: {why}"])
    heads = [Column("index"), Column("queries/s", align="right"), Column("limited by")]
    left = len(found.designs) - _SHOWN
    return Table(heads, rows, caption=f"and {left} slower ones" if left > 0 else "")


def _parameters(design: SearchDesign, device: str) -> dict[str, Any]:
    """Return what a generator of hardware needs to know."""
    return {
        "device": device,
        "index": asdict(design.point),
        "stages": dict(design.config),
        "predicted_queries_per_s": design.queries_per_s,
        "resources": dict(design.taken),
    }


def _values(found: Codesign, run: PipelineRun, device: str) -> dict[str, Any]:
    """Return all figures, for programs."""
    best = found.designs[0]
    return {
        **_parameters(best, device),
        "latency_s": best.latency_s,
        "stage_s": dict(best.stage_s),
        "simulated_queries_per_s": run.queries_per_s,
        "indexes": [
            {**asdict(item.point), "queries_per_s": item.queries_per_s} for item in found.designs
        ],
        "rejected": [
            {**asdict(point), "reason": reason} for point, reason in found.rejected.items()
        ],
    }

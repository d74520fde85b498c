"""`steelyard retrieve rerank plan`: when to prefetch and how many documents to rank."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.catalog import storage_tier
from steelyard.cli.numbers import require_range
from steelyard.cli.output import Switch, print_report
from steelyard.cli.places import require_place
from steelyard.cli.retrieve.forecasting import check_values, keep_checks, past_checks
from steelyard.cli.retrieve.rerank.search import read_queries
from steelyard.errors import DataError
from steelyard.plan.retrieve.rerank import RerankPlan, plan_rerank
from steelyard.plan.retrieve.rerank_check import check_rerank
from steelyard.plan.retrieve.rerank_forecasts import FORECASTER, rerank_forecasts
from steelyard.plan.retrieve.rerank_measure import measure_rerank
from steelyard.plan.retrieve.rerank_picture import hit_chart
from steelyard.quantity import Check, Forecast
from steelyard.quantity import check as pair
from steelyard.retrieve.multivector.folder import INDEX, WEIGHT, RerankFolder
from steelyard.retrieve.multivector.profile import RerankProfile, profile_rerank
from steelyard.runs.report import Cell, Checks, Column, Facts, Report, Section, Table
from steelyard.runs.save import save_chart
from steelyard.units import parse, pretty

__all__ = ["plan"]

_QUERY_WORDS, _LEAST_QUERIES, _RERANKS = 12, 8, (16, 32, 64, 128, 256)
_HERE, _ALL_PARTS = "this-machine", 3
_MOST_LOSS = 0.99
_SAID = ("p50", "p95", "memory", "hits")


def plan(
    folder: Path,
    *,
    p95: str = "50 ms",
    recall_loss: float = 0.005,
    drive: str = _HERE,
    queries: Path | None = None,
    samples: int = 60,
    depth: int = 32,
    k: int = 10,
    check: Switch = False,
    chart: Path | None = None,
    json: Switch = False,
) -> None:
    """Choose when to prefetch and how many documents to rank, for a latency and a drive.

    The index is searched with sample queries on this machine; the drive may be another one. Some
    designs are tried in a few rounds with other queries, and what forecasts are off by corrects
    them and sets their intervals.

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
        check: search with the chosen design, by a third of the queries that nothing else was done
            with, and keep forecasts and measurements in the ledger; later plans widen their
            intervals by past errors. It takes 24 queries or more.
        chart: picture of what is guessed over the share of the search: .svg, .png, .html or .json.
        json: print JSON instead of tables.
    """
    require_range(_LEAST_QUERIES, samples=samples)
    limit_s = parse(p95, "s", where="--p95")
    require_range(0, is_open=True, p95=limit_s)
    require_range(0, _MOST_LOSS, recall_loss=recall_loss)
    require_range(1, depth=depth, k=k)
    if chart is not None:
        require_place(chart)
    found = RerankFolder.open(folder)
    tier = storage_tier(drive)
    least = _ALL_PARTS * _LEAST_QUERIES if check else _LEAST_QUERIES
    # Each step has queries of its own: nothing is judged by what it was chosen with.
    asked = _parts(_asked(found, queries, samples, least), _ALL_PARTS if check else 2)
    profiled, tried, kept = map(found.encoder.encode_queries, asked)
    parts = (found.index, found.store)
    profile = _profile(found, profiled, k)
    errors = check_rerank(profile, *parts, *tried, tier, depth=depth, weight=WEIGHT)
    chosen = plan_rerank(
        profile, tier, p95_s=limit_s, recall_loss=recall_loss, depth=depth, errors=errors
    )
    said = rerank_forecasts(chosen, profile, len(kept[1]), past_checks(FORECASTER))
    checks: list[Check] = []
    if check:
        words = {"index": folder / INDEX, "is_here": drive == _HERE, "weight": WEIGHT}
        checks = pair(said, measure_rerank(chosen, *parts, *kept, k=profile.k, **words))
        keep_checks(checks, FORECASTER)
    if chart is not None:
        save_chart(hit_chart(chosen), chart)
    sections = [Section("Chosen", [_facts(chosen, said)]), Section("All designs", [_table(chosen)])]
    page = Report(
        f"Re-ranking {folder} from {drive}",
        f"p95 within {p95}, at most {recall_loss:.1%} of the best lost",
        [*sections, *([Section("Forecasts", [Checks(checks)])] if checks else [])],
    )
    print_report(page, json=json, values=_values(chosen, said) | {"checks": check_values(checks)})


def _profile(found: RerankFolder, asked: tuple[Any, list[Any]], k: int) -> RerankProfile:
    """Measure the index and the store of a folder with queries."""
    most = len(found.store)
    return profile_rerank(
        *(found.index, found.store, *asked),
        reranks=[size for size in _RERANKS if k <= size <= most] or [min(max(k, 1), most)],
        k=min(k, most),
        weight=WEIGHT,
    )


def _asked(found: RerankFolder, queries: Path | None, samples: int, least: int) -> list[str]:
    """Return sample queries: the user's, or beginnings of evenly spread texts."""
    if queries is not None:
        asked = read_queries(queries)[:samples]
    else:
        places = np.linspace(0, len(found.passages) - 1, min(samples, len(found.passages)))
        texts = [found.passages.text(int(place)) for place in places.round()]
        asked = [" ".join(text.split()[:_QUERY_WORDS]) for text in texts]
    if len(asked) < least:
        told = "" if least == _LEAST_QUERIES else ", raise --samples, or leave --check out"
        raise DataError(
            f"{len(asked)} sample queries, {least} are needed",
            hint=f"give --queries a file with more lines{told}",
        )
    return asked


def _parts(asked: list[str], count: int) -> list[list[str]]:
    """Split queries between profile, tries and check; too few serve for profile and tries alike."""
    if len(asked) < count * _LEAST_QUERIES:
        return [asked] * _ALL_PARTS
    return [asked[part % count :: count] for part in range(_ALL_PARTS)]


def _facts(chosen: RerankPlan, said: Sequence[Forecast]) -> Facts:
    """Say what was chosen."""
    best, by_name = chosen.best, {item.quantity: item for item in said}
    p50, p95, memory, hits = (by_name[f"retrieve.rerank_{name}"] for name in _SAID)
    rate = best.queries_per_s
    return Facts(
        [
            ("prefetch after", f"{best.prefetch_step:.0%} of the search", "of its cells"),
            ("ranked by words", f"{best.rerank} documents", f"{best.kept:.1%} of the best kept"),
            ("guessed early", f"{hits.value:.0%} ({hits.low:.0%} to {hits.high:.0%})", "measured"),
            ("p50", _interval(p50), "simulated, 80 % interval"),
            ("p95", _interval(p95), "simulated, 80 % interval"),
            (
                "queries/s",
                f"{rate.value:,.0f} ({rate.low:,.0f} to {rate.high:,.0f})",
                f"bound by the {best.bound_by}",
            ),
            ("memory", _interval(memory), "index, table, buffers"),
            ("with words in memory", pretty(chosen.in_memory_bytes, "byte"), ""),
        ]
    )


def _interval(item: Forecast) -> str:
    """Return a forecast with its interval."""
    value, low, high = (pretty(number, item.unit) for number in (item.value, item.low, item.high))
    return f"{value} ({low} to {high})"


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


def _values(chosen: RerankPlan, said: Sequence[Forecast]) -> dict[str, Any]:
    """Return the figures, for programs."""
    return {
        "forecasts": [asdict(item) for item in said],
        "best": asdict(chosen.best),
        "memory_bytes": chosen.memory_bytes,
        "in_memory_bytes": chosen.in_memory_bytes,
        "drive": asdict(chosen.drive),
        "depth": chosen.depth,
        "others": [asdict(item) | {"why": why} for item, why in chosen.others],
    }

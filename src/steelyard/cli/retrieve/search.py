"""`steelyard retrieve search`: the nearest vectors of queries."""

import time
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.cli.output import Switch, print_report
from steelyard.errors import ConfigError
from steelyard.files import atomic_path
from steelyard.retrieve import Hits, open_index
from steelyard.retrieve.reading import read_vectors
from steelyard.runs.report import Cell, Column, Facts, Report, Section, Table
from steelyard.units import pretty

__all__ = ["hit_table", "hit_values", "search"]

_SHOWN = 10


def search(
    index: Path,
    queries: Path,
    *,
    k: int = 10,
    nprobe: int = 0,
    rerank: int | None = None,
    out: Path | None = None,
    json: Switch = False,
) -> None:
    """Find the nearest vectors of each query.

    Example: steelyard retrieve search my.index queries.npy --k 10 --nprobe 32

    Args:
        index: file that `steelyard retrieve build` wrote.
        queries: .npy, .fvecs or .bvecs file.
        k: neighbours of each query.
        nprobe: cells to look into; as many as the index was told to when 0.
        rerank: candidates per neighbour that are compared again by whole vectors.
        out: .npz file for the arrays ids and distances, one row per query.
        json: print JSON instead of tables: all hits of up to 1,000 queries.
    """
    if nprobe < 0:
        raise ConfigError(f"--nprobe is {nprobe}, but must be 0 or more")
    found = open_index(index)
    asked = np.asarray(read_vectors(queries))
    began_s = time.perf_counter()
    hits = found.search(asked, k, nprobe=nprobe or None, rerank=rerank)
    took_s = time.perf_counter() - began_s
    if out is not None:
        with atomic_path(out) as beside, beside.open("wb") as file:
            np.savez(file, ids=hits.ids, distances=hits.distances)
    facts = Facts(
        [
            ("queries", f"{len(asked):,}", ""),
            ("time", pretty(took_s, "s"), "measured"),
            ("compared per query", f"{hits.stats.scanned / len(asked):,.0f} of {len(found):,}", ""),
            ("cells per query", f"{hits.stats.probed / len(asked):,.0f} of {found.nlist:,}", ""),
        ]
    )
    sections = [Section("Search", [facts]), Section("Hits", [hit_table(hits)])]
    page = Report(f"Nearest vectors in {index}", found.kind, sections)
    print_report(page, json=json, values=hit_values(hits, took_s))


def hit_table(hits: Hits) -> Table:
    """List the hits of the first queries."""
    rows: list[list[Cell]] = []
    for query in range(min(_SHOWN, len(hits.ids))):
        pairs = zip(hits.ids[query].tolist(), hits.distances[query].tolist(), strict=True)
        told = "  ".join(f"{number} ({distance:.4g})" for number, distance in pairs if number >= 0)
        rows.append([query, told])
    left = len(hits.ids) - _SHOWN
    caption = f"and {left:,} more queries; --out keeps all" if left > 0 else ""
    return Table([Column("query"), Column("vectors (distance), nearest first")], rows, caption)


def hit_values(hits: Hits, took_s: float) -> dict[str, Any]:
    """Return the figures, for programs."""
    return {
        "seconds": took_s,
        "scanned": hits.stats.scanned,
        "probed": hits.stats.probed,
        "reranked": hits.stats.reranked,
        "ids": hits.ids[:1000].tolist(),
        "distances": [
            [value if np.isfinite(value) else None for value in row]
            for row in hits.distances[:1000].tolist()
        ],
    }

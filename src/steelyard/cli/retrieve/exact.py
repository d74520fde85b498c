"""`steelyard retrieve exact`: the largest inner products in a file of vectors, without an index."""

import time
from pathlib import Path

import numpy as np

from steelyard.cli.output import Switch, print_report
from steelyard.cli.retrieve.search import hit_table, hit_values
from steelyard.files import atomic_path
from steelyard.retrieve.exact import ExactSearch
from steelyard.retrieve.reading import read_vectors
from steelyard.runs.report import Facts, Report, Section
from steelyard.units import pretty

__all__ = ["exact"]


def exact(
    vectors: Path,
    queries: Path,
    *,
    k: int = 10,
    threads: int = 2,
    out: Path | None = None,
    json: Switch = False,
) -> None:
    """Find the largest inner products of each query exactly; vectors stay in their file.

    Example: steelyard retrieve exact vectors.npy queries.npy --k 1000

    Args:
        vectors: .npy, .fvecs or .bvecs file; float16 and float32 of .npy stay in it, and a byte of
            each number is held in memory.
        queries: .npy, .fvecs or .bvecs file.
        k: neighbours of each query.
        threads: threads among which queries are shared.
        out: .npz file for the arrays ids and distances, one row per query.
        json: print JSON instead of tables: all hits of up to 1,000 queries.
    """
    index = ExactSearch(read_vectors(vectors))
    asked = np.asarray(read_vectors(queries))
    began_s = time.perf_counter()
    hits = index.search(asked, k, threads=threads)
    took_s = time.perf_counter() - began_s
    if out is not None:
        with atomic_path(out) as beside, beside.open("wb") as file:
            np.savez(file, ids=hits.ids, distances=hits.distances)
    memory = sum(index.memory_bytes().values())
    facts = Facts(
        [
            ("vectors", f"{len(index):,} of {index.dim} numbers", ""),
            ("memory", pretty(memory, "byte"), "measured"),
            ("queries", f"{len(asked):,}", ""),
            ("time", pretty(took_s, "s"), "measured"),
            ("vectors read per query", f"{hits.stats.reranked / len(asked):,.0f}", ""),
        ]
    )
    sections = [Section("Search", [facts]), Section("Hits", [hit_table(hits)])]
    page = Report(f"Largest inner products in {vectors}", "exact", sections)
    print_report(page, json=json, values=hit_values(hits, took_s))

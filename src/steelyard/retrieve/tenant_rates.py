"""How fast this machine searches for one tenant of many, fitted part by part."""

import time
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.vector_search.tenant_work import (
    SEARCHES,
    TenantSearch,
    filter_work,
    scan_work,
    tree_work,
)
from steelyard.parallel import torch_threads
from steelyard.retrieve.index import Hits
from steelyard.retrieve.kinds import IVFFlat
from steelyard.retrieve.tenants import ClusterTreeIndex

__all__ = ["measure_tenant_rates"]

Floats = NDArray[np.float32]
_SIZES = ((100_000, 128), (60_000, 64))
_TENANTS = (60, 200, 500, 1500, 5000, 15_000, 50_000)
_PROBES = (100, 400, 1200, 4000)
_SHARES = (0.003, 0.03, 0.2, 0.7)
_CELLS = (4, 12, 40, 120)
_QUERIES, _ROUNDS, _K, _SAMPLE = 60, 3, 10, 20_000
_Timed = tuple[str, str, dict[str, float], float]


def measure_tenant_rates(
    fit: Callable[..., tuple[dict[str, float], float]],
) -> dict[str, tuple[dict[str, float], float]]:
    """Measure searches for tenants of many sizes among generated vectors.

    Args:
        fit: finds seconds per unit, and the half-width of an 80 % interval, from works, seconds and
            names of groups of which each is forecast from the others.

    Returns:
        Both, by name of the search.
    """
    timed: list[_Timed] = []
    with torch_threads(1):
        for count, dim in _SIZES:
            rng = np.random.default_rng(dim)
            middles = rng.normal(size=(400, dim)).astype(np.float32)
            drawn = rng.normal(size=(count, dim)).astype(np.float32)
            vectors = (middles[rng.integers(0, 400, count)] + 0.5 * drawn).astype(np.float32)
            queries = (vectors[rng.choice(count, _QUERIES)] + 0.1).astype(np.float32)
            timed += [*_tree_times(vectors, queries, rng), *_filter_times(vectors, queries, rng)]
    found = {}
    for kind in SEARCHES:
        own = [item for item in timed if item[0] == kind]
        groups, work, took = ([item[place] for item in own] for place in (1, 2, 3))
        found[kind] = fit(work, took, groups)
    return found


def _tree_times(vectors: Floats, queries: Floats, rng: np.random.Generator) -> Iterator[_Timed]:
    """Time scans and searches in a tree."""
    count, dim = vectors.shape
    tree = ClusterTreeIndex(dim)
    tree.train(vectors[:_SAMPLE], expected=count)
    tree.add(vectors)
    for size in _TENANTS:
        name = f"{size} of {dim}"
        tree.grant(rng.choice(count, size, replace=False), name)
        _, took_s = _timed(
            lambda query, name=name: tree.search(query, _K, tenant=name, nprobe=10**9), queries
        )
        yield "tenant scan", name, scan_work(size, dim), took_s
        for nprobe in _PROBES:
            if nprobe > size // 2:
                break
            hits, took_s = _timed(
                lambda query, name=name, nprobe=nprobe: tree.search(
                    query, _K, tenant=name, nprobe=nprobe
                ),
                queries,
            )
            scanned, expanded, compared = hits
            done = TenantSearch(scanned=scanned, expanded=expanded, compared=compared)
            yield "tenant tree", name, tree_work(done, dim), took_s


def _filter_times(vectors: Floats, queries: Floats, rng: np.random.Generator) -> Iterator[_Timed]:
    """Time searches of cells with bitmaps."""
    count, dim = vectors.shape
    nlist = round(2 * count**0.5)
    cells = IVFFlat(dim, nlist=nlist)
    # Vectors as centers: times need cells of usual sizes, not good ones.
    cells.centers = vectors[rng.choice(count, nlist, replace=False)].copy()
    cells.add(vectors)
    for share in _SHARES:
        bitmap = cells.admitted(rng.choice(count, round(share * count), replace=False))
        for nprobe in _CELLS:
            hits, took_s = _timed(
                lambda query, bitmap=bitmap, nprobe=nprobe: cells.search_admitted(
                    query, _K, bitmap, nprobe=nprobe
                ),
                queries,
            )
            work = filter_work(nprobe, nlist, hits[0] / share, hits[0], dim)
            yield "tenant filter", f"{share} of {dim}", work, took_s


def _timed(search: Callable[[Floats], Hits], queries: Floats) -> tuple[tuple[float, ...], float]:
    """Return what a query scans, probes and compares again, and its seconds."""
    rounds, stats = [], np.zeros(3)
    for round_number in range(_ROUNDS + 1):
        took_s = []
        for query in queries:
            began_s = time.perf_counter()
            told = search(query).stats
            took_s.append(time.perf_counter() - began_s)
            if not round_number:
                stats += (told.scanned, told.probed, told.reranked)
        # A median: what else the machine does in between stops a few queries for long.
        rounds.append(float(np.median(took_s)))
    return tuple((stats / len(queries)).tolist()), float(np.median(rounds[1:]))

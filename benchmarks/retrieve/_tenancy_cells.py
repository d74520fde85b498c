"""Worlds of vectors with tenants of drawn sizes and places, and four ways to search for one."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.retrieve.index import Hits
from steelyard.retrieve.kinds import IVFFlat
from steelyard.retrieve.tenants import ClusterTreeIndex
from steelyard.retrieve.tenants.tree_searcher import TreeSearcher
from steelyard.retrieve.tuning import recall_at

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
Search = Callable[[Floats, int], Hits]
K = 10
_TUNED, _TIMED, _SLICE = 200, 150, 50
_CALM = 0.25
"""Share of sweeps that nothing else on the machine is taken to have disturbed, as of calibrations:
what runs on the other core of a shared one makes every search half as slow again."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A tenant among others, and the memory that there is.

    Attributes:
        selectivity: share of all vectors that a tenant sees.
        overlap: tenants that see a vector, on average.
        locality: share of a tenant's vectors that come from a few clusters of its own.
        spare: memory over the bytes of the vectors alone.
    """

    selectivity: float
    overlap: float
    locality: float
    spare: float


@dataclass(frozen=True, kw_only=True)
class World:
    """Vectors and what all tenants share.

    Attributes:
        vectors: [N, D].
        clusters: cluster that each vector was drawn from.
        others: vectors of the same kind, of which queries are drawn [M, D].
        other_clusters: cluster of each.
        shared: all vectors in cells.
        tree: all vectors in a tree, which each cell grants to tenants of its own.
    """

    vectors: Floats
    clusters: Ids
    others: Floats
    other_clusters: Ids
    shared: IVFFlat
    tree: ClusterTreeIndex


@dataclass(frozen=True, kw_only=True)
class TunedWay:
    """One way in one cell, at its smallest setting that reaches the recall.

    Attributes:
        search: searches one query or several.
        queries: queries to time, none of which chose the setting [Q, D].
        memory_bytes: bytes for all tenants.
        knob: the setting.
        recall: recall of queries that it was not chosen on.
        work: vectors or codes scanned, cells or nodes, and vectors compared again, of a query.
    """

    search: Callable[[Floats], Hits]
    queries: Floats
    memory_bytes: float
    knob: int
    recall: float
    work: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One way in one cell.

    Attributes:
        query_s: median seconds of a query in a calm sweep.
        memory_bytes: bytes for all tenants.
        recall: recall of queries that its setting was not chosen on.
    """

    query_s: float
    memory_bytes: float
    recall: float


def make_world(seed: int, count: int, dim: int) -> World:
    """Draw vectors of some inner dimensions around many middles, bent into `dim`; index them."""
    rng = np.random.default_rng(seed)
    inner, middles = int(rng.integers(10, 21)), int(rng.integers(300, 1500))
    shares = rng.dirichlet(np.ones(middles))
    centers, width = rng.normal(size=(middles, inner)), rng.uniform(0.5, 0.9)
    first, second = rng.normal(size=(inner, 256)) / 4, rng.normal(size=(256, dim)) / 16
    total = count + 20_000
    clusters = rng.choice(middles, total, p=shares)
    parts = []
    for start in range(0, total, 20_000):
        own = clusters[start : start + 20_000]
        latent = centers[own] + width * rng.normal(size=(len(own), inner))
        outer = np.tanh(1.5 * latent @ first) @ second
        parts.append(outer + 0.02 * rng.normal(size=outer.shape))
    drawn = np.concatenate(parts).astype(np.float32)
    shared = IVFFlat(dim, nlist=round(2 * count**0.5))
    shared.train(drawn[:count])
    shared.add(drawn[:count])
    tree = ClusterTreeIndex(dim)
    tree.train(drawn[:count])
    tree.add(drawn[:count])
    return World(
        vectors=drawn[:count],
        clusters=clusters[:count],
        others=drawn[count:],
        other_clusters=clusters[count:],
        shared=shared,
        tree=tree,
    )


def draw_cell(rng: np.random.Generator) -> Cell:
    """Draw a cell; one in six is of tenants that see everything."""
    selectivity = float(np.exp(rng.uniform(np.log(5e-4), np.log(1.0))))
    if rng.random() < 1 / 6:
        selectivity = 1.0
    return Cell(
        selectivity=selectivity,
        overlap=float(np.exp(rng.uniform(0.0, np.log(12.0)))) if selectivity < 1 else 4.0,
        locality=float(rng.choice([0.0, rng.uniform(0.0, 1.0), 0.9])) if selectivity < 1 else 0.0,
        spare=float(rng.choice([1.1, 1.3, 2.0, 4.0, 16.0])),
    )


def tune_cell(world: World, cell: Cell, seed: int) -> dict[str, TunedWay]:
    """Tune all ways for one tenant, each to its smallest setting for a recall of .95."""
    rng = np.random.default_rng(seed)
    count, dim = world.vectors.shape
    size = max(K, round(cell.selectivity * count))
    tenants = max(1, round(cell.overlap * count / size))
    # Grants of this cell alone, beside the rows and the tree of the world.
    tree = ClusterTreeIndex(dim)
    # With one set of codes for all, as where tenants share a tree.
    tree.rows, tree.tree = world.tree.rows, world.tree.tree
    assert tree.tree is not None
    tree.searcher = TreeSearcher(tree.tree, tree.rows, tree.metric, tree.shortlist)
    homes = None
    for tenant in range(tenants):
        drawn, own_homes = _drawn(rng, world.clusters, size, cell.locality)
        tree.grant(drawn, f"{seed}-{tenant}")
        if homes is None:
            rows, homes = np.sort(drawn), own_homes
    picked, _ = _drawn(rng, world.other_clusters, _TUNED + _TIMED, cell.locality, homes)
    queries = rng.permutation(world.others[picked])
    own = world.vectors[rows]
    apart = (own**2).sum(axis=1)[None] - 2 * queries @ own.T
    truth = rows[np.argpartition(apart, K - 1, axis=1)[:, :K]]
    tree_bytes = float(sum(tree.memory_bytes().values()))
    bitmaps = tenants * -(-count // 8) if size < count else 0
    shared_bytes = sum(world.shared.memory_bytes().values()) + bitmaps
    ways: dict[str, tuple[Search, list[int], float]] = {}
    name = f"{seed}-0"
    shared, bitmap = world.shared, world.shared.admitted(rows)
    ways["scan"] = (lambda q, p: tree.search(q, K, tenant=name, nprobe=10**9), [1], tree_bytes)
    steps = np.unique(np.round(10 ** np.arange(1, 5.01, 0.04))).astype(int).tolist()
    ways["tree"] = (
        lambda q, p: tree.search(q, K, tenant=name, nprobe=p),
        [*steps, count],
        tree_bytes,
    )
    probes = [*range(1, 60), *(step for step in steps if 60 <= step < shared.nlist)]
    # Who sees everything needs no bitmap.
    is_whole = size == count
    ways["filter"] = (
        (lambda q, p: shared.search(q, K, nprobe=p))
        if is_whole
        else (lambda q, p: shared.search_admitted(q, K, bitmap, nprobe=p)),
        [*probes, shared.nlist],
        shared_bytes,
    )
    for kind, index in _own_indexes(own, rows):
        knobs = [*[step for step in probes if step < index.nlist], index.nlist]
        ways[kind] = (
            lambda q, p, index=index: index.search(q, K, nprobe=p),
            knobs,
            float(sum(index.memory_bytes().values()) * tenants),
        )
    return _tuned(ways, queries, truth)


def _own_indexes(own: Floats, rows: Ids) -> Iterator[tuple[str, IVFFlat]]:
    """Build indexes of one tenant's vectors."""
    flat = IVFFlat(own.shape[1])
    flat.add(own, rows)
    yield "own flat", flat
    if len(own) >= 1000:
        cells = IVFFlat(own.shape[1], nlist=round(2 * len(own) ** 0.5))
        cells.train(own)
        cells.add(own, rows)
        yield "own ivf", cells


def _drawn(
    rng: np.random.Generator, clusters: Ids, size: int, locality: float, homes: Ids | None = None
) -> tuple[Ids, Ids]:
    """Draw rows: a share from home clusters that hold about twice as many, others anywhere."""
    counts = np.bincount(clusters)
    wanted = min(round(locality * size), len(clusters))
    if homes is None:
        order = rng.permutation(len(counts))
        enough = int(np.searchsorted(np.cumsum(counts[order]), 2 * wanted)) + 1
        homes = order[:enough]
    home_rows = np.flatnonzero(np.isin(clusters, homes))
    near = rng.choice(home_rows, min(wanted, len(home_rows)), replace=False)
    rest = rng.choice(len(clusters), size, replace=False)
    rest = rest[~np.isin(rest, near)][: size - len(near)]
    return np.concatenate([near, rest]), homes


def _tuned(
    ways: dict[str, tuple[Search, list[int], float]], queries: Floats, truth: Ids
) -> dict[str, TunedWay]:
    """Tune each way on some queries, and look at the recall of others."""
    chosen, held = slice(0, _TUNED), slice(_TUNED, None)
    found = {}
    for name, (search, steps, memory_bytes) in ways.items():
        low, high = -1, len(steps) - 1
        while high - low > 1:
            middle = (low + high) // 2
            ids = search(queries[chosen], steps[middle]).ids
            if recall_at(ids, truth[chosen]).mean() >= 0.95:
                high = middle
            else:
                low = middle
        knob = steps[high]
        hits = search(queries[held], knob)
        stats = (hits.stats.scanned, hits.stats.probed, hits.stats.reranked)
        found[name] = TunedWay(
            search=lambda query, search=search, knob=knob: search(query, knob),
            queries=queries[held],
            memory_bytes=memory_bytes,
            knob=knob,
            recall=float(recall_at(hits.ids, truth[held]).mean()),
            work=tuple(value / len(hits.ids) for value in stats),
        )
    return found


def time_cells(
    cells: list[dict[str, TunedWay]], sweeps: int, between: Callable[[], None]
) -> list[dict[str, Measured]]:
    """Time all ways of all cells, one query at a time, in sweeps over everything.

    A sweep asks other queries than the one before, and what else the machine does for some seconds
    falls on one sweep of a cell and not on all. `between` is called before each sweep.
    """
    took_s: list[dict[str, list[float]]] = [{name: [] for name in cell} for cell in cells]
    for sweep in range(sweeps):
        between()
        begin = sweep * _SLICE % _TIMED
        for cell, own in zip(cells, took_s, strict=True):
            # The first of a cell finds colder caches: each way is first in some sweeps.
            names = list(cell)
            for name in names[sweep % len(names) :] + names[: sweep % len(names)]:
                way, times = cell[name], []
                for query in way.queries[begin : begin + _SLICE]:
                    began = time.perf_counter()
                    way.search(query)
                    times.append(time.perf_counter() - began)
                own[name].append(statistics.median(times))
    return [
        {
            name: Measured(
                query_s=float(np.quantile(own[name], _CALM)),
                memory_bytes=way.memory_bytes,
                recall=way.recall,
            )
            for name, way in cell.items()
        }
        for cell, own in zip(cells, took_s, strict=True)
    ]

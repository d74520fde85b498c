"""How fast this machine searches for one tenant of many, fitted part by part.

Searches are timed as they are used: vectors in clusters, every query another one, tenants that lie
anywhere or close together. So what a query finds in caches is what it will find there later.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.vector_search.tenant_work import (
    SEARCHES,
    TenantSearch,
    filter_work,
    own_work,
    scan_work,
    tree_build_work,
    tree_work,
)
from steelyard.parallel import torch_threads
from steelyard.retrieve.index import Hits
from steelyard.retrieve.kinds import IVFFlat
from steelyard.retrieve.rate_fit import fit_rates
from steelyard.retrieve.tenants import ClusterTreeIndex
from steelyard.retrieve.tenants.generating import MadeTenants, MadeTenantsOptions

__all__ = ["TENANT_SWEEPS", "TenantCalibration", "measure_tenant_rates", "measure_tree_build"]

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
_WORLDS = ((100_000, 128, 1000), (100_000, 64, 200), (20_000, 96, 500))
_INNER, _SPREAD = 14, 0.7
_TENANTS = (60, 150, 300, 600, 1200, 2500, 5000, 9000, 16_000, 30_000, 60_000, 100_000)
_PROBES = (100, 300, 700, 1500, 4000)
_CELLS = (4, 12, 40, 120)
_LEAST_FOR_CELLS, _MOST_FOR_FLAT = 1000, 4000
TENANT_SWEEPS = 16
"""Times that each search is timed."""
_QUERIES, _CALM, _COUNTED = 30, 0.25, 200
_K = 10
_BUILT, _BUILDS = (40_000, 96), 3


class _TenantSearch(NamedTuple):
    """One search that is timed: its name, tenant, how it is asked, and its units of work."""

    kind: str
    tenant: str
    search: Callable[[Floats], Hits]
    queries: Floats
    work: dict[str, float]


def measure_tenant_rates() -> dict[str, tuple[dict[str, float], float]]:
    """Measure searches for tenants of many sizes among generated vectors.

    Returns:
        Seconds per unit and the half-width of the interval, by name of the search.
    """
    with torch_threads(1):
        calibration = TenantCalibration()
        for _ in range(TENANT_SWEEPS):
            calibration.sweep()
    return calibration.rates()


class TenantCalibration:
    """Searches for tenants that are timed in sweeps, which other work may stand between."""

    def __init__(self) -> None:
        """Build what is searched."""
        self._asked: list[_TenantSearch] = []
        for count, dim, clusters in _WORLDS:
            self._asked += _World(count, dim, clusters).searches()
        self._took_s: list[list[float]] = []

    def sweep(self) -> None:
        """Time every search once; at most `TENANT_SWEEPS` times.

        In sweeps over all, something else on the machine does not fall on one search.
        """
        turn, medians = len(self._took_s), []
        for place, item in enumerate(self._asked):
            # Other queries than the search before: those would find what they look at in caches.
            begin, times = (turn + place) % TENANT_SWEEPS * _QUERIES, []
            for query in item.queries[begin : begin + _QUERIES]:
                began_s = time.perf_counter()
                item.search(query)
                times.append(time.perf_counter() - began_s)
            medians.append(float(np.median(times)))
        self._took_s.append(medians)

    def rates(self) -> dict[str, tuple[dict[str, float], float]]:
        """Fit what the calm sweeps took.

        Returns:
            Seconds per unit and the half-width of an 80 % interval, by name of the search.
        """
        took_s = np.quantile(self._took_s, _CALM, axis=0).tolist()
        found = {}
        for kind in SEARCHES:
            places = [place for place, item in enumerate(self._asked) if item.kind == kind]
            own = [self._asked[place] for place in places]
            found[kind] = fit_rates(
                [item.work for item in own],
                [took_s[place] for place in places],
                [item.tenant for item in own],
            )
        return found


def measure_tree_build() -> dict[str, float]:
    """Return the seconds per unit of `tree_build_work` of this machine, on one thread."""
    count, dim = _BUILT
    options = MadeTenantsOptions(vectors=count, dim=dim, tenants=1, queries=1)
    vectors, took_s = MadeTenants.drawn(options).vectors, np.empty((_BUILDS, 2))
    with torch_threads(1):
        for own_s in took_s:
            tree = ClusterTreeIndex(dim)
            began_s = time.perf_counter()
            tree.train(vectors)
            trained_s = time.perf_counter()
            tree.add(vectors)
            own_s[:] = trained_s - began_s, time.perf_counter() - trained_s
    work = tree_build_work(count, dim)
    # The first build may wait for kernels.
    return dict(zip(work, (took_s.min(axis=0) / list(work.values())).tolist(), strict=True))


class _World:
    """Vectors, and the indexes that all tenants share."""

    def __init__(self, count: int, dim: int, clusters: int) -> None:
        self.rng = np.random.default_rng(dim)
        self.middles = self.rng.normal(size=(clusters, _INNER))
        self.turn = self.rng.normal(size=(_INNER, dim)) / _INNER**0.5
        shares = self.rng.dirichlet(np.ones(clusters))
        self.homes = self.rng.choice(clusters, count, p=shares)
        self.vectors = self._around(self.homes)
        self.tree = ClusterTreeIndex(dim)
        # A tree of a sample has larger leaves, in which fewer short ranges are looked at.
        self.tree.train(self.vectors)
        self.tree.add(self.vectors)
        self.shared = _cells_of(self.vectors, round(2 * count**0.5), self.rng)
        # Rows of the tree in its order: a tenant that sees a range of them lies close together.
        self.order = self.tree.rows.numbers

    def _around(self, homes: Ids) -> Floats:
        """Draw a vector around each middle, in few dimensions that are turned into all."""
        inner = self.middles[homes] + _SPREAD * self.rng.normal(size=(len(homes), _INNER))
        turned = inner @ self.turn
        return (turned + 0.02 * self.rng.normal(size=turned.shape)).astype(np.float32)

    def searches(self) -> Iterator[_TenantSearch]:
        """Yield all ways for tenants of all sizes, anywhere and close together."""
        count, dim = self.vectors.shape
        for place, wanted in enumerate(_TENANTS):
            size = min(wanted, count)
            name = f"{size} of {dim}"
            # In one world the odd ones lie close together, in the other the even ones.
            ids = np.sort(self._drawn(size, is_near=(place + dim // 64) % 2 == 1))
            self.tree.grant(ids, name)
            # Whoever sees vectors asks for such as they are.
            self.queries = self._around(self.homes[self.rng.choice(ids, TENANT_SWEEPS * _QUERIES)])
            yield from self._in_tree(name, size)
            yield from self._in_shared(name, ids)
            yield from self._in_own(name, ids)
            if wanted >= count:
                return

    def _drawn(self, size: int, *, is_near: bool) -> Ids:
        """Draw vectors: from all, or from a part of the tree that has twice as many."""
        count = len(self.order)
        if not is_near:
            return self.rng.choice(count, size, replace=False)
        begin = int(self.rng.integers(0, max(1, count - 2 * size)))
        return self.order[
            begin + self.rng.choice(min(2 * size, count - begin), size, replace=False)
        ]

    def _in_tree(self, name: str, size: int) -> Iterator[_TenantSearch]:
        (count, dim), rows = self.vectors.shape, self.tree.rows_of(name)
        beside = float((np.diff(np.sort(rows)) == 1).sum()) / size

        def search(query: Floats, nprobe: int = 10**9) -> Hits:
            return self.tree.search(query, _K, tenant=name, nprobe=nprobe)

        yield _TenantSearch(
            "tenant scan", name, search, self.queries, scan_work(size, dim, beside, count)
        )
        for nprobe in _PROBES:
            if nprobe > size // 2:
                break
            own = partial(search, nprobe=nprobe)
            scanned, expanded, compared = self._done(own)
            done = TenantSearch(scanned=scanned, expanded=expanded, compared=compared)
            work = tree_work(done, size, dim, beside, count)
            yield _TenantSearch("tenant tree", name, own, self.queries, work)

    def _in_shared(self, name: str, ids: Ids) -> Iterator[_TenantSearch]:
        (count, dim), nlist = self.vectors.shape, self.shared.nlist
        bitmap = self.shared.admitted(ids)
        for nprobe in _CELLS:
            search = partial(self.shared.search_admitted, k=_K, bitmap=bitmap, nprobe=nprobe)
            visited = self._done(partial(self.shared.search, k=_K, nprobe=nprobe))[0]
            compared = self._done(search)[0]
            work = filter_work(nprobe, nlist, visited, compared, len(ids), dim, count)
            yield _TenantSearch("tenant filter", name, search, self.queries, work)

    def _in_own(self, name: str, ids: Ids) -> Iterator[_TenantSearch]:
        size, dim = len(ids), self.vectors.shape[1]
        if size <= _MOST_FOR_FLAT:
            flat = IVFFlat(dim)
            flat.add(self.vectors[ids])
            work = own_work(1, 1, size, size, dim)
            yield _TenantSearch("tenant own", name, partial(flat.search, k=_K), self.queries, work)
        if size < _LEAST_FOR_CELLS:
            return
        cells = _cells_of(self.vectors[ids], round(2 * size**0.5), self.rng)
        for nprobe in _CELLS:
            if nprobe > cells.nlist // 2:
                break
            search = partial(cells.search, k=_K, nprobe=nprobe)
            work = own_work(nprobe, cells.nlist, self._done(search)[0], size, dim)
            yield _TenantSearch("tenant own", name, search, self.queries, work)

    def _done(self, search: Callable[[Floats], Hits]) -> tuple[float, float, float]:
        """Return what a query scans, probes and compares again, on average."""
        stats, asked = search(self.queries[:_COUNTED]).stats, _COUNTED
        return stats.scanned / asked, stats.probed / asked, stats.reranked / asked


def _cells_of(vectors: Floats, nlist: int, rng: np.random.Generator) -> IVFFlat:
    """Return an index of cells around some of the vectors: times need no better ones."""
    index = IVFFlat(vectors.shape[1], nlist=nlist)
    index.centers = vectors[rng.choice(len(vectors), nlist, replace=False)].copy()
    index.add(vectors)
    return index

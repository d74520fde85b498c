"""Searches of lists of tenants in one tree: by native code where there is some, and in steps."""

import ctypes
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from steelyard.retrieve.index import Hits, Metric, SearchStats, checked_vectors
from steelyard.retrieve.tenants.lists import TenantLists
from steelyard.retrieve.tenants.native import NativeTree
from steelyard.retrieve.tenants.scanning import WHOLE, Scanned, search_tenant
from steelyard.retrieve.tenants.sign_codes import ERRORS
from steelyard.retrieve.tenants.stepping import tenant_steps
from steelyard.retrieve.tenants.tree import ClusterTree
from steelyard.retrieve.tenants.vectors import VectorRows

__all__ = ["TreeSearcher"]

_BOOST = 0.3


class TreeSearcher:
    """What searches the vectors of one tree; callers take turns."""

    def __init__(self, tree: ClusterTree, rows: VectorRows, metric: Metric, shortlist: int) -> None:
        """Take what is searched.

        Args:
            tree: the tree.
            rows: vectors that hang in it.
            metric: "l2" or "ip".
            shortlist: vectors of a tenant below a node that are compared without going deeper.
        """
        self.tree, self.rows = tree, rows
        self.metric: Metric = metric
        self.shortlist = shortlist
        self._spread = tree.variances if metric == "l2" else np.sqrt(tree.variances)
        # Each node is on the heap of nodes once at most.
        size = len(tree.centers) + 1
        self._room = np.empty(size, np.float32), np.empty((size, 5), np.int64)
        self._native: NativeTree | None = None
        self._stats = SearchStats()

    def forget(self) -> None:
        """Look anew at where the vectors lie: they were moved."""
        self._native = None

    def search(
        self,
        library: ctypes.CDLL | None,
        asked: NDArray[np.float32],
        k: int,
        lists: TenantLists,
        number: int,
        probes: int,
    ) -> Hits:
        """Search one list.

        Args:
            library: compiled code; None to do without.
            asked: queries [Q, D], or one [D], perhaps not finite.
            k: neighbours.
            lists: lists of tenants.
            number: number of one that has a row at least.
            probes: vectors to compare a query with at least.

        Returns:
            The nearest.

        Raises:
            DataError: a query is not finite.
        """
        coded = self._is_coded(int(lists.sizes[number]), probes)
        if library is None:
            return self.by_kernel(asked, k, lists, number, probes, coded)
        return self.by_library(library, asked, k, lists, number, probes, coded)

    def steps(
        self,
        asked: NDArray[np.float32],
        k: int,
        lists: TenantLists,
        number: int,
        stops: Iterable[int],
        probes: int,
    ) -> Iterator[Hits]:
        """Yield the nearest so far after some numbers of vectors looked at, and at the end.

        Args:
            asked: queries [Q, D], finite.
            k: neighbours.
            lists: lists of tenants.
            number: number of one that has a row at least.
            stops: vectors to look at for each query before something is yielded, ascending.
            probes: vectors at the end.

        Yields:
            The nearest so far; the last is what `search` returns.
        """
        searched, nodes = self._scanned(lists, probes), len(self._room[0])
        coded = self._is_coded(int(lists.sizes[number]), probes)
        yield from tenant_steps(asked, k, number, stops, probes, nodes, coded, searched)

    def by_library(
        self,
        library: ctypes.CDLL,
        asked: NDArray[np.float32],
        k: int,
        lists: TenantLists,
        number: int,
        probes: int,
        coded: bool,
    ) -> Hits:
        """Search one list by native code.

        Args:
            library: compiled code.
            asked: as of `search`, like all up to `probes`.
            k: neighbours.
            lists: lists of tenants.
            number: the list.
            probes: vectors to look at.
            coded: let codes tell which vectors are compared.

        Returns:
            The nearest.

        Raises:
            DataError: a query is not finite.
        """
        if self._native is None:
            self._native = NativeTree(
                library,
                self.tree,
                self.rows,
                self._spread,
                is_l2=self.metric == "l2",
                shortlist=self.shortlist,
                boost=_BOOST,
            )
        found, numbers, counts, wrong = self._native.search(asked, lists, number, k, probes, coded)
        if wrong >= 0:
            checked_vectors(asked, self.tree.centers.shape[1], what="queries")
        scanned, expanded, compared = counts
        reranked, stats = compared if coded else 0, self._stats
        if (stats.scanned, stats.probed, stats.reranked) != (scanned, expanded, reranked):
            # Small tenants are compared whole: what a search did is as before, again and again.
            stats = SearchStats(scanned=scanned, probed=expanded, reranked=reranked)
            self._stats = stats
        return Hits(ids=numbers, distances=found, stats=stats)

    def by_kernel(
        self,
        asked: NDArray[np.float32],
        k: int,
        lists: TenantLists,
        number: int,
        probes: int,
        coded: bool,
    ) -> Hits:
        """Search one list without native code, with the results of `by_library`.

        Args:
            asked: as of `search`, like all up to `probes`.
            k: neighbours.
            lists: lists of tenants.
            number: the list.
            probes: vectors to look at.
            coded: let codes tell which vectors are compared.

        Returns:
            The nearest.

        Raises:
            DataError: a query is not finite.
        """
        asked = checked_vectors(asked, self.tree.centers.shape[1], what="queries")
        searched, errors = self._scanned(lists, probes), np.float32(ERRORS)
        found, numbers, scanned, expanded, compared = search_tenant(
            asked, number, k, probes, coded, errors, searched, *self._room
        )
        stats = SearchStats(
            scanned=int(scanned), probed=int(expanded), reranked=int(compared) if coded else 0
        )
        return Hits(ids=numbers, distances=found if self.metric == "l2" else -found, stats=stats)

    def _is_coded(self, size: int, probes: int) -> bool:
        """Whether codes tell which vectors of a tenant of some size are compared."""
        # Codes leave out what they only believe to be far: an exact search does without.
        return self.rows.coder is not None and size > WHOLE and probes < size

    def _scanned(self, lists: TenantLists, probes: int) -> Scanned:
        """Return what a search looks at, in the order in which kernels take it."""
        tree, rows = self.tree, self.rows
        rotation = np.empty((0, 0), np.float32) if rows.coder is None else rows.coder.rotation
        nodes = (tree.centers, tree.first_child, tree.num_children, tree.last_leaf, self._spread)
        records = rows.records
        return Scanned(
            min(self.shortlist, probes),
            np.float32(_BOOST),
            self.metric == "l2",
            (*nodes, rotation),
            lists.arrays(),
            (rows.vectors, rows.leaves, rows.numbers, records, records.view(np.float32)),
        )

"""An index of vectors that tenants share: one tree, one copy of each vector, lists per tenant."""

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError, DataError
from steelyard.retrieve.index import (
    Hits,
    Metric,
    SearchStats,
    as_rows,
    checked_ids,
    checked_k,
    checked_vectors,
)
from steelyard.retrieve.tenants.kept import ConditionLists
from steelyard.retrieve.tenants.lists import TenantLists
from steelyard.retrieve.tenants.native import NativeTree, tenant_library
from steelyard.retrieve.tenants.predicates import parse_condition
from steelyard.retrieve.tenants.scanning import WHOLE, search_tenant
from steelyard.retrieve.tenants.sign_codes import ERRORS, LEAST_DIM, SignCodes
from steelyard.retrieve.tenants.tree import ClusterTree, train_tree
from steelyard.retrieve.tenants.vectors import VectorRows

__all__ = ["ClusterTreeIndex"]

Ids = NDArray[np.int64]
_BOOST = 0.3
_LONGEST_NAME = 200


class ClusterTreeIndex:
    """Vectors that several tenants see in part.

    A search sees what its tenant was granted and nothing else. All vectors hang in one tree of
    clusters; each tenant has a list of its own, sorted by leaf, so that the vectors below a node
    are a range of it. Nodes without vectors of the tenant are never entered.

    Threads may search and change it at once; they take turns.

    Attributes:
        dim: numbers in a vector.
        metric: "l2" or "ip".
        nprobe: vectors that a query is compared with at least, unless a search says otherwise.
        shortlist: vectors of a tenant below a node that are compared without going deeper.
        tree: the tree; none before training.
        rows: vectors with their numbers and leaves.
        lists: what each tenant sees.

    Source: Jin et al. 2024 (Curator, arXiv 2401.07119); where the paper keeps short lists and Bloom
        filters in the nodes, both follow here from the order of one list per tenant.
    """

    def __init__(
        self,
        dim: int,
        *,
        branching: int = 16,
        shortlist: int = 128,
        leaf_size: int = 128,
        nprobe: int = 1200,
        metric: Metric = "l2",
    ) -> None:
        """Make an index without vectors.

        Args:
            dim: numbers in a vector.
            branching: children of a node of the tree.
            shortlist: see the class.
            leaf_size: vectors of a leaf at most, when all are there.
            nprobe: see the class.
            metric: "l2" or "ip" (inner product).

        Raises:
            ConfigError: a number is out of range.
        """
        if min(dim, shortlist, leaf_size, nprobe) < 1 or branching < 2:
            raise ConfigError(
                f"{dim} numbers, {branching} children, lists of {shortlist}, leaves of "
                f"{leaf_size}, {nprobe} vectors compared",
                hint="give 2 children or more, and 1 or more of the others",
            )
        self.dim, self.nprobe = dim, nprobe
        self.metric: Metric = metric
        self.branching, self.shortlist, self.leaf_size = branching, shortlist, leaf_size
        self.tree: ClusterTree | None = None
        self.rows = VectorRows(dim)
        self.lists = TenantLists()
        self._tenants: dict[str, int] = {}
        self._found = ConditionLists()
        self._lock = threading.RLock()
        self._room = np.empty(0, np.float32), np.empty((0, 5), np.int64)
        self._native: NativeTree | None = None
        self._spread = np.empty(0, np.float32)

    def __len__(self) -> int:
        """Return how many vectors there are."""
        return len(self.rows)

    @property
    def tenants(self) -> list[str]:
        """Names of tenants, in the order in which they came."""
        return list(self._tenants)

    def train(
        self, vectors: NDArray[np.generic], *, expected: int | None = None, seed: int = 0
    ) -> None:
        """Build the tree on a sample.

        Args:
            vectors: sample [N, D].
            expected: vectors that there will be; those of the sample when None.
            seed: seed of draws and clusters.

        Raises:
            ConfigError: there are vectors already, or the sample is empty.
            DataError: vectors of another width, or not finite.
        """
        if len(self):
            raise ConfigError("an index that holds vectors is not trained again")
        sample = checked_vectors(vectors, self.dim)
        grown = train_tree(
            sample,
            branching=self.branching,
            leaf_size=self.leaf_size,
            expected=expected,
            seed=seed,
        )
        self.take_tree(grown)

    def take_tree(self, tree: ClusterTree) -> None:
        """Search by a tree from now on; vectors that are there must hang in it."""
        self.tree, size = tree, len(tree.centers) + 1
        self._spread = tree.variances if self.metric == "l2" else np.sqrt(tree.variances)
        # Each node is on the heap of nodes once at most.
        self._room = np.empty(size, np.float32), np.empty((size, 5), np.int64)
        if self.dim >= LEAST_DIM:
            self.rows.take_coder(SignCodes(tree.centers[0]))
        self._native = None

    def add(self, vectors: NDArray[np.generic], ids: Ids | None = None) -> Ids:
        """Add vectors; nobody sees them before they are granted.

        Args:
            vectors: [N, D].
            ids: their numbers, from 0, each new; counted on where none are given.

        Returns:
            Their numbers [N].

        Raises:
            ConfigError: the index is not trained.
            DataError: vectors of another width or not finite, or a number that is there already.
            CapacityError: more rows than the index can count.
        """
        if self.tree is None:
            raise ConfigError("the index has no tree yet", hint="train it on a sample first")
        given = checked_vectors(vectors, self.dim)
        numbers = checked_ids(ids, len(given), self.rows.known(), self.rows.next_id)
        leaves = self.tree.leaves_of(given)
        # Neighbours in the tree stand beside each other in memory.
        order = np.argsort(leaves, kind="stable")
        with self._lock:
            self.rows.add(given[order], numbers[order], leaves[order])
            self._found.clear()
            self._native = None
        return numbers

    def remove(self, ids: Ids) -> None:
        """Remove vectors, from all tenants.

        Args:
            ids: their numbers.

        Raises:
            DataError: a number is not there; then nothing is removed.
        """
        rows = self.rows.rows_of(np.unique(_numbers(ids)))
        with self._lock:
            for tenant in range(len(self.lists)):
                self.lists.revoke(tenant, rows, self.rows.leaves)
            self.rows.remove(rows)
            self._found.clear()
            self._native = None

    def grant(self, ids: Ids, tenant: str) -> int:
        """Let a tenant see vectors; a new name is a new tenant.

        Args:
            ids: numbers of vectors; those that it sees already change nothing.
            tenant: name of 1 to 200 letters.

        Returns:
            Vectors that are new to the tenant.

        Raises:
            ConfigError: an empty or too long name.
            DataError: a number is not there; then nothing is granted.
        """
        rows = self.check_grant(ids, tenant)
        with self._lock:
            if tenant not in self._tenants:
                self._tenants[tenant] = self.lists.add_tenant()
            self._found.clear()
            return self.lists.grant(self._tenants[tenant], rows, self.rows.leaves)

    def revoke(self, ids: Ids, tenant: str) -> int:
        """Hide vectors from a tenant.

        Args:
            ids: numbers of vectors; those that it does not see change nothing.
            tenant: its name.

        Returns:
            Vectors that it no longer sees.

        Raises:
            ConfigError: there is no such tenant.
            DataError: a number is not there; then nothing is revoked.
        """
        rows = self.check_revoke(ids, tenant)
        with self._lock:
            self._found.clear()
            return self.lists.revoke(self._tenants[tenant], rows, self.rows.leaves)

    def check_grant(self, ids: Ids, tenant: str) -> NDArray[np.int32]:
        """Return the rows of vectors that may be granted; errors as of `grant`."""
        if not 1 <= len(tenant) <= _LONGEST_NAME:
            raise ConfigError(
                f"a tenant's name of {len(tenant)} letters", hint=f"give 1 to {_LONGEST_NAME}"
            )
        return self.rows.rows_of(_numbers(ids))

    def check_revoke(self, ids: Ids, tenant: str) -> NDArray[np.int32]:
        """Return the rows of vectors that may be revoked; errors as of `revoke`."""
        self._number(tenant)
        return self.rows.rows_of(_numbers(ids))

    def granted(self, tenant: str) -> Ids:
        """Return the numbers of what a tenant sees, ascending; none of an unknown tenant."""
        if tenant not in self._tenants:
            return np.empty(0, np.int64)
        return np.sort(self.rows.numbers[self.lists.rows_of(self._tenants[tenant])])

    def search(
        self,
        queries: NDArray[np.generic],
        k: int,
        *,
        tenant: str = "",
        where: str = "",
        nprobe: int | None = None,
        strict: bool = False,
    ) -> Hits:
        """Return the nearest vectors of those that a tenant sees, or that a condition admits.

        Args:
            queries: [Q, D], or one query [D].
            k: neighbours of each; rows of a tenant of fewer end with -1.
            tenant: name of the tenant.
            where: a condition on tenants in its place, such as "a AND NOT b".
            nprobe: vectors to compare a query with at least, where there are so many; the more, the
                better. As many as there are makes the answer exact.
            strict: refuse unknown tenants, for which nothing is found otherwise.

        Returns:
            The nearest, with what was compared and how many nodes were entered.

        Raises:
            ConfigError: k or nprobe below 1, both or neither of tenant and where, a condition that
                cannot be read, or with `strict` an unknown tenant.
            DataError: queries of another width, or not finite.
        """
        asked = as_rows(queries, self.dim, what="queries")
        if bool(tenant) == bool(where):
            raise ConfigError("a search for a tenant and a condition, or for neither")
        probes = self.nprobe if nprobe is None else nprobe
        if probes < 1:
            raise ConfigError(f"nprobe is {probes}", hint="compare 1 vector or more")
        count = checked_k(k)
        # A change moves lists in several steps, which no search may see.
        with self._lock:
            lists, number = self._seen(tenant, where, strict=strict)
            if number < 0 or not lists.sizes[number]:
                checked_vectors(asked, self.dim, what="queries")
                return _nothing(len(asked), count, self.metric)
            return self._searched(asked, count, lists, number, probes)

    def _searched(
        self, asked: NDArray[np.float32], k: int, lists: TenantLists, number: int, probes: int
    ) -> Hits:
        """Search one list."""
        # Codes leave out what they only believe to be far: an exact search does without.
        size = int(lists.sizes[number])
        coded = self.rows.coder is not None and WHOLE < size and probes < size
        native = self._native or self._native_tree()
        if native is None:
            return self._stepped(asked, k, lists, number, probes, coded)
        found, numbers, counts, wrong = native.search(asked, lists, number, k, probes, coded)
        if wrong >= 0:
            checked_vectors(asked, self.dim, what="queries")
        scanned, expanded, compared = counts
        stats = SearchStats(scanned=scanned, probed=expanded, reranked=compared if coded else 0)
        return Hits(ids=numbers, distances=found, stats=stats)

    def _native_tree(self) -> NativeTree | None:
        """Return native searches of the vectors as they are; None where there are none."""
        library, tree = tenant_library(), self.tree
        if library is not None and tree is not None:
            self._native = NativeTree(
                library,
                tree,
                self.rows,
                self._spread,
                is_l2=self.metric == "l2",
                shortlist=self.shortlist,
                boost=_BOOST,
            )
        return self._native

    def _stepped(
        self,
        asked: NDArray[np.float32],
        k: int,
        lists: TenantLists,
        number: int,
        probes: int,
        coded: bool,
    ) -> Hits:
        """Search one list without native code."""
        tree, rows = self.tree, self.rows
        assert tree is not None
        rotation = np.empty((0, 0), np.float32) if rows.coder is None else rows.coder.rotation
        checked_vectors(asked, self.dim, what="queries")
        is_l2, records = self.metric == "l2", rows.records
        nodes = (tree.centers, tree.first_child, tree.num_children, tree.last_leaf, self._spread)
        found, numbers, scanned, expanded, compared = search_tenant(
            asked,
            number,
            k,
            probes,
            min(self.shortlist, probes),
            np.float32(_BOOST),
            is_l2,
            coded,
            np.float32(ERRORS),
            (*nodes, rotation),
            lists.arrays(),
            (rows.vectors, rows.leaves, rows.numbers, records, records.view(np.float32)),
            *self._room,
        )
        stats = SearchStats(
            scanned=int(scanned), probed=int(expanded), reranked=int(compared) if coded else 0
        )
        return Hits(ids=numbers, distances=found if is_l2 else -found, stats=stats)

    def _seen(self, tenant: str, where: str, *, strict: bool) -> tuple[TenantLists, int]:
        """Return lists and the number of the one to search; -1 for an unknown tenant."""
        if tenant:
            if strict:
                self._number(tenant)
            return self.lists, self._tenants.get(tenant, -1)
        condition = parse_condition(where)
        if strict:
            for name in condition.names:
                self._number(name)
        leaves = self.rows.leaves
        return self._found.get(condition, self.rows_of, self.rows.all_rows, leaves), 0

    def rows_of(self, tenant: str) -> NDArray[np.int32]:
        """Return the rows that a tenant sees, by leaf; none of an unknown tenant."""
        if tenant not in self._tenants:
            return np.empty(0, np.int32)
        return self.lists.rows_of(self._tenants[tenant])

    def _number(self, tenant: str) -> int:
        """Return the number of a tenant."""
        if tenant not in self._tenants:
            raise ConfigError(
                f"there is no tenant {tenant!r} among {len(self._tenants):,}",
                hint="check the name, or grant it a vector first",
            )
        return self._tenants[tenant]

    def check(self) -> None:
        """Check that every list is in order and holds no removed vector.

        Raises:
            DataError: something is wrong (the first fault is named).
        """
        trouble = self.lists.trouble(self.rows.leaves)
        if trouble:
            raise DataError(f"the index is damaged: {trouble}", hint="restore it from a copy")

    def memory_bytes(self) -> dict[str, int]:
        """Return bytes by part; conditions that are kept ready count as lists."""
        tree = sum(part.nbytes for part in self.tree.arrays().values()) if self.tree else 0
        lists = self.lists.memory_bytes() + self._found.memory_bytes()
        return {**self.rows.memory_bytes(), "tree": tree, "lists": lists}

    def settings(self) -> dict[str, Any]:
        """Return what the index was made with."""
        return {
            "dim": self.dim,
            "branching": self.branching,
            "shortlist": self.shortlist,
            "leaf_size": self.leaf_size,
            "nprobe": self.nprobe,
            "metric": self.metric,
        }


def _numbers(ids: Ids) -> Ids:
    """Return numbers of vectors as an array."""
    found = np.asarray(ids)
    if not found.ndim:
        found = found[None]
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise DataError(f"{found.dtype} {list(found.shape)} for numbers of vectors")
    return found.astype(np.int64, copy=False)


def _nothing(queries: int, k: int, metric: Metric) -> Hits:
    """Return hits without any."""
    far = np.inf if metric == "l2" else -np.inf
    return Hits(
        ids=np.full((queries, k), -1, np.int64),
        distances=np.full((queries, k), far, np.float32),
        stats=SearchStats(),
    )

"""An index of vectors that tenants share: one tree, one copy of each vector, lists per tenant."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError, DataError
from steelyard.retrieve.index import (
    Hits,
    Metric,
    as_rows,
    checked_ids,
    checked_k,
    checked_vectors,
)
from steelyard.retrieve.tenants.kept import ConditionLists
from steelyard.retrieve.tenants.library import tenant_library
from steelyard.retrieve.tenants.lists import TenantLists
from steelyard.retrieve.tenants.predicates import parse_condition
from steelyard.retrieve.tenants.sign_codes import LEAST_DIM, SignCodes
from steelyard.retrieve.tenants.stepping import no_hits
from steelyard.retrieve.tenants.tree import ClusterTree, train_tree
from steelyard.retrieve.tenants.tree_searcher import TreeSearcher
from steelyard.retrieve.tenants.vectors import VectorRows, checked_numbers

__all__ = ["ClusterTreeIndex"]

Ids = NDArray[np.int64]
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
        searcher: what searches them; none before training.

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
        self.dim, self.nprobe, self._one = dim, nprobe, (dim,)
        self.metric: Metric = metric
        self.branching, self.shortlist, self.leaf_size = branching, shortlist, leaf_size
        self.tree: ClusterTree | None = None
        self.rows = VectorRows(dim)
        self.lists = TenantLists()
        self._tenants: dict[str, int] = {}
        self._found = ConditionLists()
        self._lock = threading.RLock()
        self.searcher: TreeSearcher | None = None

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
        self.tree = tree
        if self.dim >= LEAST_DIM:
            self.rows.take_coder(SignCodes(tree.centers[0]))
        self.searcher = TreeSearcher(tree, self.rows, self.metric, self.shortlist)

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
            self._forget()
        return numbers

    def remove(self, ids: Ids) -> None:
        """Remove vectors, from all tenants.

        Args:
            ids: their numbers.

        Raises:
            DataError: a number is not there; then nothing is removed.
        """
        with self._lock:
            rows = self.check_remove(ids)
            for tenant in range(len(self.lists)):
                self.lists.revoke(tenant, rows, self.rows.leaves)
            self.rows.remove(rows)
            self._found.clear()
            self._forget()

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
        with self._lock:
            rows = self.check_grant(ids, tenant)
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
        with self._lock:
            rows = self.check_revoke(ids, tenant)
            self._found.clear()
            return self.lists.revoke(self._tenants[tenant], rows, self.rows.leaves)

    def check_grant(self, ids: Ids, tenant: str) -> NDArray[np.int32]:
        """Return the rows of vectors that may be granted; errors as of `grant`."""
        if not 1 <= len(tenant) <= _LONGEST_NAME:
            raise ConfigError(
                f"a tenant's name of {len(tenant)} letters", hint=f"give 1 to {_LONGEST_NAME}"
            )
        # The first look after a change makes a table, which no other thread must see half made.
        with self._lock:
            return self.rows.rows_of(checked_numbers(ids))

    def check_remove(self, ids: Ids) -> NDArray[np.int32]:
        """Return the rows of vectors that may be removed; errors as of `remove`."""
        with self._lock:
            return self.rows.rows_of(np.unique(checked_numbers(ids)))

    def check_revoke(self, ids: Ids, tenant: str) -> NDArray[np.int32]:
        """Return the rows of vectors that may be revoked; errors as of `revoke`."""
        self._number(tenant)
        with self._lock:
            return self.rows.rows_of(checked_numbers(ids))

    def granted(self, tenant: str) -> Ids:
        """Return the numbers of what a tenant sees, ascending; none of an unknown tenant."""
        if tenant not in self._tenants:
            return np.empty(0, np.int64)
        with self._lock:
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
        asked: NDArray[Any] = queries
        # One query as an array is how most come, and checks of it would take longer than many
        # searches.
        if type(asked) is not np.ndarray or asked.shape != self._one or asked.dtype.kind != "f":
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
                asked = checked_vectors(asked, self.dim, what="queries")
                return no_hits(len(asked), count, self.metric)
            assert self.searcher is not None
            return self.searcher.search(tenant_library(), asked, count, lists, number, probes)

    def search_steps(
        self,
        queries: NDArray[np.generic],
        k: int,
        *,
        stops: Sequence[int],
        tenant: str = "",
        where: str = "",
        nprobe: int | None = None,
    ) -> Iterator[Hits]:
        """Yield the nearest so far after `stops` vectors that were looked at, and in the end.

        The last is what `search` returns. Arguments and errors are those of `search`; changes wait
        until the last was taken.
        """
        asked, probes = checked_vectors(queries, self.dim, what="queries"), nprobe or self.nprobe
        with self._lock:
            lists, number = self._seen(tenant, where, strict=False)
            if self.tree is None or number < 0 or not lists.sizes[number]:
                yield no_hits(len(asked), checked_k(k), self.metric)
                return
            assert self.searcher is not None
            yield from self.searcher.steps(asked, k, lists, number, stops, probes)

    def _forget(self) -> None:
        """Let the next search look anew at where the vectors lie."""
        if self.searcher is not None:
            self.searcher.forget()

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
        # A change moves lists in several steps, of which a look between them would be a fault.
        with self._lock:
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

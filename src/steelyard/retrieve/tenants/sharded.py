"""Several indexes for tenants that answer as one; every shard checks the tenant itself."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from steelyard.data.sketch.hashing import hash_integers
from steelyard.errors import ConfigError
from steelyard.retrieve.index import Hits, checked_ids
from steelyard.retrieve.merging import merge_hits
from steelyard.retrieve.tenants.tree_index import ClusterTreeIndex

__all__ = ["TenantShards"]

Ids = NDArray[np.int64]


class TenantShards:
    """Vectors spread over indexes by a hash of their numbers.

    Attributes:
        shards: the indexes, trained, of one width and metric.
    """

    def __init__(self, shards: Sequence[ClusterTreeIndex]) -> None:
        """Take trained indexes without vectors, or those that an earlier call filled.

        Args:
            shards: the indexes, in the same order each time.

        Raises:
            ConfigError: there is none, or they differ in width or metric.
        """
        if len({(shard.dim, shard.metric) for shard in shards}) != 1:
            raise ConfigError(f"{len(shards)} shards of different widths or metrics, or none")
        self.shards = list(shards)

    def __len__(self) -> int:
        """Return how many vectors there are."""
        return sum(len(shard) for shard in self.shards)

    def add(self, vectors: NDArray[np.generic], ids: Ids | None = None) -> Ids:
        """Add vectors; errors as of `ClusterTreeIndex.add`.

        Args:
            vectors: [N, D].
            ids: their numbers, from 0, each new; counted on where none are given.

        Returns:
            Their numbers.
        """
        next_id = max(shard.rows.next_id for shard in self.shards)
        rows = np.atleast_2d(np.asarray(vectors))
        known = np.concatenate([shard.rows.known() for shard in self.shards])
        numbers = checked_ids(ids, len(rows), known, next_id)
        for shard, own in self._parts(numbers):
            shard.add(rows[own], numbers[own])
        return numbers

    def grant(self, ids: Ids, tenant: str) -> int:
        """Let a tenant see vectors; errors as of `ClusterTreeIndex.grant`.

        Args:
            ids: numbers of vectors.
            tenant: its name.

        Returns:
            Vectors that are new to the tenant.
        """
        numbers = np.atleast_1d(np.asarray(ids, np.int64))
        parts = self._parts(numbers)
        for shard, own in parts:
            shard.check_grant(numbers[own], tenant)
        return sum(shard.grant(numbers[own], tenant) for shard, own in parts)

    def revoke(self, ids: Ids, tenant: str) -> int:
        """Hide vectors from a tenant; those that it does not see change nothing.

        Args:
            ids: numbers of vectors.
            tenant: its name.

        Returns:
            Vectors that it no longer sees.
        """
        numbers = np.atleast_1d(np.asarray(ids, np.int64))
        # A shard may hold none of the tenant's vectors, and then does not know it.
        parts = [(shard, own) for shard, own in self._parts(numbers) if tenant in shard.tenants]
        return sum(shard.revoke(numbers[own], tenant) for shard, own in parts)

    def remove(self, ids: Ids) -> None:
        """Remove vectors; errors as of `ClusterTreeIndex.remove`.

        Args:
            ids: their numbers.
        """
        numbers = np.atleast_1d(np.asarray(ids, np.int64))
        parts = self._parts(numbers)
        for shard, own in parts:
            shard.check_remove(numbers[own])
        for shard, own in parts:
            shard.remove(numbers[own])

    def search(
        self,
        queries: NDArray[np.generic],
        k: int,
        *,
        tenant: str = "",
        where: str = "",
        nprobe: int | None = None,
    ) -> Hits:
        """Return the nearest of all shards; errors as of `ClusterTreeIndex.search`.

        Args:
            queries: [Q, D], or one query [D].
            k: neighbours of each.
            tenant: name of the tenant.
            where: a condition on tenants in its place.
            nprobe: vectors of each shard to compare a query with at least.

        Returns:
            The nearest vectors that the tenant sees.
        """
        found = [
            shard.search(queries, k, tenant=tenant, where=where, nprobe=nprobe)
            for shard in self.shards
        ]
        return merge_hits(found, k, self.shards[0].metric)

    def check(self) -> None:
        """Check every shard; errors as of `ClusterTreeIndex.check`."""
        for shard in self.shards:
            shard.check()

    def _parts(self, numbers: Ids) -> list[tuple[ClusterTreeIndex, NDArray[np.int64]]]:
        """Return shards with the places of their numbers."""
        owners = (hash_integers(numbers) % np.uint64(len(self.shards))).astype(np.int64)
        return [
            (shard, np.flatnonzero(owners == place))
            for place, shard in enumerate(self.shards)
            if (owners == place).any()
        ]

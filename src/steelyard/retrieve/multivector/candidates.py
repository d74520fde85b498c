"""Where candidates come from: an index whose search can be looked at on its way."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError
from steelyard.retrieve.index import Hits
from steelyard.retrieve.ivf import IVF
from steelyard.retrieve.tenants.tree_index import ClusterTreeIndex

__all__ = ["CandidateIndex", "CandidateSearch"]

CandidateIndex = IVF | ClusterTreeIndex


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidateSearch:
    """A search for candidates that yields once on its way and once at the end.

    Attributes:
        index: cells of vectors or codes, or a tree that tenants share.
        nprobe: cells, or vectors of the tree, that a query looks into; the index's own when 0.
        tenant: whose documents are searched, of a tree.
        where: a condition on tenants in its place.
    """

    index: CandidateIndex
    nprobe: int = 0
    tenant: str = ""
    where: str = ""

    def __post_init__(self) -> None:
        """Check that the words fit the index.

        Raises:
            ConfigError: a tenant without a tree, a tree without one, or nprobe below 0.
        """
        is_tree = isinstance(self.index, ClusterTreeIndex)
        named = bool(self.tenant) + bool(self.where)
        if is_tree != (named == 1) or named > 1:
            raise ConfigError(
                "a tenant, a condition, or neither does not fit this index",
                hint="name one of both for an index that tenants share, none for any other",
            )
        if self.nprobe < 0:
            raise ConfigError(f"nprobe is {self.nprobe}", hint="look into 1 or more")

    @property
    def probes(self) -> int:
        """Cells, or vectors, that a query looks into."""
        most = self.nprobe or self.index.nprobe
        return min(most, self.index.nlist) if isinstance(self.index, IVF) else most

    def stop_at(self, share: float) -> int:
        """Return the cells or vectors after which a share of the search is done; 1 at least."""
        return max(1, round(share * self.probes))

    def steps(
        self, queries: NDArray[np.float32], k: int, share: float
    ) -> Iterator[tuple[Hits, bool]]:
        """Yield what is found after a share of the search, and at the end.

        Args:
            queries: [Q, D].
            k: candidates.
            share: above 0; from 1 on, only the end is yielded.

        Yields:
            Hits, and whether they are the last.
        """
        probes, stop = self.probes, self.stop_at(share)
        stops = (stop,) if stop < probes else (probes,)
        index = self.index
        if isinstance(index, IVF):
            found = index.search_steps(queries, k, nprobe=probes, stops=stops)
        else:
            found = index.search_steps(
                queries, k, nprobe=probes, stops=stops, tenant=self.tenant, where=self.where
            )
        hits = next(found)
        if stop < probes:
            # Yielded before anything more is looked at: reads must begin beside the rest.
            yield hits, False
        for later in found:
            hits = later
        yield hits, True

"""How many vectors to compare a query with for a recall, over tenants of all sizes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError
from steelyard.retrieve.index import Hits
from steelyard.retrieve.tenants.tree_index import ClusterTreeIndex
from steelyard.retrieve.tuning import recall_at

__all__ = ["TunedProbes", "tune_probes"]

_LEAST_QUERIES = 20
Asked = Sequence[tuple[str, NDArray[np.float32]]]


@dataclass(frozen=True, kw_only=True)
class TunedProbes:
    """The fewest vectors for a recall.

    Attributes:
        nprobe: vectors to compare a query with at least.
        recall: share of the true neighbours that were found for the queries it was chosen on.
        heldout_recall: the same for queries it was not chosen on.
        heldout_error: standard error of that.
    """

    nprobe: int
    recall: float
    heldout_recall: float
    heldout_error: float


def tune_probes(
    index: ClusterTreeIndex, queries: Asked, *, k: int = 10, recall: float = 0.95
) -> TunedProbes:
    """Find the fewest vectors to compare that reach a recall.

    The truth is a search that compares all vectors of the tenant.

    Args:
        index: index with vectors and tenants.
        queries: tenants with a query each, 20 or more, such as real ones; every second is kept for
            the check.
        k: neighbours.
        recall: share of the true neighbours to find, above 0 to 1.

    Returns:
        The number, and the recall on both halves.

    Raises:
        ConfigError: too few queries, or a recall out of range.
    """
    if len(queries) < _LEAST_QUERIES or not 0 < recall <= 1:
        raise ConfigError(
            f"{len(queries)} queries for a recall of {recall:g}",
            hint=f"give {_LEAST_QUERIES} queries or more, and a recall above 0 to 1",
        )
    most = max(int(index.lists.sizes.max(initial=1)), 1)
    truth = _found(index, queries, k, most)

    def shares(nprobe: int, part: slice) -> NDArray[np.float64]:
        return recall_at(_found(index, queries[part], k, nprobe), truth[part])

    chosen, held = slice(0, None, 2), slice(1, None, 2)
    low, high = 0, most
    while high - low > max(1, low // 50):
        middle = (low + high) // 2
        if float(shares(middle, chosen).mean()) >= recall:
            high = middle
        else:
            low = middle
    unseen = shares(high, held)
    return TunedProbes(
        nprobe=high,
        recall=float(shares(high, chosen).mean()),
        heldout_recall=float(unseen.mean()),
        heldout_error=float(unseen.std(ddof=1) / np.sqrt(len(unseen))),
    )


def _found(index: ClusterTreeIndex, queries: Asked, k: int, nprobe: int) -> NDArray[np.int64]:
    """Return the neighbours of each query [Q, K]."""
    hits: list[Hits] = [
        index.search(query, k, tenant=tenant, nprobe=nprobe) for tenant, query in queries
    ]
    return np.concatenate([one.ids for one in hits])

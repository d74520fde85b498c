"""How many cells to look into for a recall, found on some queries and checked on others."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import CapacityError, ConfigError
from steelyard.retrieve.index import checked_recall
from steelyard.retrieve.ivf import IVF

__all__ = ["Tuned", "recall_at", "require_queries", "tune"]

_LEAST_QUERIES = 20
_MOST_AT_ONCE = 64
"""Neighbours up to which each is compared with each: of more, the pairs fill memory."""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The fewest cells for a recall.

    Attributes:
        nprobe: cells to look into.
        rerank: candidates per neighbour that are compared again.
        recall: share of the true neighbours that were found for the queries it was chosen on.
        heldout_recall: the same for queries it was not chosen on.
        heldout_error: standard error of that.
    """

    nprobe: int
    rerank: int
    recall: float
    heldout_recall: float
    heldout_error: float


def recall_at(found: NDArray[np.int64], truth: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the share of true neighbours that were found, for each query.

    Args:
        found: numbers [Q, K], -1 for none.
        truth: numbers of the true neighbours [Q, K].

    Returns:
        Shares [Q].
    """
    if truth.shape[1] <= _MOST_AT_ONCE:
        hits = (found[:, :, None] == truth[:, None, :]) & (truth[:, None, :] >= 0)
        counts = hits.any(axis=1).sum(axis=1)
    else:
        pairs = zip(found, truth, strict=True)
        counts = np.array([np.isin(own[own >= 0], one).sum() for one, own in pairs])
    return counts / np.maximum((truth >= 0).sum(axis=1), 1)


def require_queries(count: int) -> None:
    """Refuse too few queries to choose on and to check with.

    Args:
        count: queries.

    Raises:
        ConfigError: fewer than 20.
    """
    if count < _LEAST_QUERIES:
        raise ConfigError(
            f"{count} queries to choose on and to check with",
            hint=f"give {_LEAST_QUERIES} or more",
        )


def tune(
    index: IVF,
    queries: NDArray[np.generic],
    truth: NDArray[np.int64],
    *,
    recall: float,
) -> Tuned:
    """Find the fewest cells that reach a recall.

    Args:
        index: index with vectors.
        queries: [Q, D], 20 or more; every second one is kept for the check.
        truth: their true neighbours [Q, K].
        recall: share of the K true neighbours to find, above 0 to 1.

    Returns:
        Cells, and the recall on both halves of the queries.

    Raises:
        ConfigError: too few queries, or a recall out of range.
        CapacityError: not even all cells reach it; the ceiling and what would reach it are named.
    """
    checked_recall(recall)
    require_queries(len(queries))
    chosen, held = slice(0, None, 2), slice(1, None, 2)

    def share(nprobe: int, part: slice) -> NDArray[np.float64]:
        hits = index.search(queries[part], truth.shape[1], nprobe=nprobe)
        return recall_at(hits.ids, truth[part])

    ceiling = float(share(index.nlist, chosen).mean())
    if ceiling < recall:
        raise CapacityError(
            f"all {index.nlist} cells together find {ceiling:.3f} of the neighbours, {recall:g} "
            "are wanted",
            hint="compare more candidates again, or use longer codes: whole vectors find all",
        )
    low, high = 0, index.nlist
    # Recall never falls with more cells, so that halving finds the first that suffice.
    while high - low > 1:
        middle = (low + high) // 2
        if float(share(middle, chosen).mean()) >= recall:
            high = middle
        else:
            low = middle
    unseen = share(high, held)
    return Tuned(
        nprobe=high,
        rerank=index.rerank,
        recall=float(share(high, chosen).mean()),
        heldout_recall=float(unseen.mean()),
        heldout_error=float(unseen.std(ddof=1) / np.sqrt(len(unseen))),
    )

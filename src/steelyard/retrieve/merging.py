"""Hits of several indexes made into those of one."""

from collections.abc import Sequence

import numpy as np

from steelyard.retrieve.index import Hits, Metric, SearchStats

__all__ = ["merge_hits", "without"]


def merge_hits(parts: Sequence[Hits], k: int, metric: Metric) -> Hits:
    """Return the nearest of what several indexes found.

    Args:
        parts: hits of the same queries in indexes without common numbers; at least one.
        k: neighbours that are wanted.
        metric: how distances are measured.

    Returns:
        Hits as one index of all vectors would return them: of equal distances the smaller number
        is nearer.
    """
    ids = np.concatenate([part.ids for part in parts], axis=1)
    distances = np.concatenate([part.distances for part in parts], axis=1)
    keys = distances if metric == "l2" else -distances
    # Empty places are last, also behind those that are infinitely far.
    order = np.lexsort((ids, keys, ids < 0), axis=1)[:, :k]
    stats = SearchStats(
        scanned=sum(part.stats.scanned for part in parts),
        probed=sum(part.stats.probed for part in parts),
        reranked=sum(part.stats.reranked for part in parts),
    )
    return Hits(
        ids=_padded(np.take_along_axis(ids, order, axis=1), k, -1),
        distances=_padded(
            np.take_along_axis(distances, order, axis=1), k, np.inf if metric == "l2" else -np.inf
        ),
        stats=stats,
    )


def without(hits: Hits, removed: np.ndarray, metric: Metric) -> Hits:
    """Return hits without some numbers, the rest moved up.

    Args:
        hits: what an index found.
        removed: numbers that are no more.
        metric: how distances are measured.

    Returns:
        Hits of the same width; -1 stands at the end of each row.
    """
    is_gone = np.isin(hits.ids, removed)
    if not is_gone.any():
        return hits
    order = np.argsort(is_gone, axis=1, kind="stable")
    ids = np.where(is_gone, -1, hits.ids)
    distances = np.where(is_gone, np.inf if metric == "l2" else -np.inf, hits.distances)
    return Hits(
        ids=np.take_along_axis(ids, order, axis=1),
        distances=np.take_along_axis(distances, order, axis=1).astype(np.float32),
        stats=hits.stats,
    )


def _padded(values: np.ndarray, k: int, fill: float) -> np.ndarray:
    """Return rows of k values."""
    room = k - values.shape[1]
    if not room:
        return values
    return np.pad(values, ((0, 0), (0, room)), constant_values=fill)

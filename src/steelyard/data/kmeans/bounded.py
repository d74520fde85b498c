"""Lloyd's algorithm with bounds: points whose center cannot have changed are not looked at."""

from typing import Any

import numpy as np

from steelyard.data.kmeans.distances import squared_distance
from steelyard.jit import njit

__all__ = ["bounded_lloyd"]


@njit()
def _assign(
    points: np.ndarray,
    centers: np.ndarray,
    half: np.ndarray,
    labels: np.ndarray,
    upper: np.ndarray,
    lower: np.ndarray,
    sums: np.ndarray,
    counts: np.ndarray,
) -> Any:
    """Find the nearest center of each point that may have another one than before.

    Args:
        points: [N, D].
        centers: [K, D].
        half: half the distance of each center to the nearest other one [K].
        labels: center of each point, -1 before the first pass [N]; changed.
        upper: no less than the distance to that center [N]; changed.
        lower: no more than the distance to any other [N]; changed.
        sums: sums of the points of each center [K, D]; changed.
        counts: points of each center [K]; changed.

    Returns:
        Points that changed their center.
    """
    changed = 0
    for place in range(len(points)):
        own = labels[place]
        point = points[place]
        if own >= 0:
            bound = max(half[own], lower[place])
            if upper[place] <= bound:
                continue
            upper[place] = np.sqrt(squared_distance(point, centers[own]))
            if upper[place] <= bound:
                continue
        best, near, second = 0, np.inf, np.inf
        for k in range(len(centers)):
            apart = squared_distance(point, centers[k])
            if apart < near:
                best, near, second = k, apart, near
            elif apart < second:
                second = apart
        upper[place], lower[place] = np.sqrt(near), np.sqrt(second)
        if best != own:
            changed += 1
            for d in range(len(point)):
                if own >= 0:
                    sums[own, d] -= point[d]
                sums[best, d] += point[d]
            if own >= 0:
                counts[own] -= 1
            counts[best] += 1
            labels[place] = best
    return changed


@njit()
def _loosen(labels: np.ndarray, moved: np.ndarray, upper: np.ndarray, lower: np.ndarray) -> None:
    """Widen the bounds by how far centers moved."""
    first = second = 0.0
    at = -1
    for k in range(len(moved)):
        if moved[k] > first:
            first, second, at = moved[k], first, k
        elif moved[k] > second:
            second = moved[k]
    for place in range(len(labels)):
        own = labels[place]
        upper[place] += moved[own]
        lower[place] -= second if own == at else first


def bounded_lloyd(
    points: np.ndarray, centers: np.ndarray, metric: str, iterations: int, tolerance: float
) -> tuple[np.ndarray, int]:
    """Move centers to the means of their points until they hardly move.

    Args:
        points: [N, D].
        centers: first centers [K, D].
        metric: "euclidean".
        iterations: most passes.
        tolerance: passes end when all centers together moved by less than this share of the
            variance of the points.

    Returns:
        Centers, and passes.

    Source: Hamerly 2010, "Making k-means even faster", algorithm 1.
    """
    count = len(points)
    centers = centers.astype(np.float64)
    labels, upper, lower = np.full(count, -1, np.int32), np.empty(count), np.empty(count)
    sums, counts = np.zeros_like(centers), np.zeros(len(centers), np.int64)
    limit = tolerance * float(np.var(points[:: max(count // 10_000, 1)], axis=0).sum())
    for done in range(1, iterations + 1):
        gaps = ((centers[:, None] - centers[None]) ** 2).sum(axis=2)
        np.fill_diagonal(gaps, np.inf)
        half = np.sqrt(gaps.min(axis=1)) / 2
        changed = _assign(points, centers, half, labels, upper, lower, sums, counts)
        moved_to = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centers)
        empty = np.flatnonzero(counts == 0)
        # A center that lost all points takes the one that is served worst.
        moved_to[empty] = points[np.argsort(-upper, kind="stable")[: len(empty)]]
        moved = np.sqrt(((moved_to - centers) ** 2).sum(axis=1))
        centers = moved_to
        if not changed or float((moved**2).sum()) <= limit:
            return centers.astype(points.dtype), done
        _loosen(labels, moved, upper, lower)
    return centers.astype(points.dtype), iterations

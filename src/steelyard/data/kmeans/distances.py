"""Distances of points to centers."""

from typing import Any

import numpy as np

from steelyard.errors import DataError
from steelyard.jit import njit

__all__ = ["nearest", "squared_distance", "unit_rows"]

_BLOCK_VALUES = 1 << 19
"""Distances of a block: with two megabytes it stays in the near caches, and in memory that the
allocator keeps instead of mapping it anew."""


def nearest(points: np.ndarray, centers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the nearest center of each point, a block of points at a time.

    Args:
        points: [N, D].
        centers: [K, D].

    Returns:
        Centers int64 [N], and squared distances float64 [N].
    """
    block = max(1, _BLOCK_VALUES // len(centers))
    labels = np.empty(len(points), dtype=np.int64)
    distances = np.empty(len(points))
    norms = np.einsum("kd,kd->k", centers, centers)
    for start in range(0, len(points), block):
        part = points[start : start + block]
        # |p - c|^2 without |p|^2, which does not change which center is nearest.
        partial = norms - 2 * part @ centers.T
        chosen = partial.argmin(axis=1)
        labels[start : start + block] = chosen
        found = partial[np.arange(len(part)), chosen] + np.einsum("nd,nd->n", part, part)
        distances[start : start + block] = np.maximum(found, 0)
    return labels, distances


def unit_rows(points: np.ndarray) -> np.ndarray:
    """Scale rows to length 1.

    Args:
        points: [N, D].

    Returns:
        float64 [N, D].

    Raises:
        DataError: a row is 0 and has no direction.
    """
    lengths = np.linalg.norm(points, axis=1)
    if not lengths.all():
        raise DataError(
            f"point {int(lengths.argmin())} has length 0 and so no direction",
            hint="leave it out, or use the euclidean metric",
        )
    return points / lengths[:, None]


@njit(fastmath={"reassoc", "contract"})
def squared_distance(one: np.ndarray, other: np.ndarray) -> Any:
    """Return the squared distance of two points, in compiled code.

    Args:
        one: [D].
        other: [D].

    Returns:
        The sum of squared differences.
    """
    total = 0.0
    for d in range(len(one)):
        step = one[d] - other[d]
        total += step * step
    return total

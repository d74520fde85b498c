"""Nearest rows of a sample, by comparing with all of them."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["nearest_rows"]

_BLOCK_VALUES = 1 << 22


def nearest_rows(
    kept: NDArray[np.float32], asked: NDArray[np.float32], count: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Find the nearest rows by Euclidean distance, comparing with all.

    Args:
        kept: rows to find [M, D].
        asked: rows whose neighbours are wanted [N, D].
        count: neighbours K, 1 to M.

    Returns:
        Places of neighbours, the nearest first, and squared distances, both [N, K].
    """
    places = np.empty((len(asked), count), np.int64)
    distances = np.empty((len(asked), count))
    norms = np.einsum("nd,nd->n", kept, kept)
    step = max(_BLOCK_VALUES // len(kept), 1)
    for first in range(0, len(asked), step):
        part = asked[first : first + step]
        apart = norms - 2 * part @ kept.T
        found = np.argpartition(apart, count - 1, axis=1)[:, :count]
        near = np.take_along_axis(apart, found, axis=1)
        order = np.argsort(near, axis=1, kind="stable")
        places[first : first + step] = np.take_along_axis(found, order, axis=1)
        own = np.einsum("nd,nd->n", part, part)[:, None]
        distances[first : first + step] = np.take_along_axis(near, order, axis=1) + own
    return places, np.maximum(distances, 0.0)

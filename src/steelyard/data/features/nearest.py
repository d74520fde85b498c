"""Nearest rows of a sample, by comparing with all of them."""

import numpy as np
from numpy.typing import NDArray

from steelyard.jit import njit

__all__ = ["nearest_rows"]

_BLOCK_VALUES = 1 << 22


@njit()
def _least(values: np.ndarray, places: np.ndarray, least: np.ndarray) -> None:
    """Find the least values of each line, in order; of equal ones the first.

    Args:
        values: [N, M].
        places: their places [N, K]; overwritten.
        least: the values [N, K]; overwritten.
    """
    count = places.shape[1]
    for row in range(len(values)):
        held = 0
        for at in range(values.shape[1]):
            value = values[row, at]
            if held == count and value >= least[row, count - 1]:
                continue
            place = min(held, count - 1)
            while place > 0 and least[row, place - 1] > value:
                least[row, place], places[row, place] = (
                    least[row, place - 1],
                    places[row, place - 1],
                )
                place -= 1
            least[row, place], places[row, place] = value, at
            held = min(held + 1, count)


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
        _least(apart, places[first : first + step], distances[first : first + step])
        distances[first : first + step] += np.einsum("nd,nd->n", part, part)[:, None]
    return places, np.maximum(distances, 0.0)

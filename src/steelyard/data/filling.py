"""Best fit of examples into rows with room in several streams, compiled.

It stands in a file of its own, so that it is compiled anew only when it changes.
"""

import numpy as np

from steelyard.jit import njit

__all__ = ["best_fit"]


@njit()
def best_fit(sizes: np.ndarray, order: np.ndarray, limits: np.ndarray) -> tuple[np.ndarray, int]:
    """Put each example into the row with the least room left in which it fits.

    Args:
        sizes: int32 [N, S], none above its limit.
        order: order in which examples are placed, int64 [N].
        limits: room of an empty row, int64 [S].

    Returns:
        Row of each example, int64 [N], and the number of rows.
    """
    count, streams = sizes.shape
    room = np.empty((count, streams), dtype=np.int64)
    rows = np.empty(count, dtype=np.int64)
    used = 0
    for example in order:
        best = -1
        least = np.int64(1) << 62
        for row in range(used):
            left = 0
            for stream in range(streams):
                rest = room[row, stream] - sizes[example, stream]
                if rest < 0:
                    left = -1
                    break
                left += rest
            if left >= 0 and left < least:
                best, least = row, left
                if left == 0:
                    break
        if best < 0:
            best = used
            room[best] = limits
            used += 1
        for stream in range(streams):
            room[best, stream] -= sizes[example, stream]
        rows[example] = best
    return rows, used

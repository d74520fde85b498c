"""The controller's product with every past token, compiled with numba."""

import numba
import numpy as np

__all__ = ["score_past"]


@numba.njit(fastmath=True, cache=True, nogil=True)
def score_past(
    keys: np.ndarray, rows: np.ndarray, lengths: np.ndarray, queries: np.ndarray, by_distance: np.ndarray, out: np.ndarray
) -> None:
    """Score all tokens that requests have read.

    A half-precision number becomes a single-precision one of a 2**-112 times smaller value by moving its bits; the factor is put back
    once per product. Infinite and not-a-number keys are not expected.

    Args:
        keys: uint16 [B, T, P] bits of half-precision keys.
        rows: int64 [F] requests to score.
        lengths: int64 [B] tokens read.
        queries: float32 [F, P].
        by_distance: float32 [T] addend by distance.
        out: float32 [B, T], overwritten for `rows` up to their lengths.
    """
    width = keys.shape[2]
    bits = np.empty(width, np.uint32)
    floats = bits.view(np.float32)
    scale = np.float32(2.0**112)
    for index in range(len(rows)):
        row = rows[index]
        length = lengths[row]
        query = queries[index]
        for token in range(length):
            key = keys[row, token]
            for column in range(width):
                half = np.uint32(key[column])
                bits[column] = ((half & np.uint32(0x8000)) << np.uint32(16)) | ((half & np.uint32(0x7FFF)) << np.uint32(13))
            total = np.float32(0.0)
            for column in range(width):
                total += query[column] * floats[column]
            out[row, token] = total * scale + by_distance[length - 1 - token]

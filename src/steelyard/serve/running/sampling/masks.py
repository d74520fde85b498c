"""Rows held to what a grammar allows, compiled with numba."""

import numpy as np

from steelyard.jit import njit

__all__ = ["forbid"]


@njit()
def forbid(logits: np.ndarray, rows: np.ndarray, masks: np.ndarray) -> None:
    """Set the logits whose bit is 0 to minus infinity.

    Args:
        logits: float32 [R, V], changed in place.
        rows: int64 [N] rows to change.
        masks: int32 [N, ceil(V / 32)]; bit t % 32 of word t // 32 allows token t.
    """
    for at in range(len(rows)):
        row = logits[rows[at]]
        for word in range(masks.shape[1]):
            bits = masks[at, word]
            if bits != -1:  # most words of a loose grammar allow all 32 tokens
                for token in range(word * 32, min(word * 32 + 32, len(row))):
                    if not (bits >> (token & 31)) & 1:
                        row[token] = -np.inf

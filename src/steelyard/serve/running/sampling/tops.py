"""Sums over the vocabulary and its largest logits, compiled with numba."""

import numpy as np

from steelyard.jit import njit
from steelyard.serve.running.sampling.draws import weigh

__all__ = ["log_totals", "top_logits"]


@njit()
def log_totals(logits: np.ndarray, peaks: np.ndarray, rows: np.ndarray, totals: np.ndarray) -> None:
    """Write log(sum(exp(logits))) of rows.

    Args:
        logits: float32 [R, V].
        peaks: float32 [R], largest logit of each row.
        rows: int64 [N] rows to add up.
        totals: float64 [N], overwritten.
    """
    weights = np.empty(logits.shape[1], np.float32)
    for at in range(len(rows)):
        peak = peaks[rows[at]]
        totals[at] = peak + np.log(weigh(logits[rows[at]], peak, 1.0, weights))


@njit()
def top_logits(
    logits: np.ndarray, rows: np.ndarray, tokens: np.ndarray, values: np.ndarray
) -> None:
    """Write the K largest logits of rows, largest first, equal ones by rising token.

    Where fewer than K are above minus infinity, the rest is token -1 and minus infinity.

    Args:
        logits: float32 [R, V].
        rows: int64 [N] rows to look at.
        tokens: int64 [N, K], overwritten.
        values: float32 [N, K], overwritten.
    """
    width = tokens.shape[1]
    for at in range(len(rows)):
        ids, best = tokens[at], values[at]
        ids[:] = -1
        best[:] = -np.inf
        row = logits[rows[at]]
        for token in range(len(row)):
            value = row[token]
            # Sorting into a short list beats a heap: hardly any token gets past this comparison.
            if value > best[width - 1]:
                place = width - 1
                while place > 0 and value > best[place - 1]:
                    best[place], ids[place] = best[place - 1], ids[place - 1]
                    place -= 1
                best[place], ids[place] = value, token

"""The controller's arithmetic, compiled with numba."""

import numpy as np

from steelyard.jit import njit

__all__ = ["advance", "best_released", "score_past"]


@njit(fastmath=True)
def score_past(
    keys: np.ndarray,
    rows: np.ndarray,
    lengths: np.ndarray,
    queries: np.ndarray,
    by_distance: np.ndarray,
    out: np.ndarray,
) -> None:
    """Score all tokens that requests have read.

    A half-precision number becomes a single-precision one of a 2**-112 times smaller value by
    moving its bits; the factor is put back once per product. Infinite and not-a-number keys are not
    expected.

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
                bits[column] = ((half & np.uint32(0x8000)) << np.uint32(16)) | (
                    (half & np.uint32(0x7FFF)) << np.uint32(13)
                )
            total = np.float32(0.0)
            for column in range(width):
                total += query[column] * floats[column]
            out[row, token] = total * scale + by_distance[length - 1 - token]


@njit(fastmath=True)
def advance(
    hidden: np.ndarray,
    rows: np.ndarray,
    inputs: np.ndarray,
    recurrent: np.ndarray,
    bias: np.ndarray,
    key: np.ndarray,
    keys: np.ndarray,
) -> None:
    """Move the hidden states of some requests one token on, and project them.

    Args:
        hidden: float32 [B, h], overwritten for `rows`.
        rows: int64 [F], each once.
        inputs: float32 [F, 3h] input part of reset, update and new gate.
        recurrent: float32 [3h, h].
        bias: float32 [3h] of the recurrent part.
        key: float32 [P, h].
        keys: float32 [F, P], overwritten with the projected states.
    """
    width = hidden.shape[1]
    back = np.empty(3 * width, np.float32)
    for index in range(len(rows)):
        state = hidden[rows[index]]
        for gate in range(3 * width):
            total = bias[gate]
            for column in range(width):
                total += recurrent[gate, column] * state[column]
            back[gate] = total
        given = inputs[index]
        for unit in range(width):
            reset = np.float32(1.0) / (np.float32(1.0) + np.exp(-(given[unit] + back[unit])))
            update = np.float32(1.0) / (
                np.float32(1.0) + np.exp(-(given[width + unit] + back[width + unit]))
            )
            new = np.tanh(given[2 * width + unit] + reset * back[2 * width + unit])
            # (1 - update) * new + update * old, with one product less.
            state[unit] = new + update * (state[unit] - new)
        for place in range(len(key)):
            total = np.float32(0.0)
            for column in range(width):
                total += key[place, column] * state[column]
            keys[index, place] = total


@njit()
def best_released(
    scores: np.ndarray,
    cached: np.ndarray,
    lengths: np.ndarray,
    floors: np.ndarray,
    best: np.ndarray,
) -> None:
    """Find each request's released tokens of highest score above a floor.

    Args:
        scores: float32 [B, T].
        cached: bool [B, T].
        lengths: int64 [B] tokens seen.
        floors: float32 [B] scores to exceed, infinity for none.
        best: int64 [B, R], overwritten with positions, best first, then -1.
    """
    count = best.shape[1]
    highest = np.empty(count, np.float32)
    for row in range(len(scores)):
        best[row] = -1
        highest[:] = floors[row]
        if floors[row] == np.inf:
            continue
        for token in range(lengths[row]):
            score = scores[row, token]
            # Hardly any token gets past this, so the insertion below need not be quick.
            if score <= highest[count - 1] or cached[row, token]:
                continue
            place = count - 1
            while place > 0 and highest[place - 1] < score:
                highest[place] = highest[place - 1]
                best[row, place] = best[row, place - 1]
                place -= 1
            highest[place] = score
            best[row, place] = token

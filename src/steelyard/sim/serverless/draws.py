"""Random numbers by counter, so that a start draws the same under every policy and engine."""

import math

import numpy as np
from numpy.typing import NDArray

from steelyard.jit import njit_borrowing

__all__ = ["GRID", "draw_parts", "draw_starts", "quantile_at", "uniform"]

GRID = 200
"""Intervals of a curve of quantiles."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@njit_borrowing()
def uniform(seed: int, stream: int, index: int, lane: int) -> float:
    """Return a number in (0, 1) that depends on nothing but the four integers.

    Source: the finalizer of SplitMix64 (Steele et al. 2014), once per integer.
    """
    state = np.uint64(seed)
    for value in (stream, index, lane):
        state = (state ^ np.uint64(value)) + _GOLDEN
        state = (state ^ (state >> np.uint64(30))) * _MIX_1
        state = (state ^ (state >> np.uint64(27))) * _MIX_2
        state = state ^ (state >> np.uint64(31))
    # 52 bits and a half: 0 and 1 never come.
    return (float(state >> np.uint64(12)) + 0.5) / 4503599627370496.0


@njit_borrowing()
def _normal(seed: int, stream: int, index: int, lane: int) -> float:
    """Return a standard normal number (Box and Muller), from two lanes."""
    radius = math.sqrt(-2.0 * math.log(uniform(seed, stream, index, 2 * lane)))
    return radius * math.cos(2.0 * math.pi * uniform(seed, stream, index, 2 * lane + 1))


@njit_borrowing()
def quantile_at(curve: NDArray[np.float64], level: float) -> float:
    """Return the quantile of a curve [201] at a level in [0, 1]."""
    place = level * GRID
    left = min(int(place), GRID - 1)
    return curve[left] + (place - left) * (curve[left + 1] - curve[left])


@njit_borrowing()
def draw_parts(
    curves: NDArray[np.float64],
    shares: NDArray[np.float64],
    factor: NDArray[np.float64],
    seed: int,
    stream: int,
    index: int,
    out: NDArray[np.float64],
) -> float:
    """Draw the parts of one start, coupled by a Gaussian copula.

    Args:
        curves: quantiles [parts, 201], seconds.
        shares: fraction of starts that have the part, [parts].
        factor: lower factor of the correlations of their normal scores, [parts, parts].
        seed: seed of the run.
        stream: whose starts are drawn, such as the function.
        index: number of the start in the stream.
        out: takes the seconds, [parts].

    Returns:
        Level of a further uniform draw, which shares the last lane of no part.
    """
    for part in range(len(shares)):
        out[part] = _normal(seed, stream, index, part)
    # A score needs its own normal and those before it: from the last part on none is lost.
    for part in range(len(shares) - 1, -1, -1):
        score = 0.0
        for other in range(part + 1):
            score += factor[part, other] * out[other]
        level = 0.5 * math.erfc(-score / math.sqrt(2.0))
        # The part is missing below its share's complement, so that its absence is coupled too.
        missing = 1.0 - shares[part]
        out[part] = 0.0
        if level >= missing and shares[part] > 0.0:
            out[part] = quantile_at(curves[part], (level - missing) / shares[part])
    return uniform(seed, stream, index, 2 * len(shares))


@njit_borrowing()
def draw_starts(
    curves: NDArray[np.float64],
    shares: NDArray[np.float64],
    factor: NDArray[np.float64],
    seed: int,
    stream: int,
    out: NDArray[np.float64],
) -> None:
    """Draw the first starts of a stream into `out` [starts, parts]; else as `draw_parts`."""
    for row in range(len(out)):
        draw_parts(curves, shares, factor, seed, stream, row, out[row])

"""The bottom of a curve of losses over log sizes, for many noisy copies of the curve at once."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.laws.fitting.terms import Array

__all__ = ["Edge", "Method", "Valleys", "curve_noise", "valleys"]

Edge = Literal["", "low", "high"]
Method = Literal["interpolation", "parabola"]

_ROUGHNESS_POINTS = 7
_LONG = 100
"""Sizes from which on only the spline around the least point of each copy is made: that of all
points would take gigabytes."""
_BESIDE = 3
"""Points on either side of the least one that the spline next to it depends on."""


@dataclass(frozen=True, slots=True)
class Valleys:
    """Bottoms of S copies of one curve.

    Attributes:
        size: log size of the least loss, NaN where there is none, [S].
        loss: log loss there; the least of the points where there is none, [S].
        edge: -1 or 1 where the least of the points is the first or last one, 0 otherwise, [S].
        is_extended: whether `size` comes from a parabola at an edge, [S].
    """

    size: Array
    loss: Array
    edge: NDArray[np.int64]
    is_extended: NDArray[np.bool_]


def valleys(size: Array, loss: Array, method: Method, window: int) -> Valleys:
    """Find the bottom of each copy.

    Args:
        size: log sizes, rising, [m].
        loss: log losses, [S, m].
        method: "interpolation" searches Akima's spline beside the least point; "parabola" fits the
            points around it.
        window: points of the parabola, fewer when the curve has fewer.

    Returns:
        The S bottoms; where the least point is at an edge, the vertex of the parabola through the
        three points there, if it lies no farther outside than the last two sizes are apart.
    """
    lowest = loss.argmin(axis=1)
    rows = np.arange(len(loss))
    edge = np.where(lowest == 0, -1, np.where(lowest == len(size) - 1, 1, 0))
    found, depth = np.full(len(loss), np.nan), loss[rows, lowest].copy()
    if len(size) < 3:
        return Valleys(found, depth, edge, np.zeros(len(loss), dtype=bool))
    inside = np.flatnonzero(edge == 0)
    if len(inside):
        found[inside], depth[inside] = (
            _spline_bottom(size, loss[inside])
            if method == "interpolation"
            else _parabola_bottom(size, loss[inside], window)
        )
    for side, part, gap in (
        (-1, slice(0, 3), size[1] - size[0]),
        (1, slice(-3, None), size[-1] - size[-2]),
    ):
        outside = np.flatnonzero(edge == side)
        if len(outside):
            vertex, least = _vertex(size[part], loss[outside, part])
            # A vertex farther out than the sizes are apart says only that the loss still falls.
            near = np.where(side < 0, vertex >= size[0] - gap, vertex <= size[-1] + gap)
            found[outside] = np.where(near, vertex, np.nan)
            depth[outside] = np.where(near, least, depth[outside])
    return Valleys(found, depth, edge, np.isfinite(found) & (edge != 0))


def curve_noise(curves: list[tuple[Array, Array]]) -> float | None:
    """Measure the noise of losses by the roughness of the curves near their bottoms.

    A cubic (a parabola below six points) is fitted to the up to seven points around the least one;
    what it leaves is noise.

    Args:
        curves: log sizes and log losses of each, [m] and [m].

    Returns:
        Standard deviation, from the median of the curves' variances; None when no curve has a point
        to spare.
    """
    variances = []
    for size, loss in curves:
        count = min(_ROUGHNESS_POINTS, len(size))
        degree = 3 if count >= 6 else 2
        if count <= degree + 1:
            continue
        start = int(np.clip(loss.argmin() - count // 2, 0, len(size) - count))
        near = slice(start, start + count)
        middle = size[near].mean()
        left = loss[near] - np.polyval(
            np.polyfit(size[near] - middle, loss[near], degree), size[near] - middle
        )
        variances.append(float(left @ left) / (count - degree - 1))
    return max(float(np.sqrt(np.median(variances))), 1e-6) if variances else None


def _spline_bottom(size: Array, loss: Array) -> tuple[Array, Array]:
    """Search Akima's spline in the intervals beside the least point, [S] and [S]."""
    rows = np.arange(len(loss))
    lowest = loss.argmin(axis=1)
    best, depth = size[lowest].copy(), loss[rows, lowest].copy()
    if len(size) < _LONG:
        from scipy.interpolate import Akima1DInterpolator

        pieces = np.asarray(Akima1DInterpolator(size, loss.T).c)
        first = np.zeros_like(lowest)
    else:
        first = np.clip(lowest - _BESIDE, 0, len(size) - 2 * _BESIDE - 1)
        window = first[:, None] + np.arange(2 * _BESIDE + 1)
        pieces = _akima(size[window], loss[rows[:, None], window])
    for interval in (lowest - 1, lowest):
        cubic, square, linear, constant = pieces[:, interval - first, rows]
        width = size[interval + 1] - size[interval]
        for step in _stationary(3 * cubic, 2 * square, linear):
            value = ((cubic * step + square) * step + linear) * step + constant
            better = (step > 0) & (step < width) & (value < depth)
            best = np.where(better, size[interval] + step, best)
            depth = np.where(better, value, depth)
    return best, depth


def _akima(x: Array, y: Array) -> Array:
    """Return Akima's cubics of S curves with positions of their own.

    Args:
        x: rising positions, [S, k].
        y: values, [S, k].

    Returns:
        Coefficients of each interval, from the cubic one to the constant, [4, k - 1, S].

    Source: Akima 1970 (Journal of the ACM 17), with straight lines beyond the ends.
    """
    step = np.diff(x, axis=1)
    slope = np.diff(y, axis=1) / step
    ends = [2 * slope[:, :1] - slope[:, 1:2], 2 * slope[:, -1:] - slope[:, -2:-1]]
    far = [2 * ends[0] - slope[:, :1], 2 * ends[1] - slope[:, -1:]]
    chords = np.concatenate([far[0], ends[0], slope, ends[1], far[1]], axis=1)
    bend = np.abs(np.diff(chords, axis=1))
    right, left = bend[:, 2:], bend[:, :-2]
    with np.errstate(invalid="ignore"):
        mixed = (right * chords[:, 1:-2] + left * chords[:, 2:-1]) / (right + left)
    # Where both sides are straight the weights vanish and any mean of the chords will do.
    tangent = np.where(right + left > 0, mixed, (chords[:, 1:-2] + chords[:, 2:-1]) / 2)
    begin, end = tangent[:, :-1], tangent[:, 1:]
    cubic = (begin + end - 2 * slope) / step**2
    square = (3 * slope - 2 * begin - end) / step
    return np.stack([part.T for part in (cubic, square, begin, y[:, :-1])])


def _stationary(square: Array, linear: Array, constant: Array) -> tuple[Array, Array]:
    """Solve square t^2 + linear t + constant = 0; -1 where there is no root."""
    # Adding numbers of one sign avoids cancellation; the other root follows from the product of
    # both. -1 lies outside of every interval, so a missing root is never taken.
    with np.errstate(invalid="ignore", divide="ignore"):
        half = -0.5 * (linear + np.copysign(np.sqrt(linear**2 - 4 * square * constant), linear))
        first, second = half / square, constant / half
    return np.where(np.isfinite(first), first, -1.0), np.where(np.isfinite(second), second, -1.0)


def _parabola_bottom(size: Array, loss: Array, window: int) -> tuple[Array, Array]:
    """Fit a parabola around the least point; NaN where its vertex lies outside, [S] and [S]."""
    count = min(window, len(size))
    start = np.clip(loss.argmin(axis=1) - count // 2, 0, len(size) - count)
    best, depth = np.full(len(loss), np.nan), loss.min(axis=1)
    for first in np.unique(start):
        rows, part = np.flatnonzero(start == first), slice(first, first + count)
        vertex, least = _vertex(size[part], loss[rows, part])
        inside = (vertex >= size[first]) & (vertex <= size[first + count - 1])
        best[rows] = np.where(inside, vertex, np.nan)
        depth[rows] = np.where(inside, least, depth[rows])
    return best, depth


def _vertex(size: Array, loss: Array) -> tuple[Array, Array]:
    """Fit parabolas to losses [S, m]; return the lowest points, NaN where there are none."""
    middle = size.mean()
    square, linear, constant = np.polyfit(size - middle, loss.T, 2)
    with np.errstate(invalid="ignore", divide="ignore"):
        step = np.where(square > 0, -linear / (2 * square), np.nan)
    return middle + step, constant + 0.5 * linear * step

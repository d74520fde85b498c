"""The bottom of a valley of losses: by a local polynomial, or of many noisy copies at once."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import FitError
from steelyard.laws.fitting.estimate import student, tails
from steelyard.laws.fitting.terms import Array

__all__ = [
    "Edge",
    "LocalPolynomial",
    "Method",
    "Valleys",
    "choose_polynomial",
    "curve_noise",
    "valleys",
]

Edge = Literal["", "low", "high"]
Method = Literal["interpolation", "parabola"]

_ROUGHNESS_POINTS = 7
_LONG = 100
"""Sizes from which on only the spline around the least point of each copy is made: that of all
points would take gigabytes."""
_BESIDE = 3
"""Points on either side of the least one that the spline next to it depends on."""
_DRAWS = 2000
_FEWEST_CUBIC = 6


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


@dataclass(frozen=True, slots=True)
class LocalPolynomial:
    """A quadratic or cubic of the loss around a coordinate.

    Attributes:
        center: coordinate where the expansion is.
        coefficients: constant, slope, half the second derivative, and for a cubic a sixth of the
            third, [3] or [4].
        covariance: covariance of the coefficients, from the residual variance, [K, K].
        noise: residual standard deviation, corrected for the coefficients.
        freedom: points minus coefficients.
        offset: distance of the minimum from the center; NaN when there is none.
    """

    center: float
    coefficients: Array
    covariance: Array
    noise: float
    freedom: int
    offset: float

    @classmethod
    def fitted(
        cls, position: Array, loss: Array, weight: Array, center: float, degree: int
    ) -> "LocalPolynomial":
        """Fit by weighted least squares.

        Args:
            position: coordinates, [n], more than `degree` + 1.
            loss: [n].
            weight: positive, [n].
            center: coordinate to expand around.
            degree: 2 or 3.

        Returns:
            The polynomial.
        """
        root = np.sqrt(weight / weight.mean())
        powers = np.vander(position - center, degree + 1, increasing=True)
        scaled = powers * root[:, None]
        coefficients = np.linalg.lstsq(scaled, loss * root, rcond=None)[0]
        freedom = len(position) - degree - 1
        variance = float((((loss - powers @ coefficients) * root) ** 2).sum()) / freedom
        covariance = variance * np.linalg.inv(scaled.T @ scaled)
        return cls(
            center,
            coefficients,
            covariance,
            math.sqrt(variance),
            freedom,
            float(_minimum(coefficients[None])[0]),
        )

    @property
    def least(self) -> float:
        """Loss at the minimum."""
        return float(np.polyval(self.coefficients[::-1], self.offset))

    @property
    def curvature(self) -> float:
        """Half the second derivative at the minimum."""
        return float(self.coefficients[2] + 3 * self.skew * self.offset)

    @property
    def skew(self) -> float:
        """Cubic coefficient; 0 for a quadratic."""
        return float(self.coefficients[3]) if len(self.coefficients) == 4 else 0.0

    @property
    def sd(self) -> float:
        """Standard deviation of the minimum's place by the delta method."""
        slope = (
            -(self.offset ** np.arange(len(self.coefficients) - 1))
            * np.arange(1, len(self.coefficients))
            / (2 * self.curvature)
        )
        return math.sqrt(max(float(slope @ self.covariance[1:, 1:] @ slope), 0.0))

    def delta_interval(self, level: float) -> tuple[float, float]:
        """Return the symmetric interval of the minimum's coordinate by Student's t."""
        half = student(self.freedom, level) * self.sd
        return self.center + self.offset - half, self.center + self.offset + half

    def bootstrap_interval(
        self, level: float, generator: np.random.Generator
    ) -> tuple[float, float]:
        """Return the interval of the minimum's coordinate over redrawn noise of redrawn size."""
        size = np.sqrt(self.freedom / generator.chisquare(self.freedom, _DRAWS))
        root = np.linalg.cholesky(self.covariance + 1e-30 * np.eye(len(self.covariance)))
        drawn = self.coefficients + size[:, None] * (
            generator.standard_normal((_DRAWS, len(self.coefficients))) @ root.T
        )
        # A draw without a minimum has its optimum anywhere: such draws go to both ends in turn, so
        # that many of them open the interval to both sides.
        offset = _minimum(drawn)
        lost = np.where(np.arange(_DRAWS) % 2, math.inf, -math.inf)
        ordered = np.sort(np.where(np.isnan(offset), lost, offset))
        low, high = (float(ordered[round(tail * (_DRAWS - 1))]) for tail in tails(level))
        return self.center + low, self.center + high


def _minimum(coefficients: Array) -> Array:
    """Return the offset where each polynomial [S, K] is least; NaN where it has no minimum, [S]."""
    slope, bend = coefficients[:, 1], coefficients[:, 2]
    cubic = coefficients[:, 3] if coefficients.shape[1] == 4 else np.zeros_like(bend)
    root = bend**2 - 3 * slope * cubic
    # This form of the root is exact for a quadratic too, where the cubic coefficient is 0.
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(
            (root > 0) & (bend + np.sqrt(root) > 0), -slope / (bend + np.sqrt(root)), np.nan
        )


def choose_polynomial(position: Array, loss: Array, weight: Array, local: int) -> LocalPolynomial:
    """Fit the points around the least loss.

    A quadratic, or from six points on a cubic if that predicts left-out points better.

    Args:
        position: coordinates, rising, [n], at least 4, the least loss not at an end.
        loss: [n].
        weight: positive, [n].
        local: points used; fewer when there are fewer.

    Returns:
        The polynomial, whose minimum lies among the points.

    Raises:
        FitError: the points do not curve upwards around the least one.
    """
    best = int(loss.argmin())
    begin = max(0, min(best - local // 2, len(loss) - local))
    place, value, mass = (column[begin : begin + local] for column in (position, loss, weight))
    found = []
    for degree in (2, 3) if len(place) >= _FEWEST_CUBIC else (2,):
        curve = LocalPolynomial.fitted(place, value, mass, float(position[best]), degree)
        if place[0] <= curve.center + curve.offset <= place[-1] and curve.curvature > 0:
            found.append((_left_out(place, value, mass, degree), curve))
    if not found:
        raise FitError(
            f"the {len(place)} losses around the least one do not curve upwards, so they have no "
            f"optimum",
            hint="widen the grid, or run more seeds: the noise hides the valley",
        )
    return min(found, key=lambda pair: pair[0])[1]


def _left_out(position: Array, loss: Array, weight: Array, degree: int) -> float:
    """Return the weighted mean squared error of the points, each predicted by a fit without it."""
    root = np.sqrt(weight)
    powers = np.vander(position - position.mean(), degree + 1, increasing=True) * root[:, None]
    # Leaving a point out changes its residual by 1 / (1 - leverage); nothing is fitted again.
    hat = powers @ np.linalg.pinv(powers)
    errors = (loss * root - hat @ (loss * root)) / np.maximum(1 - np.diagonal(hat), 1e-12)
    return float((errors**2).mean())

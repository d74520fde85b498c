"""A weighted polynomial of few points around a minimum, and how well they place it."""

import math
from dataclasses import dataclass

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.fitting.estimate import student, tails
from steelyard.laws.fitting.terms import Array

__all__ = ["LocalPolynomial", "choose_polynomial"]

_DRAWS = 2000
_FEWEST_CUBIC = 6


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

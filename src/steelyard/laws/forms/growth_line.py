"""The trend line of a growth: its slope, crossings, forecasts, and their intervals.

Intervals are Student's t by default, exact for normal noise and good down to three points;
"bootstrap" takes the percentiles of the resampled fits.
"""

import math
import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError, SteelyardWarning
from steelyard.laws.fitting.estimate import Estimate, band, student
from steelyard.laws.fitting.fitted import Fit, Prediction
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.growth import Growth

__all__ = [
    "Line",
    "crossing_year",
    "doubling_time_years",
    "forecast_growth",
    "growth_in",
    "growth_per_two_years",
    "growth_per_year",
    "is_far",
    "last_residual",
    "line_of",
    "years_to_gain",
]

Intervals = Literal["t", "bootstrap"]
_FAR_SPANS = 2.0


@dataclass(frozen=True, slots=True)
class Line:
    """The straight line of the log value over the year, with what its intervals need.

    Attributes:
        slope: slope of ln value per year.
        center: weighted mean year of the points.
        level: ln value at the center.
        noise: standard deviation of ln value around the line.
        slope_sd: standard error of the slope.
        level_sd: standard error of the level.
        freedom: degrees of freedom, points less two.
        first: earliest year.
        last: latest year.
    """

    slope: float
    center: float
    level: float
    noise: float
    slope_sd: float
    level_sd: float
    freedom: int
    first: float
    last: float

    def quantile(self, level: float) -> float:
        """Return Student's t whose symmetric interval holds `level` of the probability."""
        return student(self.freedom, level)


def line_of(fit: Fit) -> Line:
    """Return the straight line behind a fit of `growth`.

    Args:
        fit: fit of `growth`, with its points.

    Returns:
        Slope, level and their standard errors.

    Raises:
        FitError: a fit of another law, or one without points.
    """
    term = _term(fit)
    weights = fit.weights / fit.weights[fit.weights > 0].mean() if len(fit.weights) else np.zeros(0)
    freedom = int((weights > 0).sum()) - 2
    if freedom < 1:
        raise FitError(
            "this growth has no points to take intervals from", hint="fit it with laws.fit_growth"
        )
    years = fit.inputs["year"]
    total = float(weights.sum())
    center = float(weights @ years) / total
    noise = float(np.sqrt(weights @ fit.residuals**2 / freedom))
    spread = float(weights @ (years - center) ** 2)
    slope = float(fit.theta[1]) / term.period_years
    level = float(fit.theta[0]) + slope * (center - term.year0)
    used = years[weights > 0]
    return Line(
        slope,
        center,
        level,
        noise,
        noise / math.sqrt(spread),
        noise / math.sqrt(total),
        freedom,
        float(used.min()),
        float(used.max()),
    )


def growth_per_year(fit: Fit, level: float = 0.95, intervals: Intervals = "t") -> Estimate:
    """Return the factor by which the value grows in a year.

    Args:
        fit: fit of `growth`.
        level: probability inside the interval, 0..1.
        intervals: "t" for Student's, "bootstrap" for percentiles of the resampled fits.

    Returns:
        The factor; 1 is no growth, below 1 it shrinks.
    """
    return growth_in(fit, 1.0, level, intervals)


def growth_per_two_years(fit: Fit, level: float = 0.95, intervals: Intervals = "t") -> Estimate:
    """Return the factor by which the value grows in two years; see `growth_per_year`."""
    return growth_in(fit, 2.0, level, intervals)


def growth_in(fit: Fit, years: float, level: float = 0.95, intervals: Intervals = "t") -> Estimate:
    """Return the factor by which the value grows in some years; see `growth_per_year`."""
    slope = _slope(fit, level, intervals)
    return Estimate(*(float(np.exp(years * end)) for end in (slope.value, slope.low, slope.high)))


def doubling_time_years(fit: Fit, level: float = 0.95, intervals: Intervals = "t") -> Estimate:
    """Return the years in which the value doubles.

    Args:
        fit: fit of `growth`.
        level: probability inside the interval, 0..1.
        intervals: "t" or "bootstrap".

    Returns:
        Years; negative for halving. An interval of growth that holds 1 (no growth) gives an open,
        infinite end.
    """
    return years_to_gain(math.log(2), _slope(fit, level, intervals))


def years_to_gain(gain: float, slope: Estimate) -> Estimate:
    """Return the years in which a log value grows by `gain`; open where the slope may be 0."""
    if slope.value == 0:
        return Estimate(math.inf, -math.inf, math.inf)
    value = gain / slope.value
    if not slope.low <= 0 <= slope.high:
        return Estimate(value, *sorted((gain / slope.low, gain / slope.high)))
    # A slope that may be 0 leaves one end open; the other is that of the steepest slope.
    steepest = gain / (slope.high if slope.value > 0 else slope.low)
    return (
        Estimate(value, steepest, math.inf) if value > 0 else Estimate(value, -math.inf, steepest)
    )


def crossing_year(
    fit: Fit, threshold: float, level: float = 0.8, intervals: Intervals = "t"
) -> Estimate:
    """Say when the trend line crosses a threshold.

    The t interval is exact (Fieller): the years at which the threshold lies inside the confidence
    band of the line.

    Args:
        fit: fit of `growth`.
        threshold: positive, in the unit of the values.
        level: probability inside the interval, 0..1.
        intervals: "t" or "bootstrap".

    Returns:
        Decimal years; an end that the points do not bound is infinite. Warns when the crossing is
        far, see `is_far`.

    Raises:
        FitError: the threshold is not positive, or the trend is flat.
    """
    line = line_of(fit)
    if not (np.isfinite(threshold) and threshold > 0) or line.slope == 0:
        raise FitError(
            f"threshold {threshold:g} must be positive and finite, and the trend not flat",
            hint="give it in the values' unit",
        )
    goal = float(np.log(threshold))
    value = line.center + (goal - line.level) / line.slope
    _warn_if_far(fit, value)
    if intervals == "bootstrap":
        term = _term(fit)
        years = term.year0 + (goal - fit.samples[:, 0]) / (fit.samples[:, 1] / term.period_years)
        return _percentiles(value, years, level)
    return Estimate(value, *_fieller(line, goal, level))


def _fieller(line: Line, goal: float, level: float) -> tuple[float, float]:
    """Return the years between which `goal` lies inside the confidence band of the line."""
    t = line.quantile(level)
    gap = goal - line.level
    # The band holds the goal where a quadratic in (year - center) is not positive. Its leading
    # factor is negative when the slope is not told apart from 0: then the years lie outside of the
    # roots, and without roots every year is possible.
    square = line.slope**2 - (t * line.slope_sd) ** 2
    inside = (line.slope * gap) ** 2 - square * (gap**2 - (t * line.level_sd) ** 2)
    if inside < 0 or square == 0:
        return -np.inf, np.inf
    first, last = sorted(
        line.center + (line.slope * gap + sign * np.sqrt(inside)) / square for sign in (-1, 1)
    )
    if square > 0:
        return float(first), float(last)
    return (float(last), np.inf) if gap / line.slope > 0 else (-np.inf, float(first))


def forecast_growth(fit: Fit, year: ArrayLike, level: float = 0.8) -> Prediction:
    """Forecast the next value at given years.

    The interval is Student's for a new value: it holds the noise of one value and the uncertainty
    of the line, which widens away from the points. It knows nothing of a trend that bends; warns
    when a year is far, see `is_far`.

    Args:
        fit: fit of `growth`.
        year: decimal years, [n] or a single number.
        level: probability that a new value falls inside, 0..1.

    Returns:
        Values with low and high, [n].
    """
    line, years = line_of(fit), np.atleast_1d(np.asarray(year, dtype=np.float64))
    _warn_if_far(fit, float(years[np.abs(years - (line.first + line.last) / 2).argmax()]))
    middle = line.level + line.slope * (years - line.center)
    sd = np.sqrt(line.noise**2 + line.level_sd**2 + (line.slope_sd * (years - line.center)) ** 2)
    return band(middle[None], level, noise=sd, freedom=line.freedom)


def is_far(fit: Fit, year: float) -> bool:
    """Say whether a year lies beyond the points by more than twice the years they span."""
    line = line_of(fit)
    return max(year - line.last, line.first - year) > _FAR_SPANS * (line.last - line.first)


def last_residual(fit: Fit) -> Estimate:
    """Say where the latest value stands against the trend: measured over fitted.

    Args:
        fit: fit of `growth`.

    Returns:
        The ratio, with the 95 % range of ratios that the noise of one value explains; outside of it
        the trend may be bending.
    """
    line = line_of(fit)
    last = int(np.argmax(np.where(fit.weights > 0, fit.inputs["year"], -np.inf)))
    half = line.quantile(0.95) * line.noise
    return Estimate(float(np.exp(fit.residuals[last])), float(np.exp(-half)), float(np.exp(half)))


def _slope(fit: Fit, level: float, intervals: Intervals) -> Estimate:
    """Return the slope of ln value per year with its interval."""
    line = line_of(fit)
    if intervals == "bootstrap":
        return _percentiles(line.slope, fit.samples[:, 1] / _term(fit).period_years, level)
    half = line.quantile(level) * line.slope_sd
    return Estimate(line.slope, line.slope - half, line.slope + half)


def _percentiles(value: float, samples: Array, level: float) -> Estimate:
    """Return the percentile interval of bootstrap samples."""
    if not len(samples):
        raise FitError(
            "this growth has no resampled fits to take intervals from",
            hint='fit it with bootstraps, or use intervals="t"',
        )
    return Estimate.of(value, samples, level)


def _term(fit: Fit) -> Growth:
    """Return the growth term of a fit, or refuse another law."""
    if not isinstance(fit.law.term, Growth) or fit.law.names != ("c", "g"):
        raise FitError(
            f"law {fit.law.name} is not exponential growth", hint="fit it with laws.fit_growth"
        )
    return fit.law.term


def _warn_if_far(fit: Fit, year: float) -> None:
    """Flag a year beyond the points by more than twice their span."""
    if is_far(fit, year):
        line = line_of(fit)
        warnings.warn(
            f"year {year:.1f} lies more than twice the observed span ({line.first:.1f} to "
            f"{line.last:.1f}) beyond the points",
            SteelyardWarning,
            stacklevel=3,
        )

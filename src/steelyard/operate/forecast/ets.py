"""Exponential smoothing with a damped trend and a season, chosen by what it would have missed."""

import numpy as np

from steelyard.jit import njit
from steelyard.operate.forecast.bounds import LEVELS, forecast_each
from steelyard.operate.forecast.sample_forecast import SampleForecast
from steelyard.operate.series import SeriesSet

__all__ = ["DampedETS"]

_MOST = 1440
_LEADS = np.array([1, 4, 16, 48])
_GRID = np.array(
    [
        (level, trend, damping, season)
        for level in (0.05, 0.15, 0.4, 0.8)
        for trend, damping in ((0.0, 0.0), (0.05, 0.9), (0.2, 0.9))
        for season in (0.0, 0.3)
    ]
)
"""Smoothing of level, trend and season, and damping of the trend, all bounded: a level that forgets
everything or a trend without end is not among them."""


@njit()
def _errors(values, weights, period, leads, misses):  # pragma: no cover - compiled
    """Filter a series; write what forecasts of each lead missed into misses [L, T], NaN else.

    Returns level, damped trend and the season's last pattern behind the last value.
    """
    smooth, slope, damping, seasonal = weights[0], weights[1], weights[2], weights[3]
    pattern = np.zeros(period)
    # What the trend adds up to at each lead; powers inside the loop would take most of its time.
    runs = damping * (1 - damping**leads) / (1 - damping)
    level = values[0]
    trend = 0.0
    first = 1
    if seasonal > 0:
        # The first season is the pattern to begin with, less the slope to the second: a trend left
        # in it would jump back at the end of every season.
        first = period
        level = np.nanmean(values[:period])
        slope_of_season = (np.nanmean(values[period : 2 * period]) - level) / period
        for step in range(period):
            if not np.isnan(values[step]):
                run = slope_of_season * (step - 0.5 * (period - 1))
                pattern[step] = values[step] - level - run
        level += slope_of_season * 0.5 * (period - 1)
    for step in range(first, len(values)):
        for index in range(len(leads)):
            ahead = step - 1 + leads[index]
            if ahead < len(values):
                said = level + trend * runs[index] + pattern[ahead % period]
                misses[index, ahead] = values[ahead] - said
        value = values[step]
        if np.isnan(value):
            level += damping * trend
            trend *= damping
            continue
        place = step % period
        before = level
        level = smooth * (value - pattern[place]) + (1 - smooth) * (before + damping * trend)
        trend = slope * smooth * (level - before) + (1 - slope * smooth) * damping * trend
        pattern[place] += seasonal * (1 - smooth) * (value - level - pattern[place])
    return level, trend, pattern


class DampedETS:
    """Additive exponential smoothing whose weights are those that missed least at all leads.

    Weights are chosen from a bounded grid by the mean absolute error of forecasts 1 to 48 steps
    ahead within the context, each made from what was known then. The spread of a step is the
    quantiles of those errors at its lead, so no distribution is assumed.

    Source: Hyndman et al. 2008, "Forecasting with Exponential Smoothing", chapter 3 (A, Ad, A).
    """

    def __init__(self) -> None:
        """Make the forecaster; it has no parameters of its own."""
        self.name = "DampedETS"

    def fit(self, series: SeriesSet) -> None:
        """Learn nothing: weights are chosen for every context."""

    def predict(self, context: SeriesSet, horizon: int) -> list[SampleForecast]:
        """Forecast as `Forecaster.predict` does."""
        return forecast_each(context, horizon, self.name, self._quantiles)

    def _quantiles(self, values: np.ndarray, horizon: int, season: int) -> np.ndarray:
        """Return quantiles [K, horizon] of one context."""
        values = np.ascontiguousarray(values[-_MOST:])
        values = values[int(np.isfinite(values).argmax()) :]
        leads = np.unique(np.minimum(np.append(_LEADS, horizon), max(len(values) - 1, 1)))
        leads = leads[leads <= horizon]
        has_season = len(values) >= 3 * season > 3
        period = season if has_season else 1
        best, least = None, np.inf
        scored = slice(2 * period if has_season else min(len(values) // 4, 24), None)
        for weights in _GRID:
            if weights[3] and not has_season:
                continue
            misses = np.full((len(leads), len(values)), np.nan)
            state = _errors(values, weights, period, leads, misses)
            known = misses[:, scored]
            error = np.abs(known[np.isfinite(known)])
            missed = error.mean() if len(error) else 0.0
            if missed < least:
                best, least = (weights, state, known), missed
        assert best is not None
        return _ahead(*best, leads, len(values), horizon)


def _ahead(
    weights: np.ndarray,
    state: tuple[float, float, np.ndarray],
    misses: np.ndarray,
    leads: np.ndarray,
    count: int,
    horizon: int,
) -> np.ndarray:
    """Return quantiles [K, horizon] of the chosen weights, `count` values having been read."""
    level, trend, pattern = state
    damping = weights[2]
    steps = np.arange(1, horizon + 1)
    run = trend * damping * (1 - damping**steps) / (1 - damping)
    center = level + run + pattern[(count - 1 + steps) % len(pattern)]
    spreads = np.zeros((len(LEVELS), len(leads)))
    for index, row in enumerate(misses):
        found = row[np.isfinite(row)]
        if len(found):
            spreads[:, index] = np.quantile(found, LEVELS)
    between = [np.interp(steps, leads, spread) for spread in spreads]
    return center + np.array(between)

"""Exponential smoothing with a damped trend and a season, chosen by what it would have missed."""

import numpy as np

from steelyard.jit import njit
from steelyard.operate.forecast.bounds import forecast_each, quantiles_of_rows
from steelyard.operate.forecast.sample_forecast import SampleForecast
from steelyard.operate.series import SeriesSet

__all__ = ["DampedETS"]

_MOST = 1440
_LEADS = np.array([1, 4, 16, 48])
_GRID = np.array(
    [
        (season, level, trend, damping)
        for season in (0.0, 0.3)
        for level in (0.05, 0.15, 0.4, 0.8)
        for trend, damping in ((0.0, 0.0), (0.05, 0.9), (0.2, 0.9))
    ]
)
"""Smoothing of season, level and trend, and damping of the trend, all bounded: a level that forgets
everything or a trend without end is not among them."""
_PLAIN, _SEASONAL = np.split(_GRID, 2)


@njit()
def _first_season(values, period):  # pragma: no cover - compiled
    """Return the level behind the first season and the pattern around it [period]."""
    pattern = np.zeros(period)
    level = np.nanmean(values[:period])
    slope = (np.nanmean(values[period : 2 * period]) - level) / period
    if np.isnan(slope):
        slope = 0.0
    # The slope to the second season is taken out: a trend left in the pattern would jump back at
    # the end of every season.
    for step in range(period):
        if not np.isnan(values[step]):
            pattern[step] = values[step] - level - slope * (step - 0.5 * (period - 1))
    return level + slope * 0.5 * (period - 1), pattern


@njit(error_model="numpy")
def _filter(values, grid, period, leads, scored, misses):  # pragma: no cover - compiled
    """Filter a series with every row of weights at once; nothing of a step is known before it.

    Reads values [T], weights [W, 4], steps of a season or 1, leads [L] and the first step that is
    scored; writes what forecasts missed into misses [L, T, W], or nothing where W is 0 there.
    Returns the sum of absolute misses [W], level [W], damped trend [W] and pattern [period, W].
    """
    count = len(grid)
    seasonal, smooth = grid[:, 0].copy(), grid[:, 1].copy()
    slope, damping = grid[:, 2] * smooth, grid[:, 3].copy()
    # What the trend adds up to at each lead; powers inside the loop would take most of its time.
    runs = np.empty((len(leads), count))
    for index in range(len(leads)):
        runs[index] = damping * (1 - damping ** leads[index]) / (1 - damping)
    pattern = np.zeros((period, count))
    level, trend, sums = np.full(count, values[0]), np.zeros(count), np.zeros(count)
    first = 1
    if period > 1:
        start, shape = _first_season(values, period)
        level[:] = start
        pattern[:] = shape.reshape(period, 1)
        first = period
    for step in range(first, len(values)):
        for index in range(len(leads)):
            ahead = step - 1 + leads[index]
            if ahead >= len(values) or ahead < scored or np.isnan(values[ahead]):
                continue
            target, place = values[ahead], ahead % period
            for row in range(count):
                said = level[row] + trend[row] * runs[index, row] + pattern[place, row]
                sums[row] += abs(target - said)
            for row in range(misses.shape[2]):
                said = level[row] + trend[row] * runs[index, row] + pattern[place, row]
                misses[index, ahead, row] = target - said
        value, place = values[step], step % period
        if np.isnan(value):
            for row in range(count):
                level[row] += damping[row] * trend[row]
                trend[row] *= damping[row]
            continue
        for row in range(count):
            before, drift, season = level[row], damping[row] * trend[row], pattern[place, row]
            now = smooth[row] * (value - season) + (1 - smooth[row]) * (before + drift)
            level[row] = now
            trend[row] = slope[row] * (now - before) + (1 - slope[row]) * drift
            pattern[place, row] = season + seasonal[row] * (1 - smooth[row]) * (
                value - now - season
            )
    return sums, level, trend, pattern


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
        scored = 2 * season if has_season else min(len(values) // 4, 24)
        unkept = np.empty((len(leads), len(values), 0))
        # Those without a season first: where both miss as much, the simpler is taken.
        tried = [(_PLAIN, 1), *([(_SEASONAL, season)] if has_season else [])]
        sums = [_filter(values, *part, leads, scored, unkept)[0] for part in tried]
        best = int(np.argmin([part.min() for part in sums]))
        (grid, period), row = tried[best], int(sums[best].argmin())
        misses = np.full((len(leads), len(values), 1), np.nan)
        weights = grid[row : row + 1]
        _, level, trend, pattern = _filter(values, weights, period, leads, scored, misses)
        state = float(level[0]), float(trend[0]), pattern[:, 0]
        return _ahead(weights[0], state, misses[:, :, 0], leads, horizon)


def _ahead(
    weights: np.ndarray,
    state: tuple[float, float, np.ndarray],
    misses: np.ndarray,
    leads: np.ndarray,
    horizon: int,
) -> np.ndarray:
    """Return quantiles [K, horizon] of the chosen weights, whose misses [L, T] were these."""
    level, trend, pattern = state
    damping = weights[3]
    steps = np.arange(1, horizon + 1)
    run = trend * damping * (1 - damping**steps) / (1 - damping)
    center = level + run + pattern[(misses.shape[1] - 1 + steps) % len(pattern)]
    spreads = np.nan_to_num(quantiles_of_rows(misses))
    between = [np.interp(steps, leads, spread) for spread in spreads.T]
    return center + np.array(between)

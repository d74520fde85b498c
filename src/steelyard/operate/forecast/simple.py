"""Rules that know no model: what any forecaster has to beat."""

import numpy as np

from steelyard.errors import TraceError
from steelyard.operate.forecast.sample_forecast import SampleForecast
from steelyard.operate.series import SeriesSet

__all__ = ["LEVELS", "RecentQuantiles", "SeasonalNaive", "observed"]

LEVELS = np.array([0.01, 0.05, *(level / 10 for level in range(1, 10)), 0.95, 0.99])
"""Levels of the quantiles that forecasters of this package return."""


def observed(context: SeriesSet, index: int, least: int = 1) -> np.ndarray:
    """Return the observed values of one context, oldest first.

    Args:
        context: the contexts.
        index: which one.
        least: fewest values that are enough.

    Returns:
        Values [T], all finite.

    Raises:
        TraceError: there are fewer.
    """
    row = context.row(index)
    values = np.asarray(row[np.isfinite(row)], np.float64)
    if len(values) < least:
        raise TraceError(
            f"series {context.ids[index]!r} has {len(values)} observed values before the forecast",
            hint=f"give a context of at least {least}",
        )
    return values


class RecentQuantiles:
    """Says of every step ahead what the quantiles of the last values were."""

    def __init__(self, count: int = 24) -> None:
        """Set how far back is looked.

        Args:
            count: last observed values whose quantiles are taken, at least 1.
        """
        self.count = count
        self.name = "RecentQuantiles"

    def fit(self, series: SeriesSet) -> None:
        """Learn nothing: the rule has no parameters."""

    def predict(self, context: SeriesSet, horizon: int) -> list[SampleForecast]:
        """Forecast as `Forecaster.predict` does."""
        made = []
        for index, name in enumerate(context.ids):
            last = observed(context, index)[-self.count :]
            levels = np.quantile(last, LEVELS)
            values = np.repeat(levels[:, None], horizon, axis=1)
            made.append(SampleForecast(values, LEVELS, self.name, name))
        return made


class SeasonalNaive:
    """Repeats the last season; its errors in the context are the spread.

    The spread of a step is the quantiles of one-season differences in the context. A context that
    is shorter than a season and a step repeats its last value, with differences of neighbours.
    """

    def __init__(self, season: int = 0) -> None:
        """Set the period.

        Args:
            season: steps of a season; 0 takes a day, or a week where a step is a day.
        """
        self.season = season
        self.name = "SeasonalNaive"

    def fit(self, series: SeriesSet) -> None:
        """Learn nothing: the rule has no parameters."""

    def predict(self, context: SeriesSet, horizon: int) -> list[SampleForecast]:
        """Forecast as `Forecaster.predict` does."""
        made = []
        for index, name in enumerate(context.ids):
            values = _filled(context, index)
            season = self.season or context.season(index)
            season = season if len(values) > season else 1
            center = values[len(values) - season + np.arange(horizon) % season]
            errors = values[season:] - values[:-season]
            spread = np.quantile(errors if len(errors) else np.zeros(1), LEVELS)
            made.append(SampleForecast(center + spread[:, None], LEVELS, self.name, name))
        return made


def _filled(context: SeriesSet, index: int) -> np.ndarray:
    """Return one context with its holes filled by the last observed value."""
    observed(context, index)
    row = np.asarray(context.row(index), np.float64)
    known = np.isfinite(row)
    last = np.maximum.accumulate(np.where(known, np.arange(len(row)), -1))
    # What lies before the first observed value is left out: there is nothing to fill it with.
    return row[last[last >= 0]]

"""Rules that know no model: what any forecaster has to beat."""

import numpy as np

from steelyard.operate.forecast.bounds import forecast_all, forecast_each, quantiles_of_rows
from steelyard.operate.forecast.sample_forecast import SampleForecast
from steelyard.operate.series import SeriesSet

__all__ = ["RecentQuantiles", "SeasonalNaive", "SeasonalProfile", "filled"]

_USUAL = 24


class RecentQuantiles:
    """Says of every step ahead what the quantiles of the last values were."""

    def __init__(self, count: int = _USUAL) -> None:
        """Set how far back is looked.

        Args:
            count: last observed values whose quantiles are taken, at least 1.
        """
        self.count = count
        self.name = "RecentQuantiles" if count == _USUAL else f"RecentQuantiles of {count}"

    def fit(self, series: SeriesSet) -> None:
        """Learn nothing: the rule has no parameters."""

    def predict(self, context: SeriesSet, horizon: int) -> list[SampleForecast]:
        """Forecast as `Forecaster.predict` does."""
        return forecast_all(context, horizon, self.name, self._quantiles)

    def _quantiles(self, rows: list[np.ndarray], horizon: int, seasons: np.ndarray) -> np.ndarray:
        """Return quantiles [n, K, horizon] of contexts."""
        last = np.full((len(rows), self.count), np.nan)
        for place, row in enumerate(rows):
            recent = row[-self.count :]
            if np.isnan(recent).any():
                recent = row[np.isfinite(row)][-self.count :]
            last[place, : len(recent)] = recent
        return np.repeat(quantiles_of_rows(last)[:, :, None], horizon, axis=2)


class SeasonalNaive:
    """Repeats the last season; its errors in the context are the spread.

    The spread of a step is the quantiles of one-season differences in the context. A context that
    is no longer than a season repeats its last value, with differences of neighbours.
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
        return forecast_each(context, horizon, self.name, self._quantiles)

    def _quantiles(self, values: np.ndarray, horizon: int, season: int) -> np.ndarray:
        """Return quantiles [K, horizon] of one context."""
        values = filled(values)
        season = self.season or season
        season = season if len(values) > season else 1
        center = values[len(values) - season + np.arange(horizon) % season]
        errors = values[season:] - values[:-season]
        spread = quantiles_of_rows((errors if len(errors) else np.zeros(1))[None])
        return center + spread[0][:, None]


class SeasonalProfile:
    """Adds the deviations from a season's mean profile, pooled over all its places, to the profile.

    It suits series that are calm but for exact times, such as counts of timers: a place of a season
    has too few values for a tail of its own, and all together have enough. A context that is no
    longer than a season has its mean as profile.
    """

    def __init__(self, season: int = 0, *, seasons: int = 24) -> None:
        """Set the period.

        Args:
            season: steps of a season; 0 takes a day, or a week where a step is a day.
            seasons: last seasons that count, at least 1.
        """
        self.season, self.seasons = season, seasons
        self.name = f"SeasonalProfile{seasons}"

    def fit(self, series: SeriesSet) -> None:
        """Learn nothing: the rule has no parameters."""

    def predict(self, context: SeriesSet, horizon: int) -> list[SampleForecast]:
        """Forecast as `Forecaster.predict` does."""
        return forecast_each(context, horizon, self.name, self._quantiles)

    def _quantiles(self, values: np.ndarray, horizon: int, season: int) -> np.ndarray:
        """Return quantiles [K, horizon] of one context."""
        season = self.season or season
        count = min(self.seasons, len(values) // season)
        # Without a whole season every step is the same place, and the mean is of all values.
        table = values[:, None]
        if count:
            table = filled(values)[-count * season :].reshape(count, season)
        profile = np.nanmean(table, axis=0)
        spread = quantiles_of_rows((table - profile).reshape(1, -1))[0]
        return profile[np.arange(horizon) % len(profile)] + spread[:, None]


def filled(values: np.ndarray) -> np.ndarray:
    """Fill holes with the last observed value before them; the first value is observed."""
    last = np.maximum.accumulate(np.where(np.isfinite(values), np.arange(len(values)), 0))
    return values[last]

"""Smoothed level and the errors that it has made lately: samples of whole paths, a step ahead."""

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from steelyard.operate.forecast.bounds import known_values
from steelyard.operate.forecast.sample_forecast import SampleForecast
from steelyard.operate.forecast.simple import filled
from steelyard.operate.series import SeriesSet

__all__ = ["RecentErrors"]

_GAINS = (1.0, 0.6, 0.3, 0.1, 0.03)
_FEWEST = 8


class RecentErrors:
    """Adds the errors of a smoothed level, as they came of late, to the level of now.

    The gain of the smoothing is the one whose errors were least; it is chosen anew at each
    forecast, and so is whether errors are taken as they are or in proportion to the level. Each
    sample is the path of errors behind one moment of the past, so that sums and peaks over the
    horizon are as they came together.
    """

    def __init__(self, count: int = 288) -> None:
        """Set how far back is looked.

        Args:
            count: moments of the past whose errors are taken, at least 8.
        """
        self.count = count
        self.name = "RecentErrors"

    def fit(self, series: SeriesSet) -> None:
        """Learn nothing: all is taken from the context."""

    def predict(self, context: SeriesSet, horizon: int) -> list[SampleForecast]:
        """Forecast as `Forecaster.predict` does."""
        return [
            self.forecast(known_values(context.row(index), item, least=2), horizon, item)
            for index, item in enumerate(context.ids)
        ]

    def forecast(self, values: NDArray[np.float64], horizon: int, name: str = "") -> SampleForecast:
        """Forecast one series.

        Args:
            values: [n] values of the past from the first observed one on; NaN where there was none.
            horizon: steps ahead.
            name: id of the series.

        Returns:
            Samples [up to `count`, horizon].
        """
        past = filled(np.asarray(values[-(self.count * 3) :], dtype=np.float64))
        usable = min(self.count, len(past) - horizon)
        if usable < _FEWEST:
            samples = np.repeat(past[-24:, None], horizon, axis=1)
            return SampleForecast(samples, source=self.name, item_id=name)
        origins = np.arange(len(past) - horizon - usable, len(past) - horizon)
        futures = past[origins[:, None] + 1 + np.arange(horizon)]
        best, found = np.inf, futures
        for gain in _GAINS:
            level = _smoothed(past, gain)
            for errors, paths in _paths(level, origins, futures):
                if errors < best:
                    best, found = errors, paths
        return SampleForecast(found, source=self.name, item_id=name)


def _smoothed(values: NDArray[np.float64], gain: float) -> NDArray[np.float64]:
    """Return the exponentially smoothed level behind each value."""
    start = values[0] * (1 - gain)
    return lfilter([gain], [1, gain - 1], values, zi=[start])[0]


def _paths(level, origins, futures):
    """Yield the size of errors and the paths, as they are and in proportion to the level."""
    base, now = level[origins, None], level[-1]
    errors = futures - base
    yield float(np.abs(errors).mean()), now + errors

"""Intervals of a demand whose level doubles, with and without adaptation."""

import numpy as np

from steelyard.operate.forecast import SampleForecast
from steelyard.operate.forecast.conformal import AdaptiveConformal
from steelyard.operate.series import SeriesSet

__all__ = ["coverage_after_doubling"]

_SHARE = 0.9
_LEVELS = np.array([0.01, 0.025, *(np.arange(1, 20) / 20), 0.975, 0.99])


class FittedErrors:
    """The last value and the quantiles of one-step errors, as they were when it was fitted."""

    def __init__(self) -> None:
        """Begin without errors."""
        self.name = "FittedErrors"
        self._errors = np.zeros(len(_LEVELS))

    def fit(self, series: SeriesSet) -> None:
        """Keep the quantiles of the changes from step to step."""
        self._errors = np.quantile(np.diff(series.row(0)), _LEVELS)

    def predict(self, context: SeriesSet, horizon: int) -> list[SampleForecast]:
        """Forecast as `Forecaster.predict` does."""
        return [
            SampleForecast(np.repeat((row[-1] + self._errors)[:, None], horizon, 1), _LEVELS)
            for row in context
        ]


def coverage_after_doubling(seed: int, *, steps: int) -> tuple[float, float]:
    """Return how often 90 % intervals held behind the doubling, adapted and not.

    Args:
        seed: seed of the demand.
        steps: steps of the training part, and of the holdout behind the doubling.

    Returns:
        Share with adaptation and without, each over the holdout behind the doubling.
    """
    rng = np.random.default_rng(seed)
    phase = np.arange(2 * steps) * 2 * np.pi / 288
    level = np.where(np.arange(2 * steps) < steps, 1.0, 2.0) * (1 + 0.3 * np.sin(phase))
    demand = 100 * level * rng.lognormal(0, 0.05, 2 * steps)
    train = SeriesSet.from_arrays([demand[:steps]], step_s=300.0, ids=["demand"])
    plain = FittedErrors()
    plain.fit(train)
    adapted = AdaptiveConformal(plain, share=_SHARE, rate=0.05)
    held = np.zeros((2, steps), bool)
    for step in range(steps):
        past = SeriesSet.from_arrays([demand[: steps + step][-2:]], step_s=300.0, ids=["demand"])
        came = demand[steps + step : steps + step + 1]
        for row, forecaster in enumerate((adapted, plain)):
            (said,) = forecaster.predict(past, 1)
            held[row, step] = said.covered(came, _SHARE)[0]
            if row == 0:
                adapted.observe("demand", said, came)
    return float(held[0].mean()), float(held[1].mean())

"""Several forecasters joined, each weighted by how it did on the past of the very series."""

from collections.abc import Sequence

import numpy as np

from steelyard.errors import ConfigError
from steelyard.operate.forecast.evaluation import evaluate
from steelyard.operate.forecast.forecaster import Forecaster
from steelyard.operate.forecast.sample_forecast import SampleForecast
from steelyard.operate.series import SeriesSet

__all__ = ["BlendedForecaster", "past_windows"]

_SHARPNESS = 16.0
_EXACT = 1e-5


def past_windows(series: SeriesSet, horizon: int, most: int) -> int:
    """Return how many windows of the past may be forecast: half of the shortest series at most."""
    return min(most, int(min(series.lengths, default=0)) // 2 // horizon)


class BlendedForecaster:
    """Means of quantiles, weighted by the past CRPS to the power of -16, series by series.

    A part that was 4 % worse than the best has half of its weight, one that was a fifth worse next
    to none. A series that `fit` did not see weights all alike.

    Attributes:
        name: "Blend".
        weights: weight of each part by series, [parts], summing to 1.

    Source: Lichtendahl et al. 2013, "Is It Better to Average Probabilities or Quantiles?"
        (Management Science 59-7): means of quantiles. The power was chosen on generated series.
    """

    def __init__(
        self, parts: Sequence[Forecaster], *, horizon: int = 48, windows: int = 12
    ) -> None:
        """Set what is joined.

        Args:
            parts: two or more forecasters that answer with the same levels.
            horizon: steps of the windows that weigh them.
            windows: most past windows of each series.

        Raises:
            ConfigError: there is nothing to join.
        """
        if len(parts) < 2:
            raise ConfigError(f"a blend of {len(parts)} forecasters", hint="give two or more")
        self.name = "Blend"
        self.weights: dict[str, np.ndarray] = {}
        self._parts = list(parts)
        self._horizon = horizon
        self._windows = windows

    def fit(self, series: SeriesSet) -> None:
        """Weigh the parts by their forecasts of the last windows of series.

        Args:
            series: the past; nothing of what is forecast later.
        """
        windows = past_windows(series, self._horizon, self._windows)
        if not windows:
            return
        reports = [
            evaluate(part, series, self._horizon, windows, self._horizon) for part in self._parts
        ]
        for name in series.ids:
            scores = np.array([max(report.series[name].crps, _EXACT) for report in reports])
            sharp = (scores / scores.min()) ** -_SHARPNESS
            self.weights[name] = sharp / sharp.sum()

    def predict(self, context: SeriesSet, horizon: int) -> list[SampleForecast]:
        """Forecast as `Forecaster.predict` does."""
        alike = np.full(len(self._parts), 1 / len(self._parts))
        # Windows of one series are told apart behind an @, as `SeriesSet.cut` names them.
        weights = [
            self.weights.get(name, self.weights.get(name.rpartition("@")[0], alike))
            for name in context.ids
        ]
        said = [part.predict(context, horizon) for part in self._parts]
        made = []
        for row, (name, shares) in enumerate(zip(context.ids, weights, strict=True)):
            values = sum(
                share * answers[row].values for share, answers in zip(shares, said, strict=True)
            )
            assert isinstance(values, np.ndarray)
            made.append(SampleForecast(values, said[0][row].levels, self.name, name))
        return made

"""Several forecasters joined, each weighted by how it did on the past of the very series."""

from collections.abc import Sequence

import numpy as np

from steelyard.errors import ConfigError
from steelyard.operate.forecast.evaluation import PastWindows
from steelyard.operate.forecast.forecaster import Forecaster
from steelyard.operate.forecast.quantile_weights import learned_weights
from steelyard.operate.forecast.sample_forecast import SampleForecast
from steelyard.operate.series import SeriesSet

__all__ = ["BlendedForecaster", "cut_windows", "past_windows"]

_PULL = 0.1
_RELEARNED = 4
"""Windows with the same weights, in a rehearsal."""


def past_windows(series: SeriesSet, horizon: int, most: int) -> int:
    """Return how many windows of the past may be forecast: half of the shortest series at most."""
    return min(most, int(min(series.lengths, default=0)) // 2 // horizon)


def cut_windows(series: SeriesSet, horizon: int, windows: int, stride: int) -> PastWindows:
    """Return the windows that forecasters are tried on.

    Args:
        series: the past.
        horizon: steps of a window.
        windows: windows end to end that fill what they are cut from.
        stride: steps from one to the next; below a horizon they overlap and are more.

    Returns:
        The windows.
    """
    return PastWindows.of(series, horizon, (windows - 1) * horizon // stride + 1, stride)


class BlendedForecaster:
    """Means of quantiles, with weights that would have lost least on the series' own past.

    Learned weights are drawn to those that the parts have before anything was seen. So a few
    windows move them little, and no part is ever without weight. A series that `fit` did not see is
    weighed by those alone.

    Attributes:
        name: "Blend".
        parts: what is joined.
        weights: weight of each part by series, [parts], summing to 1.

    Source: Lichtendahl et al. 2013, "Is It Better to Average Probabilities or Quantiles?"
        (Management Science 59-7): means of quantiles; weights as `learned_weights` says. Its
        constants were chosen on generated series and on real ones of rates, pods, carbon and
        weather.
    """

    def __init__(
        self,
        parts: Sequence[Forecaster],
        *,
        horizon: int = 48,
        windows: int = 24,
        stride: int = 0,
        lead: float = 0.0,
    ) -> None:
        """Set what is joined.

        Args:
            parts: two or more forecasters that answer with quantiles at the same levels.
            horizon: steps of the windows that weigh them.
            windows: most past windows of each series, end to end.
            stride: steps from one window to the next; 0 for a horizon. Those that overlap tell more
                of a short past.
            lead: weight of the first part before anything was seen, in (0, 1), where it is trusted
                more than the others, which share the rest; 0 for equal weights.

        Raises:
            ConfigError: there is nothing to join, or the lead is out of range.
        """
        if len(parts) < 2:
            raise ConfigError(f"a blend of {len(parts)} forecasters", hint="give two or more")
        if not 0 <= lead < 1:
            raise ConfigError(f"lead {lead} of a blend", hint="give 0 or a share below 1")
        self.name = "Blend"
        self.parts = list(parts)
        self.weights: dict[str, np.ndarray] = {}
        lead = lead or 1 / len(parts)
        self._prior = np.array([lead, *[(1 - lead) / (len(parts) - 1)] * (len(parts) - 1)])
        self._horizon = horizon
        self._windows = windows
        self._stride = stride or horizon

    def fit(self, series: SeriesSet) -> None:
        """Weigh the parts by their forecasts of the last windows of series.

        Args:
            series: the past; nothing of what is forecast later.
        """
        windows = past_windows(series, self._horizon, self._windows)
        if windows:
            past = cut_windows(series, self._horizon, windows, self._stride)
            said = [part.predict(past.context, self._horizon) for part in self.parts]
            self.learn(series, past, said)

    def learn(
        self, series: SeriesSet, past: PastWindows, said: Sequence[Sequence[SampleForecast]]
    ) -> list[SampleForecast]:
        """Weigh the parts by what they said of windows, going through these in their order.

        Args:
            series: the series that the windows are of.
            past: their windows, the older ones first.
            said: what each part said of each.

        Returns:
            What the blend would have said of each window, from those before it alone.
        """
        values = _stacked(said)
        blended = np.empty(values.shape[1:])
        for row, name in enumerate(series.ids):
            own = past.rows == row
            blended[own], self.weights[name] = self._rehearsed(
                values[:, own], past.actual[own], past.overlap
            )
        levels = said[0][0].levels
        pairs = zip(blended, past.context.ids, strict=True)
        return [SampleForecast(item, levels, self.name, name) for item, name in pairs]

    def _rehearsed(
        self, said: np.ndarray, actual: np.ndarray, overlap: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the blend of a series' windows, each from those before, and the last weights."""
        blended, weights = np.empty(said.shape[1:]), self._prior
        for first in range(0, len(actual), _RELEARNED):
            seen = slice(max(first - overlap, 0))  # a window that reaches into this one is not over
            if seen.stop:
                weights = learned_weights(said[:, seen], actual[seen], self._prior, _PULL)
            part = slice(first, first + _RELEARNED)
            blended[part] = _mean(weights[:, None], said[:, part])
        return blended, learned_weights(said, actual, self._prior, _PULL)

    def predict(self, context: SeriesSet, horizon: int) -> list[SampleForecast]:
        """Forecast as `Forecaster.predict` does."""
        # Windows of one series are told apart behind an @, as `SeriesSet.cut` names them.
        weights = [
            self.weights.get(name, self.weights.get(name.rpartition("@")[0], self._prior))
            for name in context.ids
        ]
        if not weights:
            return []
        said = [part.predict(context, horizon) for part in self.parts]
        blended = _mean(np.array(weights).T, _stacked(said))
        levels = said[0][0].levels
        pairs = zip(blended, context.ids, strict=True)
        return [SampleForecast(item, levels, self.name, name) for item, name in pairs]


def _stacked(said: Sequence[Sequence[SampleForecast]]) -> np.ndarray:
    """Return the quantiles of all parts and windows, [parts, windows, K, H]."""
    if any(item.levels is None for answers in said for item in answers):
        raise ConfigError(
            "a blend of forecasters that answer with samples",
            hint="give forecasters that answer with quantiles",
        )
    return np.array([[item.values for item in answers] for answers in said])


def _mean(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the means of quantiles [windows, K, H] by weights [parts, windows or 1]."""
    mean = (weights[:, :, None, None] * values).sum(0)
    # Weights sum to 1 but for a rounding, which the largest floats would not survive.
    return np.clip(mean, values.min(0), values.max(0))

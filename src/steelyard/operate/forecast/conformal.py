"""Intervals that learn from whether they held."""

import numpy as np

from steelyard.errors import ConfigError
from steelyard.operate.forecast.forecaster import Forecaster
from steelyard.operate.forecast.sample_forecast import SampleForecast
from steelyard.operate.series import SeriesSet

__all__ = ["AdaptiveConformal", "next_log_factor", "stretched"]

_NARROWEST, _WIDEST = 0.05, 50.0


class AdaptiveConformal:
    """Widens or narrows another's intervals, so that in the long run they hold what they promise.

    Each series has a factor of the distance between quantiles and median. After every step that was
    observed, its logarithm moves by `rate` times (missed - allowed), so the share of misses tends
    to the one allowed whatever the series does.

    Attributes:
        name: the forecaster's, with "conformal"; single forecasts keep the name of their source.

    Source: Gibbs and Candes 2021 (arXiv 2106.00263), equation 2; Angelopoulos et al. 2023 (arXiv
        2307.16895), section 2.1 (tracking the width itself).
    """

    def __init__(self, forecaster: Forecaster, *, share: float = 0.8, rate: float = 0.01) -> None:
        """Set the promise.

        Args:
            forecaster: whose intervals are corrected.
            share: share of the values that the central interval shall hold, in (0, 1).
            rate: how fast a factor moves, above 0.

        Raises:
            ConfigError: a number is out of range.
        """
        if not (0 < share < 1 and rate > 0):
            raise ConfigError(
                f"share {share}, rate {rate}", hint="give a share in (0, 1) and a rate above 0"
            )
        self.name = f"{forecaster.name}, conformal"
        self.share = share
        self._forecaster = forecaster
        self._rate = rate
        self._log_factors: dict[str, float] = {}

    def fit(self, series: SeriesSet) -> None:
        """Let the forecaster learn."""
        self._forecaster.fit(series)

    def predict(self, context: SeriesSet, horizon: int) -> list[SampleForecast]:
        """Forecast as `Forecaster.predict` does, with corrected distances from the median."""
        made = self._forecaster.predict(context, horizon)
        return [
            stretched(item, self.factor(name)) for item, name in zip(made, context.ids, strict=True)
        ]

    def learn(self, series: SeriesSet, horizon: int, windows: int) -> dict[str, float]:
        """Go through the last windows of series in their order, and learn from each.

        Args:
            series: the past.
            horizon: steps of a window.
            windows: windows, one behind the other; the last ends at the series' ends.

        Returns:
            By series, the share of steps that the intervals held, each as it stood before its
            window was seen; NaN where no step was observed.
        """
        held = {name: [0, 0] for name in series.ids}
        for window in range(windows, 0, -1):
            made = self.predict(series.before(window * horizon), horizon)
            for row, (name, forecast) in enumerate(zip(series.ids, made, strict=True)):
                end = int(series.lengths[row]) - window * horizon
                actual = series.row(row)[end : end + horizon]
                held[name][0] += int(forecast.covered(actual, self.share).sum())
                held[name][1] += int(np.isfinite(actual).sum())
                self.observe(name, forecast, actual)
        return {name: hits / steps if steps else np.nan for name, (hits, steps) in held.items()}

    def factor(self, name: str) -> float:
        """Return the factor of a series' distances; 1 before anything was observed."""
        return float(np.exp(self._log_factors.get(name, 0.0)))

    def observe(self, name: str, forecast: SampleForecast, actual: np.ndarray) -> None:
        """Learn from what came after a forecast of `predict`.

        Args:
            name: id of the series.
            forecast: what was said.
            actual: what came in its first steps [H] or fewer; NaN where nothing was observed.
        """
        steps = min(len(actual), forecast.horizon)
        low, high = forecast.interval(self.share)
        came = np.flatnonzero(np.isfinite(actual[:steps]))
        missed = (actual[came] < low[came]) | (actual[came] > high[came])
        self._log_factors[name] = next_log_factor(
            self._log_factors.get(name, 0.0), missed, share=self.share, rate=self._rate
        )


def next_log_factor(log_factor: float, missed: np.ndarray, *, share: float, rate: float) -> float:
    """Move the logarithm of a factor of widths by what some steps have shown.

    Args:
        log_factor: before them.
        missed: whether each observed step lay outside its interval [n].
        share: share of the steps that intervals shall hold.
        rate: how fast the factor moves.

    Returns:
        The logarithm after them, within that of the narrowest and of the widest factor.
    """
    moved = log_factor + rate * float(np.sum(missed - (1 - share)))
    return float(np.clip(moved, np.log(_NARROWEST), np.log(_WIDEST)))


def stretched(forecast: SampleForecast, factor: float) -> SampleForecast:
    """Return a forecast whose distances from the median are so many times as long."""
    middle = forecast.quantile(0.5)
    return forecast.replaced(values=middle + factor * (forecast.values - middle))

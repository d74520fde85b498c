"""What every forecaster can do."""

from typing import Protocol

from steelyard.operate.forecast.sample_forecast import SampleForecast
from steelyard.operate.series import SeriesSet

__all__ = ["Forecaster"]


class Forecaster(Protocol):
    """Learns from series, and forecasts the steps that follow a batch of contexts.

    Attributes:
        name: what tables and the ledger call it.
    """

    name: str

    def fit(self, series: SeriesSet) -> None:
        """Learn from series; a forecaster without parameters does nothing.

        Args:
            series: what may be learned from; nothing of what is forecast later.
        """
        ...

    def predict(self, context: SeriesSet, horizon: int) -> list[SampleForecast]:
        """Forecast the steps behind the end of every context.

        Args:
            context: a batch of series, each known up to the moment of its forecast.
            horizon: steps to forecast, at least 1.

        Returns:
            One forecast a series, in their order; equal input makes equal forecasts. Samples of
            equal number belong together where a joint forecaster made them.

        Raises:
            TraceError: a context has too few values; the message names the series.
        """
        ...

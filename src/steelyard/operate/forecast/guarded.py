"""A forecaster that may be late or fail, with a rule that then stands in and says so."""

import threading
import time

from steelyard.operate.forecast.forecaster import Forecaster
from steelyard.operate.forecast.sample_forecast import SampleForecast
from steelyard.operate.forecast.simple import RecentQuantiles
from steelyard.operate.series import SeriesSet

__all__ = ["GuardedForecaster"]


class GuardedForecaster:
    """Answers in time: with its forecaster's forecast, or with recent quantiles that say why.

    Attributes:
        name: the forecaster's.
        failures: why the rule stood in, once for each time it did.
    """

    def __init__(self, forecaster: Forecaster, *, deadline_s: float = 0.0) -> None:
        """Set the deadline.

        Args:
            forecaster: what is asked first.
            deadline_s: seconds that `predict` may take; 0 for no limit.
        """
        self.name = forecaster.name
        self.failures: list[str] = []
        self._forecaster = forecaster
        self._deadline_s = deadline_s
        self._rule = RecentQuantiles()

    def fit(self, series: SeriesSet) -> None:
        """Let the forecaster learn; what it raises is left to the caller."""
        self._forecaster.fit(series)

    def predict(self, context: SeriesSet, horizon: int) -> list[SampleForecast]:
        """Forecast as `Forecaster.predict` does.

        A forecast of the rule has a `source` such as "RecentQuantiles for MaskedEncoder, which was
        late". A context that the rule refuses too is refused.
        """
        made, reason = self._ask(context, horizon)
        if not reason:
            return made
        self.failures.append(reason)
        words = f"{self._rule.name} for {self.name}, which {reason}"
        return [item.replaced(source=words) for item in self._rule.predict(context, horizon)]

    def _ask(self, context: SeriesSet, horizon: int) -> tuple[list[SampleForecast], str]:
        """Return the forecaster's answer, or why there is none."""
        answer: list[list[SampleForecast]] = []
        trouble: list[str] = []

        def work() -> None:
            # Whatever a model raises, its caller has to decide something now.
            try:
                answer.append(self._forecaster.predict(context, horizon))
            except Exception as error:
                trouble.append(f"failed: {type(error).__name__}: {error}")

        if self._deadline_s <= 0:
            work()
        else:
            # A thread cannot be stopped; a late one ends by itself and its answer is dropped.
            begin = time.monotonic()
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            thread.join(self._deadline_s)
            if thread.is_alive() or time.monotonic() - begin > self._deadline_s:
                return [], f"was late: more than {self._deadline_s:g} s"
        if trouble:
            return [], trouble[0]
        if len(answer[0]) != len(context):
            return [], f"failed: {len(answer[0])} forecasts for {len(context)} series"
        return answer[0], ""

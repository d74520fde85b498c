"""A forecaster that may be late or fail, with a rule that then stands in and says so."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from steelyard.operate.forecast.forecaster import Forecaster
from steelyard.operate.forecast.sample_forecast import SampleForecast
from steelyard.operate.forecast.simple import RecentQuantiles
from steelyard.operate.series import SeriesSet

__all__ = ["Deadline", "GuardedForecaster", "forecaster_of", "stand_in"]

_Answer = TypeVar("_Answer")
_FOR = " for "


def stand_in(rule: str, name: str, reason: str) -> str:
    """Say who forecast in whose place, and why; `SampleForecast.source` of such a forecast."""
    return f"{rule}{_FOR}{name}, which {reason}"


def forecaster_of(source: str) -> str:
    """Return who made a forecast; of one that stood in for another, the rule that did."""
    return source.partition(_FOR)[0]


class Deadline:
    """Makes calls that may take a number of seconds of the real clock, and not more.

    A thread cannot be stopped: a late call ends by itself and its answer is dropped. Until it has
    ended no further call is made, so that a model that hangs takes one thread, not one a step.
    """

    def __init__(self, deadline_s: float) -> None:
        """Set the seconds; 0 for no limit."""
        self.deadline_s = deadline_s
        self._late: threading.Thread | None = None

    def __call__(self, call: Callable[[], _Answer]) -> _Answer:
        """Return what a call returns, and raise what it raises.

        Args:
            call: takes no arguments.

        Returns:
            Its answer.

        Raises:
            TimeoutError: it took too long, or an earlier one still runs.
        """
        if self.deadline_s <= 0:
            return call()
        if self._late is not None and self._late.is_alive():
            raise TimeoutError("an earlier call still runs")
        answers: list[_Answer] = []
        troubles: list[BaseException] = []

        def work() -> None:
            try:
                answers.append(call())
            except BaseException as error:  # what ends the thread has to reach the caller
                troubles.append(error)

        begin = time.monotonic()
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(self.deadline_s)
        if thread.is_alive() or time.monotonic() - begin > self.deadline_s:
            self._late = thread
            raise TimeoutError(f"more than {self.deadline_s:g} s")
        if troubles:
            raise troubles[0]
        return answers[0]


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
        self._within = Deadline(deadline_s)
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
        words = stand_in(self._rule.name, self.name, reason)
        return [item.replaced(source=words) for item in self._rule.predict(context, horizon)]

    def _ask(self, context: SeriesSet, horizon: int) -> tuple[list[SampleForecast], str]:
        """Return the forecaster's answer, or why there is none."""
        try:
            made = self._within(lambda: self._forecaster.predict(context, horizon))
        except TimeoutError as error:
            return [], f"was late: {error}"
        # Whatever a model raises, its caller has to decide something now.
        except Exception as error:
            return [], f"failed: {type(error).__name__}: {error}"
        if len(made) != len(context):
            return [], f"failed: {len(made)} forecasts for {len(context)} series"
        return made, ""

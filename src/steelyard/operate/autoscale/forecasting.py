"""What a controller knows of the demand ahead: a forecast in time, whatever its forecaster does."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from steelyard.operate.forecast import Forecaster, RecentQuantiles, SampleForecast
from steelyard.operate.forecast.conformal import next_log_factor, stretched
from steelyard.operate.forecast.guarded import forecaster_of, stand_in
from steelyard.operate.series import SeriesSet
from steelyard.sim.control import Latency

__all__ = [
    "CalibratedDemand",
    "DemandForecast",
    "DemandForecaster",
    "GuardedDemand",
    "VirtualDeadline",
    "Within",
    "at_once",
]

_LEAST_HISTORY = 2
_PROMISED = 0.8
"""Share of the values that the intervals of a controller shall hold."""
_RATE = 0.02
"""How fast widths follow what was missed."""


class DemandForecast(Protocol):
    """The distribution of the demand of the next steps."""

    @property
    def source(self) -> str:
        """Who made it."""
        ...

    @property
    def samples(self) -> NDArray[np.float64] | None:
        """[samples, horizon] or [samples, horizon, 1] joint samples; None where there are none."""
        ...

    def quantile(self, level: float) -> Any:
        """Return the quantile of each step, [horizon] or [horizon, 1]."""
        ...


class DemandForecaster:
    """Lets a forecaster of series forecast a demand that grows step by step."""

    def __init__(
        self, forecaster: Forecaster, *, step_s: float, horizon: int, name: str = ""
    ) -> None:
        """Keep what every forecast needs.

        Args:
            forecaster: fitted, or without parameters.
            step_s: seconds of a step.
            horizon: steps to forecast.
            name: what tables call it; the forecaster's own name when empty.
        """
        self.forecaster, self.step_s, self.horizon = forecaster, step_s, horizon
        self.name = name or forecaster.name

    def __call__(self, demand: NDArray[np.float64]) -> SampleForecast:
        """Return the forecast of the steps behind a demand."""
        context = SeriesSet.from_arrays([demand], step_s=self.step_s, ids=["demand"])
        return self.forecaster.predict(context, self.horizon)[0]


class CalibratedDemand:
    """Widens or narrows a forecaster's intervals by how often those before held the demand.

    The factor behind a number of known steps depends on them alone, and not on what else was asked:
    controllers that share the forecasts of one demand see the same, and none sees what another has
    learned of later steps.

    Attributes:
        name: the forecaster's.

    Source: as `operate.forecast.conformal.AdaptiveConformal`, with a step's outcome known `horizon`
        steps after it was forecast.
    """

    def __init__(
        self, forecaster: DemandForecaster, history: NDArray[np.float64], *, steps: int = 288
    ) -> None:
        """Learn from the end of what is known.

        Args:
            forecaster: whose intervals are corrected.
            history: [n] demand of the steps before the first forecast.
            steps: steps of the history to learn from at most.
        """
        self.forecaster, self.name = forecaster, forecaster.name
        self._first = max(_LEAST_HISTORY, len(history) - steps)
        self._logs = [0.0]
        self._said: dict[int, SampleForecast | None] = {}
        self._learn(history)

    def __call__(self, demand: NDArray[np.float64]) -> SampleForecast:
        """Return the forecast of the steps behind a demand, whose last one may be under way."""
        self._learn(demand[:-1])
        known = min(max(len(demand) - 1 - self._first, 0), len(self._logs) - 1)
        return stretched(self.forecaster(demand), float(np.exp(self._logs[known])))

    def _learn(self, demand: NDArray[np.float64]) -> None:
        """Go on through steps that have come since, each as it stood before it was seen."""
        for known in range(self._first + len(self._logs) - 1, len(demand)):
            said = self._say(demand[:known])
            self._said[known] = said
            # The forecast whose last step is this one.
            done = self._said.pop(known + 1 - self.forecaster.horizon, None)
            log_factor = self._logs[-1]
            if done is not None:
                low, high = done.interval(_PROMISED)
                came = demand[known + 1 - self.forecaster.horizon : known + 1]
                missed = ((came < low) | (came > high))[np.isfinite(came)]
                log_factor = next_log_factor(
                    log_factor, missed, share=_PROMISED, rate=_RATE / self.forecaster.horizon
                )
            self._logs.append(log_factor)

    def _say(self, demand: NDArray[np.float64]) -> SampleForecast | None:
        """Return what was said behind a demand, as wide as it was then; None where it failed."""
        try:
            made = self.forecaster(demand)
        # Who forecasts for a decision says why it failed; here a step is left out.
        except Exception:
            return None
        return stretched(made, float(np.exp(self._logs[-1])))


Within = Callable[[Callable[[], DemandForecast]], DemandForecast]
"""Makes a call and returns its answer, or raises TimeoutError where that took too long.

`operate.forecast.guarded.Deadline` on the real clock, `VirtualDeadline` on virtual time.
"""


def at_once(call: Callable[[], DemandForecast]) -> DemandForecast:
    """Make a call that may take as long as it does."""
    return call()


class VirtualDeadline:
    """Finds a forecast late where the seconds that it is said to take exceed the deadline.

    On virtual time nothing passes within a decision; a forecast in time counts as made at once.
    """

    def __init__(self, takes: Latency, deadline_s: float, *, seed: int = 0) -> None:
        """Set what a forecast takes.

        Args:
            takes: seconds that a forecast takes.
            deadline_s: seconds that it may take; 0 for no limit.
            seed: seed of the seconds.
        """
        self._takes, self._deadline_s = takes, deadline_s
        self._rng = np.random.default_rng(seed)

    def __call__(self, call: Callable[[], DemandForecast]) -> DemandForecast:
        """Make a call, or raise TimeoutError instead."""
        took_s = float(self._takes.draw_s(self._rng, 1)[0])
        if 0 < self._deadline_s < took_s:
            raise TimeoutError(f"{took_s:.3g} s, more than {self._deadline_s:g} s")
        return call()


class GuardedDemand:
    """Forecasts a demand by its forecaster, or by RecentQuantiles where that fails or is late.

    Attributes:
        num_fallbacks: forecasts that the rule made.
    """

    def __init__(
        self, forecaster: Callable[[NDArray[np.float64]], DemandForecast], within: Within = at_once
    ) -> None:
        """Wrap a forecaster.

        Args:
            forecaster: turns the demand so far, [n], into a forecast.
            within: makes the call, and tells when it is late.
        """
        self.num_fallbacks = 0
        self._forecaster, self._within = forecaster, within
        # Of each step the rule says the same, so that neither step nor horizon matters to it.
        self._rule = DemandForecaster(RecentQuantiles(), step_s=1.0, horizon=1)

    def __call__(self, demand: NDArray[np.float64]) -> DemandForecast | None:
        """Return the forecast behind a demand [n]; its source says who stood in, and why.

        None of a demand of fewer than two steps: nothing can be said of it.
        """
        if len(demand) < _LEAST_HISTORY:
            return None
        try:
            made = self._within(lambda: self._forecaster(demand))
            if np.isfinite(np.asarray(made.quantile(0.5), dtype=float)).all():
                # A forecaster with a guard of its own has answered by a rule already.
                self.num_fallbacks += forecaster_of(made.source) != made.source
                return made
            why = "is not finite"
        except TimeoutError as error:
            why = f"was late: {error}"
        # Whatever a model raises, the number of replicas has to be decided now.
        except Exception as error:
            why = f"failed: {type(error).__name__}: {error}"
        self.num_fallbacks += 1
        name = getattr(self._forecaster, "name", type(self._forecaster).__name__)
        return self._rule(demand).replaced(source=stand_in(self._rule.name, name, why))

"""What a controller knows of the demand ahead: a forecast in time, whatever its forecaster does."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from steelyard.operate.forecast import Forecaster, RecentQuantiles, SampleForecast
from steelyard.operate.forecast.guarded import forecaster_of, stand_in
from steelyard.operate.series import SeriesSet
from steelyard.sim.control import Latency

__all__ = [
    "DemandForecast",
    "DemandForecaster",
    "GuardedDemand",
    "VirtualDeadline",
    "Within",
    "at_once",
]

_LEAST_HISTORY = 2


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

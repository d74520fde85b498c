"""What decides on a number of replicas, and the policy that a control loop drives it by."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.operate.autoscale.forecasting import (
    DemandForecast,
    GuardedDemand,
    Within,
    at_once,
)
from steelyard.operate.forecast.guarded import forecaster_of
from steelyard.sim.control import Command, Observation

__all__ = [
    "FixedReplicas",
    "Scaler",
    "ScalerPolicy",
    "ServiceState",
    "peak_samples",
]

_SAME = 0.02
"""Share by which the load of a step may have moved before the demand is forecast anew."""


@dataclass(frozen=True, slots=True)
class ServiceState:
    """What is known about a service at a decision.

    Attributes:
        ready: replicas that carry load.
        starting: replicas that were asked for and are not ready.
        demand: load of the last whole step; NaN where it is missing.
        utilization: load over the capacity of the ready replicas that reported; NaN where none did.
        missing: ready replicas whose metric is missing.
        load: load now, in the step that is under way; NaN where it was not read since that began.
            A forecast that goes with it begins with the step after this one.
        elapsed_s: seconds since the last whole step has ended.
    """

    ready: int
    starting: int = 0
    demand: float = float("nan")
    utilization: float = float("nan")
    missing: int = 0
    load: float = float("nan")
    elapsed_s: float = 0.0

    @property
    def replicas(self) -> int:
        """Replicas that were asked for: ready and starting."""
        return self.ready + self.starting


class Scaler(Protocol):
    """Decides how many replicas there should be."""

    @property
    def period_s(self) -> float:
        """Seconds between decisions."""
        ...

    def decide(self, now_s: float, forecast: DemandForecast | None, state: ServiceState) -> int:
        """Return the number of replicas to have, within the service's limits."""
        ...


@dataclass(frozen=True, slots=True)
class FixedReplicas:
    """Always the same number.

    Attributes:
        replicas: the number.
        period_s: seconds between decisions.
    """

    replicas: int
    period_s: float = 3600.0

    def decide(self, now_s: float, forecast: DemandForecast | None, state: ServiceState) -> int:
        """Return the number."""
        return self.replicas


def peak_samples(forecast: DemandForecast, steps: int) -> NDArray[np.float64]:
    """Return samples of the largest demand of the next steps.

    Args:
        forecast: forecast of the demand; one without samples is read at 199 levels, its steps
            taken as rising and falling together.
        steps: steps to look ahead; fewer where the forecast has fewer.

    Returns:
        [n] values, not below 0.
    """
    drawn = forecast.samples
    if drawn is None:
        levels = np.arange(1, 200) / 200
        drawn = np.array([np.ravel(forecast.quantile(float(level))) for level in levels])
    flat = np.asarray(drawn, dtype=np.float64).reshape(len(drawn), -1)
    return np.maximum(flat[:, :steps].max(axis=1), 0.0)


class ScalerPolicy:
    """Lets a scaler take part in a control loop: keeps the demand seen, forecasts, and commands.

    A forecaster that fails, is late, or forecasts what is not finite, is replaced for that decision
    by the quantiles of the last values, and the command says so.

    Where the load is read more often than steps end, the step under way counts as if it went on as
    it is: the forecast begins with the step after it.
    """

    def __init__(
        self,
        scaler: Scaler,
        *,
        forecaster: Callable[[NDArray[np.float64]], DemandForecast] | None = None,
        history: ArrayLike = (),
        within: Within = at_once,
        keep: Callable[[int, DemandForecast], None] | None = None,
    ) -> None:
        """Make the policy.

        Args:
            scaler: decides.
            forecaster: turns the demand so far, [n], into a forecast; None for scalers without.
            history: [n] demand of the steps before.
            within: asks the forecaster, and tells when it is late.
            keep: is shown every forecast that is decided on, behind the number of steps before it;
                a later one of the same number takes its place.
        """
        self.scaler = scaler
        self._forecaster = GuardedDemand(forecaster, within) if forecaster else None
        self._keep = keep
        self._demand: list[float] = [float(item) for item in np.asarray(history).ravel()]
        self._step_began_s = float("nan")
        self._made: tuple[int, float, DemandForecast | None] | None = None

    @property
    def num_fallbacks(self) -> int:
        """Forecasts that had to be replaced."""
        return self._forecaster.num_fallbacks if self._forecaster else 0

    def decide(self, now_s: float, observation: Observation) -> list[Command]:
        """Return the command for "replicas", none where nothing changes.

        Args:
            now_s: time.
            observation: readings of "demand" (once per step, when it ends), "ready", "starting",
                "utilization", and where there are such "load" (at any time) and "missing".

        Returns:
            At most one command.
        """
        seen = [item for item in observation.arrived if item.meter == "demand"]
        self._demand += [item.value for item in seen]
        if seen or math.isnan(self._step_began_s):
            self._step_began_s = seen[-1].measured_s if seen else now_s
        if math.isnan(observation.value("ready")):
            # Whoever does not know how many there are must not ask for another number.
            return []
        state = self._state(now_s, observation, seen[-1].value if seen else float("nan"))
        forecast = self._forecast(state.load)
        wanted = self.scaler.decide(now_s, forecast, state)
        if wanted == state.replicas:
            return []
        source = forecast.source if forecast else ""
        reason = source if forecaster_of(source) != source else ""
        return [Command("replicas", float(wanted), reason)]

    def _state(self, now_s: float, observation: Observation, demand: float) -> ServiceState:
        """Return what is known about the service, its last whole step given."""
        period_s = self.scaler.period_s
        # What was read as the step began is still the load of the step before.
        is_of_step = observation.age_s("load", now_s) < now_s - self._step_began_s
        return ServiceState(
            ready=round(observation.value("ready")),
            starting=round(observation.value("starting", 0.0)),
            demand=demand,
            utilization=_fresh(observation, "utilization", now_s, period_s),
            missing=round(observation.value("missing", 0.0)),
            load=_fresh(observation, "load", now_s, period_s) if is_of_step else float("nan"),
            elapsed_s=now_s - self._step_began_s,
        )

    def _forecast(self, load: float) -> DemandForecast | None:
        """Return the forecast behind the demand so far, and the load of the step under way."""
        is_under_way = math.isfinite(load)
        demand = [*self._demand, load] if is_under_way else self._demand
        if self._forecaster is None or not demand:
            return None
        if self._made is not None:
            steps, last, made = self._made
            # A step holds hundreds of decisions, and a hair of load changes no forecast.
            hair = _SAME * abs(last) if is_under_way else 0.0
            if steps == len(demand) and abs(demand[-1] - last) <= hair:
                return made
        made = self._forecaster(np.array(demand))
        self._made = (len(demand), demand[-1], made)
        if made is not None and self._keep is not None:
            self._keep(len(demand), made)
        return made


def _fresh(observation: Observation, meter: str, now_s: float, period_s: float) -> float:
    """Return a reading that is at most two periods old, else NaN: an old metric is missing."""
    is_old = observation.age_s(meter, now_s) > 2 * period_s
    return float("nan") if is_old else observation.value(meter)

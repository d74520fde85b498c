"""What decides on a number of replicas, and the policy that a control loop drives it by."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import SteelyardError
from steelyard.sim.control import Command, Observation

__all__ = [
    "DemandForecast",
    "FixedReplicas",
    "RecentValues",
    "Scaler",
    "ScalerPolicy",
    "ServiceState",
    "peak_samples",
]

_RECENT = 24
_LEAST_HISTORY = 2


class DemandForecast(Protocol):
    """The distribution of the demand of the next steps."""

    @property
    def samples(self) -> NDArray[np.float64] | None:
        """[samples, horizon] or [samples, horizon, 1] joint samples; None where there are none."""
        ...

    def quantile(self, level: float) -> Any:
        """Return the quantile of each step, [horizon] or [horizon, 1]."""
        ...


@dataclass(frozen=True, slots=True)
class RecentValues:
    """The forecast that the next values are drawn from the last ones.

    Attributes:
        values: [n] last values.
    """

    values: NDArray[np.float64]

    @property
    def samples(self) -> NDArray[np.float64]:
        """The last values as samples of one step; later steps are the same."""
        return self.values[:, None]

    def quantile(self, level: float) -> NDArray[np.float64]:
        """Return a quantile of the last values, an array of one step."""
        return np.quantile(self.values, [level])


@dataclass(frozen=True, slots=True)
class ServiceState:
    """What is known about a service at a decision.

    Attributes:
        ready: replicas that carry load.
        starting: replicas that were asked for and are not ready.
        demand: load of the last whole step; NaN where it is missing.
        utilization: load over the capacity of the ready replicas that reported; NaN where none did.
        missing: ready replicas whose metric is missing.
    """

    ready: int
    starting: int = 0
    demand: float = float("nan")
    utilization: float = float("nan")
    missing: int = 0

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

    A forecaster that fails, or forecasts what is not finite, is replaced for that decision by the
    last 24 values, and the command says so.

    Attributes:
        num_fallbacks: decisions whose forecast had to be replaced.
    """

    def __init__(
        self,
        scaler: Scaler,
        *,
        forecaster: Callable[[NDArray[np.float64]], DemandForecast] | None = None,
        history: ArrayLike = (),
    ) -> None:
        """Make the policy.

        Args:
            scaler: decides.
            forecaster: turns the demand so far, [n], into a forecast; None for scalers without.
            history: [n] demand of the steps before.
        """
        self.scaler, self.forecaster = scaler, forecaster
        self.num_fallbacks = 0
        self._demand: list[float] = [float(item) for item in np.asarray(history).ravel()]

    def decide(self, now_s: float, observation: Observation) -> list[Command]:
        """Return the command for "replicas", none where nothing changes.

        Args:
            now_s: time.
            observation: readings of "demand" (once per step), "utilization", "ready", "starting",
                and "missing" where there are such.

        Returns:
            At most one command.
        """
        seen = [item.value for item in observation.arrived if item.meter == "demand"]
        self._demand += seen
        ready = observation.value("ready")
        if math.isnan(ready):
            # Whoever does not know how many there are must not ask for another number.
            return []
        state = ServiceState(
            ready=round(ready),
            starting=round(observation.value("starting", 0.0)),
            demand=seen[-1] if seen else float("nan"),
            utilization=_fresh(observation, "utilization", now_s, self.scaler.period_s),
            missing=round(observation.value("missing", 0.0)),
        )
        forecast, why = self._forecast()
        wanted = self.scaler.decide(now_s, forecast, state)
        return [] if wanted == state.replicas else [Command("replicas", float(wanted), why)]

    def _forecast(self) -> tuple[DemandForecast | None, str]:
        """Return the forecast, and what was wrong with the forecaster's own."""
        if self.forecaster is None or len(self._demand) < _LEAST_HISTORY:
            return None, ""
        history = np.array(self._demand)
        try:
            made = self.forecaster(history)
            if np.isfinite(np.asarray(made.quantile(0.5), dtype=float)).all():
                return made, ""
            why = "it is not finite"
        except (SteelyardError, ValueError, ArithmeticError) as error:
            why = str(error)
        self.num_fallbacks += 1
        return RecentValues(history[-_RECENT:]), f"last values in place of the forecast: {why}"


def _fresh(observation: Observation, meter: str, now_s: float, period_s: float) -> float:
    """Return a reading that is at most two periods old, else NaN: an old metric is missing."""
    is_old = observation.age_s(meter, now_s) > 2 * period_s
    return float("nan") if is_old else observation.value(meter)

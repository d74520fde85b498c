"""Scalers by simple rules: a quantile of the forecast, the largest load of a window, the truth."""

from collections import deque

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.operate.autoscale.forecasting import DemandForecast
from steelyard.operate.autoscale.scaler import ServiceState
from steelyard.sim.autoscale import Service, checked_demand

__all__ = ["MovingWindowMax", "Oracle", "OracleQuantile", "QuantileScaler"]


class QuantileScaler:
    """As many replicas as a quantile of the forecast needs.

    Attributes:
        level: the quantile's level.
    """

    def __init__(
        self, service: Service, *, step_s: float, lead_steps: int = 1, level: float | None = None
    ) -> None:
        """Make the scaler.

        Args:
            service: the service.
            step_s: seconds between decisions.
            lead_steps: steps that a decision has to cover.
            level: level of the quantile; 1 - the allowed share of misses when None.
        """
        self.service, self.period_s, self.lead_steps = service, step_s, lead_steps
        self.level = 1 - service.allowed if level is None else level

    def decide(self, now_s: float, forecast: DemandForecast | None, state: ServiceState) -> int:
        """Return what the quantile needs; as many as now without a forecast."""
        if forecast is None:
            return state.replicas
        # Until what the next decision asks for is ready, the fullest of these steps has to do.
        load = np.ravel(forecast.quantile(self.level))[: self.lead_steps]
        return self.service.replicas_for(float(load.max()))


class MovingWindowMax:
    """As many replicas as the largest load of a window needs, and a margin.

    Source: the moving window recommender of Rzadca et al. 2020, "Autopilot: workload autoscaling at
        Google", section 3.2, with its statistic S_max.
    """

    def __init__(
        self, service: Service, *, step_s: float, window_s: float = 3600.0, margin: float = 0.1
    ) -> None:
        """Make the scaler.

        Args:
            service: the service.
            step_s: seconds between decisions.
            window_s: seconds that it looks back.
            margin: share that is added to the largest load.
        """
        self.service, self.period_s, self.margin = service, step_s, margin
        self._loads: deque[float] = deque(maxlen=max(round(window_s / step_s), 1))

    def decide(self, now_s: float, forecast: DemandForecast | None, state: ServiceState) -> int:
        """Return what the largest load needs; as many as now before the first."""
        # Between two steps, or where the metric is missing, there is no new value to keep.
        if np.isfinite(state.demand):
            self._loads.append(state.demand)
        if not self._loads:
            return state.replicas
        return self.service.replicas_for(max(self._loads) * (1 + self.margin))


class OracleQuantile:
    """Knows a quantile of the demand of each step, as only the one who drew it can."""

    def __init__(
        self, service: Service, quantiles: ArrayLike, *, step_s: float, lead_steps: int = 1
    ) -> None:
        """Make the scaler.

        Args:
            service: the service.
            quantiles: [n] quantile of each step's demand, given the steps before.
            step_s: seconds of a step, and between decisions.
            lead_steps: steps that a decision has to cover.

        Raises:
            TraceError: a quantile is not finite or below 0.
        """
        self.service, self.period_s, self.lead_steps = service, step_s, lead_steps
        self._loads: NDArray[np.float64] = checked_demand(quantiles)

    def decide(self, now_s: float, forecast: DemandForecast | None, state: ServiceState) -> int:
        """Return what the steps that the decision covers need."""
        first = round(now_s / self.period_s)
        covered = self._loads[first : first + self.lead_steps]
        return self.service.replicas_for(float(covered.max())) if len(covered) else state.replicas


class Oracle(OracleQuantile):
    """Knows the demand: the fewest replicas that are never too few once they are ready."""

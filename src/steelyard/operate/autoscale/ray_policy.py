"""A scaler as the custom autoscaling policy of a Ray Serve deployment."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.operate.autoscale.forecasting import DemandForecast
from steelyard.operate.autoscale.scaler import Scaler, ScalerPolicy
from steelyard.sim.control import Observation, Reading

__all__ = ["RayServePolicy"]


class RayServePolicy:
    """Called by Ray Serve with an `AutoscalingContext`; returns the number of replicas.

    The demand is the total of ongoing requests (running and queued), as Ray's own policy sees it; a
    service for it has as capacity the requests that one replica serves at a time. Name it in
    `AutoscalingConfig(policy=AutoscalingPolicy(policy_function=...))` of Ray 2.51 or later (extra
    `[ray]`); nothing of Ray is loaded here.
    """

    def __init__(
        self,
        scaler: Scaler,
        *,
        forecaster: Callable[[NDArray[np.float64]], DemandForecast] | None = None,
        history: ArrayLike = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Make the policy.

        Args:
            scaler: decides every `scaler.period_s`, however often Ray asks.
            forecaster: turns the demand so far into a forecast.
            history: [n] demand of the steps before.
            clock: seconds.
        """
        self._policy = ScalerPolicy(scaler, forecaster=forecaster, history=history)
        self._period_s, self._clock = scaler.period_s, clock
        self._decided_s, self._answer = -np.inf, 0
        self._loads: list[float] = []

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """Return the number of replicas and the state to keep, as Ray asks for it.

        Args:
            context: Ray's `AutoscalingContext`; its counts of replicas, its limits and its total of
                requests are read.

        Returns:
            A number within the deployment's limits, and an empty state: the policy keeps its own.
        """
        now_s, current = self._clock(), int(context.current_num_replicas)
        # Ray asks several times between two decisions: their mean is less noisy than the last.
        self._loads.append(float(context.total_num_requests))
        if now_s - self._decided_s < self._period_s:
            return _within(context, self._answer or current), {}
        load = float(np.mean(self._loads))
        self._loads, self._decided_s = [], now_s
        values = {
            "demand": load,
            "ready": float(current),
            "starting": float(max(int(context.target_num_replicas) - current, 0)),
        }
        readings = {name: Reading(name, value, now_s) for name, value in values.items()}
        commands = self._policy.decide(now_s, Observation(readings, tuple(readings.values())))
        asked = round(commands[0].value) if commands else int(context.target_num_replicas)
        self._answer = _within(context, asked)
        return self._answer, {}


def _within(context: Any, replicas: int) -> int:
    """Hold a number in the deployment's limits."""
    low, high = int(context.capacity_adjusted_min_replicas), context.capacity_adjusted_max_replicas
    return max(low, min(replicas, int(high)))

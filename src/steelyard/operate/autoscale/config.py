"""Options of a replay of scalers, as a recipe or flags give them."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import TraceError, require
from steelyard.operate.autoscale.bayesian import BayesianScaler
from steelyard.operate.autoscale.hpa import ReactiveHPA
from steelyard.operate.autoscale.replay import lead_steps
from steelyard.operate.autoscale.rules import MovingWindowMax, QuantileScaler
from steelyard.operate.autoscale.scaler import Scaler
from steelyard.operate.autoscale.vpa import RecommenderVPA
from steelyard.sim.autoscale import Service
from steelyard.sim.control import Latency

__all__ = ["AutoscaleConfig", "scalers_of", "service_of"]

_REPLICAS = 20
"""Replicas at which a service is sized where nobody says what one carries."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AutoscaleConfig:
    """A service, its promise, and what its demand is replayed with.

    Args:
        capacity: load that one replica carries at full use, in the unit of the demand; 0 takes
            what lets 20 replicas carry the 99 % quantile of the history within the promise.
        target_utilization: share of its capacity up to which a replica keeps its promise.
        allowed: share of the time in which the promise may be missed.
        min_replicas: fewest replicas.
        max_replicas: most replicas.
        startup_s: median time until a new replica is ready.
        startup_sigma: spread of the start-up time, standard deviation of its logarithm.
        drain_s: time that a replica which is let go still runs.
        price_usd_per_hour: price of a replica in dollars.
        goal: "utilization" or "queue".
        max_wait_s: longest wait under the goal "queue".
        hpa_target: mean use that the reactive autoscaler aims at, as a share of the target.
        decide_every_s: seconds between decisions of BayesianScaler in a replay, as often as the
            reactive autoscaler reads; in service the steps of the demand are its clock.
        forecast_deadline_s: seconds that a forecast may take before the quantiles of the last
            values stand in; 0 for no limit.
        forecast_time_s: median seconds that a forecast takes in a replay.
        history_share: share of the demand that is known before the replay begins.
        seed: seed of start-up times and draws.
    """

    capacity: float = 0.0
    target_utilization: float = 0.8
    allowed: float = 0.05
    min_replicas: int = 1
    max_replicas: int = 1000
    startup_s: float = 60.0
    startup_sigma: float = 0.3
    drain_s: float = 0.0
    price_usd_per_hour: float = 1.0
    goal: Literal["utilization", "queue"] = "utilization"
    max_wait_s: float = 1.0
    hpa_target: float = 0.85
    decide_every_s: float = 15.0
    forecast_deadline_s: float = 30.0
    forecast_time_s: float = 0.0
    history_share: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        require(
            self,
            capacity=(0 <= self.capacity < math.inf, "finite, and above 0 or 0 to size it"),
            startup_s=(0 <= self.startup_s < math.inf, "finite seconds of 0 or more"),
            startup_sigma=(0 <= self.startup_sigma <= 3, "in [0, 3]"),
            hpa_target=(0 < self.hpa_target <= 2, "in (0, 2]"),
            decide_every_s=(1 <= self.decide_every_s < math.inf, "finite seconds of 1 or more"),
            forecast_deadline_s=(
                0 <= self.forecast_deadline_s < math.inf,
                "finite seconds of 0 or more",
            ),
            forecast_time_s=(0 <= self.forecast_time_s < math.inf, "finite seconds of 0 or more"),
            history_share=(0.05 <= self.history_share <= 0.95, "in [0.05, 0.95]"),
        )


def service_of(config: AutoscaleConfig, history: NDArray[np.float64]) -> Service:
    """Return the service of a configuration.

    Args:
        config: the options.
        history: [n] demand before the replay; it sizes a service without capacity.

    Returns:
        The service.

    Raises:
        TraceError: a service has to be sized on a history that is 0 throughout.
        ConfigError: an option is out of range.
    """
    capacity = config.capacity
    if not capacity:
        # The largest loads of a record are often faults of whoever recorded them.
        load = float(np.quantile(history, 0.99))
        if load <= 0:
            raise TraceError(
                "the demand is 0 nearly throughout, so that it does not size a replica",
                hint="say what one carries with --capacity",
            )
        capacity = load / config.target_utilization / _REPLICAS
    startup = Latency.lognormal(config.startup_s, config.startup_sigma)
    return Service(
        capacity=capacity,
        target_utilization=config.target_utilization,
        allowed=config.allowed,
        min_replicas=config.min_replicas,
        max_replicas=config.max_replicas,
        startup=startup,
        drain_s=config.drain_s,
        price_usd_per_hour=config.price_usd_per_hour,
        goal=config.goal,
        max_wait_s=config.max_wait_s,
    )


def scalers_of(
    config: AutoscaleConfig, service: Service, step_s: float, *, period_s: float | None = None
) -> dict[str, Scaler]:
    """Return every scaler that needs no knowledge of the future, by its name in tables.

    Args:
        config: the options.
        service: the service.
        step_s: seconds of a step of the demand.
        period_s: seconds between decisions of the Bayesian scaler where the load is read between
            steps too; a step when None.

    Returns:
        Scalers with nothing learned yet.
    """
    lead = lead_steps(service, step_s)
    # Its use may go beyond its target by a tenth before anything happens: aiming at the promise
    # itself would miss it.
    use = config.hpa_target * service.target_utilization
    return {
        "BayesianScaler": BayesianScaler(
            service, step_s=step_s, lead_steps=lead, period_s=period_s, seed=config.seed
        ),
        "QuantileScaler": QuantileScaler(service, step_s=step_s, lead_steps=lead),
        "ReactiveHPA": ReactiveHPA(service, target_utilization=use),
        "RecommenderVPA": RecommenderVPA(service, step_s=step_s),
        "MovingWindowMax": MovingWindowMax(service, step_s=step_s),
    }

"""One demand, every rival: the Bayesian scaler, a tuned reactive one, a level by hindsight."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from benchmarks.operate._cloud_demand import RealDemand

from steelyard.operate.autoscale import (
    BayesianScaler,
    DemandForecast,
    QuantileScaler,
    ReactiveHPA,
    ScalerRun,
    lead_steps,
    replay,
)
from steelyard.operate.autoscale.study import choose_forecaster
from steelyard.sim.autoscale import Service
from steelyard.sim.control import Latency

__all__ = ["ALLOWED", "FUNCTIONS", "REPLICAS", "Contest", "compete", "pooled"]

ALLOWED = 0.05
FUNCTIONS = "functions"
REPLICAS = "replicas"
_SIZE = 40
_TARGETS = (0.95, 0.9, 0.8, 0.7, 0.55, 0.4, 0.3, 0.2)
"""Shares of the promised use that the reactive scaler may aim at."""
_TUNED_STEPS = 2016


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """What each rival did on the last week of one demand.

    Attributes:
        name: demand.
        bayesian: the Bayesian scaler.
        unadapted: the same without adaptation.
        reactive: the reactive scaler with the target that kept the promise in the week before.
        hindsight: the quantile scaler with the level that just keeps the promise in this week.
        target: what the reactive scaler aimed at, as a share of the promised use.
    """

    name: str
    bayesian: ScalerRun
    unadapted: ScalerRun
    reactive: ScalerRun
    hindsight: ScalerRun
    target: float


def service_for(demand: RealDemand, startup: Latency) -> Service:
    """Return a service of which 40 replicas carry the 99 % quantile of the history."""
    load = max(float(np.quantile(demand.history, 0.99)), 1e-9)
    return Service(
        capacity=load / 0.8 / _SIZE,
        target_utilization=0.8,
        allowed=ALLOWED,
        max_replicas=50 * _SIZE,
        startup=startup,
    )


def compete(demand: RealDemand, startup: Latency) -> Contest:
    """Let all rivals control one service through the last week of a demand."""
    service = service_for(demand, startup)
    step_s = demand.step_s
    lead = lead_steps(service, step_s)
    forecast, _ = choose_forecaster(demand.history, step_s=step_s, horizon=lead)
    made: dict[int, DemandForecast] = {}

    def remembered(seen: np.ndarray) -> DemandForecast:
        if len(seen) not in made:
            made[len(seen)] = forecast(seen)
        return made[len(seen)]

    def run(scaler, load=demand.week, history=demand.history) -> ScalerRun:
        return replay(service, load, scaler, step_s=step_s, forecaster=remembered, history=history)

    def bayesian(*, adapts: bool) -> BayesianScaler:
        return BayesianScaler(service, step_s=step_s, lead_steps=lead, adapts=adapts)

    target = _tuned_target(service, demand)
    level = _hindsight_level(lambda level: run(_quantile(service, step_s, lead, level)))
    return Contest(
        name=demand.name,
        bayesian=run(bayesian(adapts=True)),
        unadapted=run(bayesian(adapts=False)),
        reactive=replay(service, demand.week, _reactive(service, target), step_s=step_s),
        hindsight=run(_quantile(service, step_s, lead, level)),
        target=target,
    )


def _quantile(service: Service, step_s: float, lead: int, level: float) -> QuantileScaler:
    return QuantileScaler(service, step_s=step_s, lead_steps=lead, level=level)


def _reactive(service: Service, target: float) -> ReactiveHPA:
    return ReactiveHPA(service, target_utilization=target * service.target_utilization)


def _tuned_target(service: Service, demand: RealDemand) -> float:
    """Return the highest target that kept the promise before the week: misses rise with it."""
    past = demand.history[-_TUNED_STEPS:]
    low, high = 0, len(_TARGETS) - 1
    while low < high:
        middle = (low + high) // 2
        found = replay(service, past, _reactive(service, _TARGETS[middle]), step_s=demand.step_s)
        if found.report.outcome.violation_rate <= ALLOWED:
            high = middle
        else:
            low = middle + 1
    return _TARGETS[low]


def _hindsight_level(run) -> float:
    """Return the lowest level of the quantile that keeps the promise in this very week."""
    low, high = 0.8, 0.999
    for _ in range(5):
        middle = (low + high) / 2
        if run(middle).report.outcome.violation_rate <= ALLOWED:
            high = middle
        else:
            low = middle
    return high


def pooled(contests: Sequence[Contest], rival: str) -> tuple[float, float]:
    """Return a rival's instance-hours and its share of missed time over all demands."""
    outcomes = [getattr(item, rival).report.outcome for item in contests]
    hours = sum(item.details["instance_hours"] for item in outcomes)
    return hours, sum(item.violated for item in outcomes) / sum(item.checked for item in outcomes)

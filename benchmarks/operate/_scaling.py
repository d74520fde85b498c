"""One demand, every rival: the Bayesian scaler, a tuned reactive one, a level by hindsight."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from benchmarks.operate._cloud_demand import RealDemand

from steelyard.operate.autoscale import (
    BayesianScaler,
    ReactiveHPA,
    ScalerRun,
    lead_steps,
    replay,
)
from steelyard.operate.autoscale.book import checked_steps
from steelyard.operate.autoscale.replay import RememberedForecasts
from steelyard.operate.autoscale.study import choose_forecaster
from steelyard.operate.forecast.bookkeeping import CheckedStep, SaidSteps
from steelyard.sim.autoscale import Service
from steelyard.sim.control import Latency

__all__ = [
    "ALLOWED",
    "BUDGETS",
    "FUNCTIONS",
    "REPLICAS",
    "Contest",
    "compete",
    "pooled",
    "reactive_at",
]

ALLOWED = 0.05
FUNCTIONS = "functions"
REPLICAS = "replicas"
_SIZE = 40
_PERIOD_S = 15.0
"""Seconds between decisions of both: Kubernetes' default."""
_TARGETS = (0.95, 0.9, 0.8, 0.7, 0.55, 0.4, 0.3, 0.2)
"""Shares of the promised use that the reactive scaler may aim at."""
BUDGETS = (0.02, ALLOWED, 0.12)
"""Shares of the time that the reactive scaler is tuned to miss at most, in the week before."""
_SHARES = (0.02, 0.05, 0.08, 0.12, 0.2, 0.35, 0.5)
"""Constant shares of misses among which hindsight chooses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """What each rival did on the last week of one demand.

    Attributes:
        name: demand.
        bayesian: the Bayesian scaler, which reads the load as often as the reactive one.
        on_steps: the same, deciding when a step of the record ends.
        each: as `bayesian`, with the promise kept by each decision in place of the long run.
        reactive: the reactive scaler with the highest target that kept the promise in the week
            before.
        hindsight: as `each` without adaptation, with the share of misses that just keeps the
            promise in this very week: the quantile whose level is known.
        target: what the reactive scaler aimed at, as a share of the promised use.
        by_budget: reactive scalers that were tuned to miss at most so much in the week before.
        steps: what `bayesian` forecast beside what came.
    """

    name: str
    bayesian: ScalerRun
    on_steps: ScalerRun
    each: ScalerRun
    reactive: ScalerRun
    hindsight: ScalerRun
    target: float
    by_budget: dict[float, ScalerRun]
    steps: list[CheckedStep]


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


def compete(demand: RealDemand, startup: Latency, budgets: Sequence[float] = BUDGETS) -> Contest:
    """Let all rivals control one service through the last week of a demand.

    Args:
        demand: the demand.
        startup: start-up times of its replicas.
        budgets: shares that the reactive scaler is tuned to miss at most; `ALLOWED` among them.

    Returns:
        What each did.
    """
    service, step_s = service_for(demand, startup), demand.step_s
    lead = lead_steps(service, step_s)
    forecast, _ = choose_forecaster(demand.history, step_s=step_s, horizon=lead)
    remembered = RememberedForecasts(forecast)

    def bayesian(
        *, period_s: float = _PERIOD_S, allowed: float = ALLOWED, **given: Any
    ) -> ScalerRun:
        scaler = BayesianScaler(
            replace(service, allowed=allowed),
            step_s=step_s,
            lead_steps=lead,
            period_s=period_s,
            **given,
        )
        return replay(
            service,
            demand.week,
            scaler,
            step_s=step_s,
            forecaster=remembered,
            history=demand.history,
        )

    ours, reactive = bayesian(), _Reactive(service, demand)
    targets = {budget: reactive.target(budget) for budget in budgets}
    return Contest(
        name=demand.name,
        bayesian=ours,
        on_steps=bayesian(period_s=step_s),
        each=bayesian(promise="each decision"),
        reactive=reactive.in_week(targets[ALLOWED]),
        hindsight=_hindsight(
            lambda share: bayesian(promise="each decision", adapts=False, allowed=share)
        ),
        target=targets[ALLOWED],
        by_budget={budget: reactive.in_week(target) for budget, target in targets.items()},
        steps=_steps(ours, demand),
    )


def _steps(run: ScalerRun, demand: RealDemand) -> list[CheckedStep]:
    """Return what was forecast beside what came."""
    said = [
        SaidSteps.of(
            forecast,
            series=demand.name,
            first_s=known * demand.step_s,
            step_s=demand.step_s,
        )
        for known, forecast in run.forecasts.items()
    ]
    came = np.concatenate([demand.history, demand.week])
    return checked_steps(said, came, start_s=0.0, source=demand.name)


class _Reactive:
    """The reactive scaler on one service; each target is tried once."""

    def __init__(self, service: Service, demand: RealDemand) -> None:
        self._service, self._step_s = service, demand.step_s
        self._past, self._week = demand.history[-len(demand.week) :], demand.week
        self._misses: dict[float, float] = {}
        self._runs: dict[float, ScalerRun] = {}

    def target(self, budget: float) -> float:
        """Return the highest target within a budget of misses before the week.

        Misses rise with the target.
        """
        low, high = 0, len(_TARGETS) - 1
        while low < high:
            middle = (low + high) // 2
            if self._before(_TARGETS[middle]) <= budget:
                high = middle
            else:
                low = middle + 1
        return _TARGETS[low]

    def _before(self, target: float) -> float:
        """Return the share of misses of a target before the week."""
        if target not in self._misses:
            run = self._replay(target, self._past)
            self._misses[target] = run.report.outcome.violation_rate
        return self._misses[target]

    def in_week(self, target: float) -> ScalerRun:
        """Return what a target does in the week."""
        if target not in self._runs:
            self._runs[target] = self._replay(target, self._week)
        return self._runs[target]

    def _replay(self, target: float, load: np.ndarray) -> ScalerRun:
        """Replay one target."""
        scaler = ReactiveHPA(
            self._service,
            target_utilization=target * self._service.target_utilization,
            period_s=_PERIOD_S,
        )
        return replay(self._service, load, scaler, step_s=self._step_s)


def _hindsight(run: Callable[[float], ScalerRun]) -> ScalerRun:
    """Return the run with the highest share of misses that keeps the promise in this very week."""
    low, high = 0, len(_SHARES)
    best = None
    while low < high:
        middle = (low + high) // 2
        found = run(_SHARES[middle])
        if found.report.outcome.violation_rate <= ALLOWED:
            low, best = middle + 1, found
        else:
            high = middle
    # Where even the strictest misses too much, it is the best that a constant share can do.
    return best or run(_SHARES[0])


def pooled(runs: Sequence[ScalerRun]) -> tuple[float, float]:
    """Return instance-hours and the share of missed time over all demands."""
    outcomes = [item.report.outcome for item in runs]
    hours = sum(item.details["instance_hours"] for item in outcomes)
    return hours, sum(item.violated for item in outcomes) / sum(item.checked for item in outcomes)


def reactive_at(contests: Sequence[Contest], missed: float) -> float:
    """Return the instance-hours at which the reactive scaler misses so much, on a straight line.

    Beyond the strictest and the loosest budget those hold.
    """
    points = sorted(
        pooled([item.by_budget[budget] for item in contests])[::-1]
        for budget in contests[0].by_budget
    )
    shares, hours = zip(*points, strict=True)
    return float(np.interp(missed, shares, hours))

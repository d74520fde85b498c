"""All scalers on one demand, with the same start-up times, beside an oracle and the best fixed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.operate.autoscale.forecasting import DemandForecast, Within, at_once
from steelyard.operate.autoscale.rules import Oracle
from steelyard.operate.autoscale.scaler import FixedReplicas, Scaler, ScalerPolicy
from steelyard.sim.autoscale import METERS, Service, ServicePlant, checked_demand
from steelyard.sim.control import Actuator, ControlReport, Meter, simulate, with_regret

__all__ = ["RememberedForecasts", "ScalerRun", "lead_steps", "replay", "replay_all"]

Forecast = Callable[[NDArray[np.float64]], DemandForecast]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerRun:
    """What a scaler did with a demand.

    Attributes:
        report: cost, misses, changes and regret.
        ready: [n] mean number of ready replicas in each step.
        missed_s: [n] seconds of each step in which the promise was missed.
        num_fallbacks: forecasts that the quantiles of the last values stood in for.
        forecasts: what was decided on, by the number of steps that were known before, those of the
            history counted.
    """

    report: ControlReport
    ready: NDArray[np.float64]
    missed_s: NDArray[np.float64]
    num_fallbacks: int = 0
    forecasts: Mapping[int, DemandForecast] = field(default_factory=dict)


def lead_steps(service: Service, step_s: float, *, level: float = 0.9) -> int:
    """Return how many steps a decision has to cover.

    Args:
        service: its start-up time counts.
        step_s: seconds of a step.
        level: share of the replicas that are ready in time.

    Returns:
        1, and the steps until the replicas of the next decision are ready; those that are ready
        within a tenth of a step count as ready at once.
    """
    return 1 + max(int(np.ceil(service.startup.quantile_s(level) / step_s - 0.1)), 0)


def replay(
    service: Service,
    demand: ArrayLike,
    scaler: Scaler,
    *,
    step_s: float,
    forecaster: Forecast | None = None,
    history: ArrayLike = (),
    within: Within = at_once,
    replicas: int = 0,
    capacity_spread: float = 0.0,
    seed: int = 0,
    name: str = "",
) -> ScalerRun:
    """Let a scaler control a service under a recorded demand.

    Args:
        service: the service.
        demand: [n] mean load of each step.
        scaler: decides every `scaler.period_s`.
        step_s: seconds of a step.
        forecaster: turns the demand so far into a forecast; None for scalers that need none.
        history: [m] demand of the steps before the first.
        within: asks the forecaster, and tells when it is late.
        replicas: replicas at first; what the first step needs when 0.
        capacity_spread: spread of a replica's true capacity from step to step.
        seed: seed of start-up times; runs of one seed can be compared.
        name: name of the scaler; that of its class when empty.

    Returns:
        The run, without regret.

    Raises:
        TraceError: the demand cannot be used.
    """
    spread = {"replicas": replicas, "capacity_spread": capacity_spread, "seed": seed}
    plant = ServicePlant(service, demand, step_s=step_s, **spread)
    forecasts: dict[int, DemandForecast] = {}
    policy = ScalerPolicy(
        scaler,
        forecaster=forecaster,
        history=history,
        within=within,
        keep=forecasts.__setitem__,
    )
    return _controlled(plant, policy, forecasts, seed, name or type(scaler).__name__)


def _controlled(
    plant: ServicePlant,
    policy: ScalerPolicy,
    forecasts: Mapping[int, DemandForecast],
    seed: int,
    name: str,
) -> ScalerRun:
    """Let a policy control a plant to the end of its demand."""
    period_s = min(policy.scaler.period_s, plant.duration_s)
    # A load is known when its step is over; all else is shown as often as it is asked for.
    meters = [
        Meter(name=item, period_s=plant.step_s if item == "demand" else period_s) for item in METERS
    ]
    report = simulate(
        policy,
        plant,
        meters,
        [Actuator(target="replicas")],
        period_s=period_s,
        duration_s=plant.duration_s,
        seed=seed,
        name=name,
    )
    return ScalerRun(
        report=report,
        ready=plant.ready_by_step,
        missed_s=plant.missed_s_by_step,
        num_fallbacks=policy.num_fallbacks,
        forecasts=forecasts,
    )


def replay_all(
    service: Service,
    demand: ArrayLike,
    scalers: Mapping[str, Scaler],
    *,
    step_s: float,
    forecaster: Forecast | None = None,
    history: ArrayLike = (),
    within: Within = at_once,
    seed: int = 0,
) -> dict[str, ScalerRun]:
    """Replay scalers, an oracle and the best fixed number, and put the regrets in.

    Args:
        service: the service.
        demand: [n] mean load of each step.
        scalers: scalers by name.
        step_s: seconds of a step.
        forecaster: turns the demand so far into a forecast.
        history: [m] demand of the steps before the first.
        within: asks the forecaster, and tells when it is late.
        seed: seed of start-up times.

    Returns:
        Runs by name: those given, then "best fixed" and "oracle".

    Raises:
        TraceError: the demand cannot be used.
    """
    load = checked_demand(demand)
    forecasts = RememberedForecasts(forecaster) if forecaster else None
    given = {"step_s": step_s, "seed": seed}
    runs = {
        name: replay(
            service,
            load,
            scaler,
            forecaster=forecasts,
            history=history,
            within=within,
            name=name,
            **given,
        )
        for name, scaler in scalers.items()
    }
    oracle = Oracle(service, load, step_s=step_s, lead_steps=lead_steps(service, step_s))
    fixed = _fixed(service, load, step_s, seed)
    runs["best fixed"] = min(fixed, key=lambda item: item.report.outcome.loss)
    runs["oracle"] = replay(service, load, oracle, name="oracle", **given)
    return _with_regrets(runs, fixed)


def _with_regrets(
    runs: Mapping[str, ScalerRun], fixed: Sequence[ScalerRun]
) -> dict[str, ScalerRun]:
    """Put regrets into the reports of runs, one of which is the oracle's."""
    told = with_regret(
        [item.report for item in runs.values()],
        oracle=runs["oracle"].report,
        fixed=[item.report for item in fixed],
    )
    pairs = zip(runs.items(), told, strict=True)
    return {name: replace(run, report=report) for (name, run), report in pairs}


class RememberedForecasts:
    """A forecaster that makes each forecast of one growing demand once, for all scalers."""

    def __init__(self, forecaster: Forecast) -> None:
        """Begin without forecasts."""
        self._forecaster = forecaster
        self._made: dict[tuple[int, float], DemandForecast] = {}
        # A forecast that another one stands in for is named after it.
        self.name = getattr(forecaster, "name", type(forecaster).__name__)

    def __call__(self, demand: NDArray[np.float64]) -> DemandForecast:
        """Return the forecast behind a demand [n]."""
        # The last value may be that of a step under way, as it is read so far.
        key = (len(demand), float(demand[-1]))
        if key not in self._made:
            self._made[key] = self._forecaster(demand)
        return self._made[key]


def _fixed(
    service: Service, load: NDArray[np.float64], step_s: float, seed: int
) -> list[ScalerRun]:
    """Replay the numbers about the one of least loss."""
    # Dollars rise with a fixed number on a line and the price of missing replicas is convex, so the
    # least loss lies at the quantile of the newsvendor.
    middle = service.replicas_for(float(np.quantile(load, 1 - service.allowed)))
    numbers = sorted({service.clipped(middle + extra) for extra in (-1, 0, 1)})
    return [
        replay(
            service,
            load,
            FixedReplicas(number, period_s=len(load) * step_s),
            step_s=step_s,
            replicas=number,
            seed=seed,
            name=f"best fixed ({number})",
        )
        for number in numbers
    ]

"""Servers of a row that start and go off with the load: one scaler for each priority."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError, require
from steelyard.operate.autoscale import BayesianScaler, FixedReplicas, ReactiveHPA, Scaler
from steelyard.operate.autoscale.replay import lead_steps
from steelyard.operate.autoscale.rules import Oracle
from steelyard.operate.autoscale.scaler import ScalerPolicy
from steelyard.operate.autoscale.study import choose_forecaster
from steelyard.sim.autoscale import Service
from steelyard.sim.control import (
    Actuator,
    Command,
    ControlReport,
    Latency,
    Meter,
    Observation,
    Policy,
    Reading,
    simulate,
)
from steelyard.sim.power import PRIORITIES, SERVERS, RowPlant, RowRequests, ServerRow

__all__ = ["SCALERS", "ByPriority", "ScaledRow", "ScalingRules", "scale_row"]

SCALERS = ("all on", "hpa", "forecast", "oracle")
"""Names of scalers: none, by use as Kubernetes does, by a forecast, and by knowing the load."""
_METERS = ("load", "ready", "starting", "utilization")


@dataclass(frozen=True, kw_only=True)
class ScalingRules:
    """How servers of a row are scaled.

    Args:
        startup_s: median time from asking for a server until its engine works, weights loaded.
        startup_sigma: spread of that time, standard deviation of its logarithm.
        target: share of the slots that are to be in use.
        allowed: share of the time in which more may be in use.
        step_s: length of a step of the load.
        decide_every_s: time between decisions.
    """

    startup_s: float = 180.0
    startup_sigma: float = 0.3
    target: float = 0.7
    allowed: float = 0.05
    step_s: float = 300.0
    decide_every_s: float = 15.0

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        require(
            self,
            startup_s=(0 < self.startup_s < 86_400, "in (0, 86400)"),
            startup_sigma=(0 <= self.startup_sigma <= 3, "in [0, 3]"),
            target=(0 < self.target <= 1, "in (0, 1]"),
            allowed=(0 < self.allowed < 1, "in (0, 1)"),
            step_s=(60 <= self.step_s <= 3600, "in [60, 3600]"),
            decide_every_s=(1 <= self.decide_every_s <= self.step_s, "at least 1, at most a step"),
        )

    @property
    def startup(self) -> Latency:
        """Distribution of start-ups."""
        return Latency.lognormal(self.startup_s, self.startup_sigma)

    def service(self, row: ServerRow, priority: int) -> Service:
        """Return a priority's servers as a service whose load is requests at once."""
        count = (row.high_servers, row.low_servers)[priority]
        return Service(
            capacity=float(row.slots),
            target_utilization=self.target,
            allowed=self.allowed,
            min_replicas=1,
            max_replicas=max(count, 1),
            startup=self.startup,
        )


class ByPriority:
    """One policy for the servers of each priority, as one policy of a row."""

    def __init__(self, policies: Mapping[str, Policy]) -> None:
        """Keep them.

        Args:
            policies: policy of each priority, "high" or "low"; each commands "replicas".
        """
        self._policies = policies

    def decide(self, now_s: float, observation: Observation) -> list[Command]:
        """Return the commands of all.

        Args:
            now_s: time.
            observation: readings named by priority, such as "high.load".

        Returns:
            Commands for "high.servers" and "low.servers".
        """
        found: list[Command] = []
        for name, policy in self._policies.items():
            asked = policy.decide(now_s, _of_priority(observation, name))
            target = SERVERS[PRIORITIES.index(name)]
            found += [replace(command, target=target) for command in asked]
        return found


def _of_priority(observation: Observation, name: str) -> Observation:
    """Return the readings of a priority without its name."""
    begins = f"{name}."

    def plain(reading: Reading) -> Reading:
        return replace(reading, meter=reading.meter.removeprefix(begins))

    latest = {
        meter.removeprefix(begins): plain(reading)
        for meter, reading in observation.latest.items()
        if meter.startswith(begins)
    }
    arrived = [plain(item) for item in observation.arrived if item.meter.startswith(begins)]
    return Observation(latest, tuple(arrived))


@dataclass(frozen=True, slots=True)
class ScaledRow:
    """A row whose servers a scaler controlled.

    Attributes:
        name: name of the scaler.
        report: commands and outcome.
        plant: the row at the end.
        load: mean requests of each priority in each step, [priorities, steps].
    """

    name: str
    report: ControlReport
    plant: RowPlant
    load: NDArray[np.float64]


class _Recorded:
    """Passes decisions on, and keeps the loads that were read."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.load: dict[str, list[float]] = {name: [] for name in PRIORITIES}

    def decide(self, now_s: float, observation: Observation) -> list[Command]:
        for item in observation.arrived:
            name, _, what = item.meter.partition(".")
            # The reading at the very start is of no step.
            if what == "demand" and item.measured_s > 0:
                self.load[name].append(item.value)
        return self._policy.decide(now_s, observation)


def scale_row(
    name: str,
    row: ServerRow,
    requests: RowRequests,
    rules: ScalingRules,
    *,
    duration_s: float,
    known: NDArray[np.float64] | None = None,
    seed: int = 0,
) -> ScaledRow:
    """Let a scaler start and stop a row's servers; no power cap is set.

    Args:
        name: one of `SCALERS`.
        row: all servers that there are.
        requests: what arrives.
        rules: start-ups, goals and steps.
        duration_s: seconds to simulate.
        known: mean requests of each priority by step, [priorities, steps]: those of an earlier time
            for "forecast", and of this time for "oracle"; not needed by the others.
        seed: seed of start-ups.

    Returns:
        The row and what its scaler did.

    Raises:
        ConfigError: an unknown scaler, or one that is not told what it has to know.
    """
    if name not in SCALERS:
        raise ConfigError(
            f"no scaler {name!r}", hint=f"scalers are {', '.join(map(repr, SCALERS))}"
        )
    if known is None and name in SCALERS[2:]:
        raise ConfigError(f"the scaler {name!r} has to know a load", hint="give `known`")
    plant = RowPlant(row, requests, duration_s=duration_s, startup=rules.startup, seed=seed)
    loads = np.zeros((len(PRIORITIES), 0)) if known is None else known
    policies = {
        priority: _policy(name, rules, rules.service(row, place), loads[place], seed)
        for place, priority in enumerate(PRIORITIES)
        if (row.high_servers, row.low_servers)[place]
    }
    policy = _Recorded(ByPriority(policies))
    report = simulate(
        policy,
        plant,
        _meters(policies, rules),
        [Actuator(target=target) for target in SERVERS],
        period_s=rules.decide_every_s,
        duration_s=duration_s,
        seed=seed,
        name=name,
    )
    steps = max(map(len, policy.load.values()))
    load = [np.resize(policy.load[item] or [0.0], steps) for item in PRIORITIES]
    return ScaledRow(name, report, plant, np.array(load))


def _policy(
    name: str, rules: ScalingRules, service: Service, known: NDArray[np.float64], seed: int
) -> Policy:
    """Return the policy of one priority's servers."""
    step_s, lead = rules.step_s, lead_steps(service, rules.step_s)
    if name == "forecast":
        forecaster, _ = choose_forecaster(known, step_s=step_s, horizon=lead)
        bayesian = BayesianScaler(
            service, step_s=step_s, lead_steps=lead, period_s=rules.decide_every_s, seed=seed
        )
        return ScalerPolicy(bayesian, forecaster=forecaster, history=known)
    scalers: dict[str, Scaler] = {
        "all on": FixedReplicas(service.max_replicas),
        "hpa": ReactiveHPA(service, period_s=rules.decide_every_s),
    }
    if name == "oracle":
        scalers[name] = Oracle(service, known, step_s=step_s, lead_steps=lead)
    return ScalerPolicy(scalers[name])


def _meters(policies: Mapping[str, Policy], rules: ScalingRules) -> list[Meter]:
    """Return the meters of each priority; a load by step is known when the step is over."""
    found = [Meter(name=f"{name}.demand", period_s=rules.step_s) for name in policies]
    return found + [
        Meter(name=f"{name}.{item}", period_s=rules.decide_every_s)
        for name in policies
        for item in _METERS
    ]

"""Policies side by side on the same requests and draws, with what each costs over the best."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from steelyard.errors import ConfigError
from steelyard.operate.coldstart.delay import AsyncDelay
from steelyard.operate.coldstart.keepalive import (
    FixedKeepAlive,
    HybridHistogram,
    KeepAliveOracle,
    TimerAware,
    UtilityAware,
)
from steelyard.operate.coldstart.prewarm import ChainPrewarm, ForecastPrewarm, TimerPrewarm
from steelyard.sim.serverless import Platform, ServerlessResult, Workload, run

__all__ = ["ORACLE", "POLICIES", "PolicyOutcome", "compare"]

ORACLE = "oracle"
"""Name of the row that knows all arrivals."""

_TIMERS = (TimerPrewarm(),)
POLICIES: dict[str, dict[str, Any]] = {
    "fixed": {"keep_alive": FixedKeepAlive()},
    "fixed-10min": {"keep_alive": FixedKeepAlive(default_s=600.0)},
    "histogram": {"keep_alive": HybridHistogram()},
    "utility": {"keep_alive": UtilityAware()},
    "timer": {"keep_alive": TimerAware(), "prewarm": _TIMERS},
    "timer+utility": {"keep_alive": TimerAware(base=UtilityAware()), "prewarm": _TIMERS},
    "timer+chain": {"keep_alive": TimerAware(), "prewarm": (*_TIMERS, ChainPrewarm())},
    "forecast": {"keep_alive": FixedKeepAlive(), "prewarm": (ForecastPrewarm(),)},
    "delay": {"keep_alive": FixedKeepAlive(), "delay": AsyncDelay()},
}
"""Changes to a platform by the name under which a command knows them."""


@dataclass(frozen=True)
class PolicyOutcome:
    """What one policy did.

    Attributes:
        name: its name.
        result: the simulated run.
        cost_s: pod-seconds and pool-seconds, plus waits for starts at their price.
        regret: cost over that of the best policy, less 1; the oracle's may be below 0.
    """

    name: str
    result: ServerlessResult
    cost_s: float
    regret: float


def compare(
    platform: Platform,
    workload: Workload,
    policies: Mapping[str, Mapping[str, Any]],
    *,
    seed: int = 0,
    wait_cost: float = 30.0,
) -> list[PolicyOutcome]:
    """Run every policy, and the oracle last, on the same requests and draws.

    Args:
        platform: whose policies are changed.
        workload: requests.
        policies: changes by name, as `POLICIES`.
        seed: seed of the start-ups.
        wait_cost: pod-seconds that a second of waiting for a start is worth.

    Returns:
        Outcomes by rising cost; the oracle comes last.

    Raises:
        ConfigError: no policy is given, or the price is below 0.
    """
    if not policies:
        raise ConfigError("no policy is given", hint=f"policies: {', '.join(POLICIES)}")
    if wait_cost < 0:
        raise ConfigError(f"wait_cost is {wait_cost}, but must be 0 or more")
    made = {
        name: run(platform.with_policies(**item), workload, seed) for name, item in policies.items()
    }
    # It brings pods back by its own plans; orders of others would only start some twice.
    oracle = platform.with_policies(keep_alive=KeepAliveOracle(workload), prewarm=())
    made[ORACLE] = run(oracle, workload, seed)
    costs = {name: _cost_s(result, wait_cost) for name, result in made.items()}
    best_s = min(cost for name, cost in costs.items() if name != ORACLE)
    found = [
        PolicyOutcome(name, made[name], costs[name], costs[name] / max(best_s, 1e-9) - 1)
        for name in made
    ]
    return sorted(found, key=lambda item: (item.name == ORACLE, item.cost_s))


def _cost_s(result: ServerlessResult, wait_cost: float) -> float:
    """Return what a run cost, in pod-seconds."""
    return result.pod_s + result.pool_s + wait_cost * float(result.cold_wait_s.sum())

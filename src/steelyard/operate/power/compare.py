"""One row under several policies, beside the row without any and an oracle."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from steelyard.errors import ConfigError
from steelyard.operate.power.ladder import all_cap, no_cap, one_threshold, polca
from steelyard.operate.power.oracle import ScheduledCaps, oracle
from steelyard.sim.power import BandPolicy, RowReplay, RowRequests, RowScenario, replay_row

__all__ = [
    "POLICIES",
    "RowAnswer",
    "compare_policies",
    "longer_than",
    "replay_scenario",
    "uncapped",
]

POLICIES = ("polca", "one threshold", "all cap", "no cap", "oracle")
"""Policies that can be compared; "no cap" only brakes."""
_FREE = "nothing"
_NAMES = ("high_p50_s", "high_p99_s", "low_p50_s", "low_p99_s")


@dataclass(frozen=True, slots=True)
class RowAnswer:
    """A row under several policies.

    Attributes:
        scenario: row, requests and devices.
        thresholds: first and second threshold of `polca`.
        replays: replays of the policies asked for, by name.
        free: the row without caps and without a brake.
    """

    scenario: RowScenario
    thresholds: tuple[float, float]
    replays: Mapping[str, RowReplay]
    free: RowReplay

    def rows(self) -> list[dict[str, float | str]]:
        """Return the figures of each policy by name, for tables and JSON."""
        found: list[dict[str, float | str]] = []
        for name, replay in {**self.replays, _FREE: self.free}.items():
            outcome = replay.report.outcome
            found.append(
                {
                    "policy": name,
                    "peak": replay.peak,
                    "mean": float(replay.power_w.mean() / replay.plant.row.budget_w),
                    "over_s": outcome.violated,
                    "energy_j": outcome.cost,
                    "num_sent": float(replay.report.num_sent),
                    **outcome.details,
                    **{f"{key}_longer": value for key, value in self._longer(replay).items()},
                }
            )
        return found

    def _longer(self, replay: RowReplay) -> dict[str, float]:
        return longer_than(replay, self.free)


def uncapped() -> ScheduledCaps:
    """Return the policy that does nothing, not even brake: what others are compared with."""
    return ScheduledCaps(np.zeros(1), np.ones(1), np.ones(1))


def replay_scenario(
    scenario: RowScenario,
    policy: BandPolicy,
    name: str = "",
    requests: RowRequests | None = None,
) -> RowReplay:
    """Replay a scenario under a policy.

    Args:
        scenario: row, requests and devices.
        policy: decides.
        name: name of the policy in the report.
        requests: what arrives, in place of the scenario's own.

    Returns:
        The replay.
    """
    return replay_row(
        policy,
        scenario.row(),
        scenario.requests() if requests is None else requests,
        scenario.meter(),
        scenario.actuators(),
        duration_s=scenario.duration_s,
        seed=scenario.seed,
        name=name,
    )


def longer_than(capped: RowReplay, free: RowReplay) -> dict[str, float]:
    """Return how much longer requests took than in another replay, as a share, by percentile.

    Args:
        capped: a replay.
        free: another one of the same requests.

    Returns:
        Shares by names such as "high_p50"; NaN where no request of the priority ended.
    """
    ours, theirs = (item.report.outcome.details for item in (capped, free))
    return {name.removesuffix("_s"): ours[name] / theirs[name] - 1 for name in _NAMES}


def compare_policies(
    scenario: RowScenario,
    names: Sequence[str] = POLICIES,
    *,
    t1: float = 0.80,
    t2: float = 0.89,
    requests: RowRequests | None = None,
) -> RowAnswer:
    """Replay a row under each policy.

    Args:
        scenario: row, requests and devices.
        names: some of `POLICIES`.
        t1: first threshold of "polca", over the budget.
        t2: its second one, and that of "one threshold" and "all cap".
        requests: what arrives, in place of the scenario's own.

    Returns:
        The answer.

    Raises:
        ConfigError: an unknown policy, or thresholds that contradict each other.
    """
    if unknown := [name for name in names if name not in POLICIES]:
        raise ConfigError(
            f"no policy {unknown[0]!r}", hint=f"policies are {', '.join(map(repr, POLICIES))}"
        )
    given = scenario.requests() if requests is None else requests
    budget_w = scenario.row().budget_w
    # Settings that were lost are sent again only where some can be lost.
    repeat_s = 300.0 if scenario.failure else math.inf
    latency_s = scenario.clock_latency_s
    # Made here, so that wrong thresholds are refused before weeks are replayed.
    first = polca(budget_w, t1=t1, t2=t2, latency_s=latency_s, repeat_s=repeat_s)
    free = replay_scenario(scenario, uncapped(), _FREE, given)
    makers: dict[str, Callable[[], BandPolicy]] = {
        "polca": lambda: first,
        "one threshold": lambda: one_threshold(budget_w, threshold=t2),
        "all cap": lambda: all_cap(budget_w, threshold=t2),
        "no cap": lambda: no_cap(budget_w),
        "oracle": lambda: oracle(free, latency_s=latency_s),
    }
    replays = {name: replay_scenario(scenario, makers[name](), name, given) for name in names}
    return RowAnswer(scenario, (t1, t2), replays, free)

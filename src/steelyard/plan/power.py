"""How many more servers a row's power budget carries under a policy, and how sure that is."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from steelyard.errors import ConfigError, InfeasibleError, require
from steelyard.operate.power import CapLadder, longer_than, polca, replay_scenario, uncapped
from steelyard.sim.power import RowScenario

__all__ = [
    "LatencyLimits",
    "OversubscriptionPlan",
    "RowTrial",
    "plan_row",
    "second_threshold",
]

_WINDOW_S = 40.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LatencyLimits:
    """How much longer than without caps requests may take, by priority and percentile.

    Source: arXiv 2308.12908.

    Args:
        high_p50: how much longer the median of high priority may be, as a share.
        high_p99: how much longer its 99th percentile may be.
        low_p50: how much longer the median of low priority may be.
        low_p99: how much longer the 99th percentile of low priority may be.
    """

    high_p50: float = 0.01
    high_p99: float = 0.05
    low_p50: float = 0.05
    low_p99: float = 0.50

    def __post_init__(self) -> None:
        """Refuse limits below 0."""
        rule = "0 or more"
        require(
            self,
            high_p50=(self.high_p50 >= 0, rule),
            high_p99=(self.high_p99 >= 0, rule),
            low_p50=(self.low_p50 >= 0, rule),
            low_p99=(self.low_p99 >= 0, rule),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RowTrial:
    """One policy on one row for one seed.

    Attributes:
        added: servers more than planned for.
        seed: seed of requests, noise and failures.
        brakes: times the power brake took effect.
        peak: highest power over the budget.
        longest_over_s: longest time above the budget at a stretch.
        longer: for each percentile, how much longer requests took than without caps, as a share.
    """

    added: int
    seed: int
    brakes: int
    peak: float
    longest_over_s: float
    longer: dict[str, float]

    def fault(self, limits: LatencyLimits) -> str:
        """Return what keeps the trial from being good, empty for nothing."""
        if self.brakes:
            return f"{self.brakes} brakes"
        for name, value in self.longer.items():
            limit = getattr(limits, name)
            if value > limit:
                return f"{name.replace('_', ' ')} is {value:.1%} longer, above {limit:.0%}"
        return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class OversubscriptionPlan:
    """How many servers a row carries.

    Attributes:
        servers: servers that the budget was planned for.
        added: most servers more in whose every trial there is no brake and latencies keep.
        rise: largest rise of the planned row's power within a control latency, over the budget.
        t1: first threshold.
        t2: second threshold, which leaves room for that rise.
        trials: all trials.
        binding: what goes wrong with more servers.
        brake_chance: highest probability of a brake in such a time that would still leave all
            trials without one in one of five cases.
    """

    servers: int
    added: int
    rise: float
    t1: float
    t2: float
    trials: tuple[RowTrial, ...]
    binding: str
    brake_chance: float

    @property
    def share(self) -> float:
        """Servers added over those planned for."""
        return self.added / self.servers


def second_threshold(rise: float, margin: float = 0.0) -> float:
    """Return the second threshold that leaves room for a rise before a command has landed.

    Args:
        rise: largest rise of the power within a control latency, over the budget.
        margin: share of the budget kept free besides.

    Returns:
        Share of the budget, down to a whole per cent.

    Raises:
        InfeasibleError: no room is left.

    Source: arXiv 2308.12908.
    """
    found = math.floor((1 - rise - margin) * 100 + 1e-9) / 100
    if found <= 0.2:
        raise InfeasibleError(
            f"the power rises by {rise:.0%} of the budget within a control latency, which leaves "
            "no room for a threshold",
            hint="use an actuator that lands sooner",
        )
    return found


def plan_row(
    scenario: RowScenario,
    *,
    limits: LatencyLimits | None = None,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    most_added: float = 0.5,
    margin: float = 0.0,
    is_training: bool = False,
    policy: Callable[[float, float, float], CapLadder] | None = None,
    told: Callable[[str], None] = lambda text: None,
) -> OversubscriptionPlan:
    """Find the most servers that a row carries without brakes and within latency limits.

    More servers are taken to be worse, so the number is found by halving.

    Args:
        scenario: the planned row; its `added` and `seed` are not looked at.
        limits: how much longer requests may take.
        seeds: seeds of the trials of each number.
        most_added: most servers to add over those planned for.
        margin: share of the budget kept free by the second threshold, besides the rise.
        is_training: whether the row trains; its servers' powers rise and fall together.
        policy: makes a policy of budget and both thresholds; `polca` when None.
        told: called with a line at each trial.

    Returns:
        The plan.

    Raises:
        ConfigError: no seeds.
        InfeasibleError: the row trains, or cannot even carry what it was planned for.
    """
    if not seeds:
        raise ConfigError("no seeds", hint="give one or more")
    if is_training:
        peak = scenario.row().training_w / scenario.row().budget_w
        raise InfeasibleError(
            f"a row in training reaches {peak:.0%} of its budget at once, which leaves no room for "
            "more servers",
            hint="add servers to rows that serve",
        )
    chosen = limits or LatencyLimits()
    planned = replace(scenario, added=0)
    rise = max(
        replay_scenario(replace(planned, seed=seed), uncapped()).rise(_WINDOW_S) for seed in seeds
    )
    t2 = second_threshold(rise, margin)
    t1 = t2 - 0.09
    search = _Halving(
        scenario, seeds, chosen, lambda budget_w: (policy or _polca)(budget_w, t1, t2), told
    )
    added = search.most(int(most_added * scenario.servers))
    return OversubscriptionPlan(
        servers=scenario.servers,
        added=added,
        rise=rise,
        t1=t1,
        t2=t2,
        trials=tuple(search.trials),
        binding=search.binding or f"none up to {most_added:.0%} more",
        brake_chance=1 - 0.2 ** (1 / len(seeds)),
    )


def _polca(budget_w: float, t1: float, t2: float) -> CapLadder:
    """Return the policy of the paper with two thresholds."""
    return polca(budget_w, t1=t1, t2=t2)


class _Halving:
    """The search for the most servers in whose trials nothing goes wrong."""

    def __init__(
        self,
        scenario: RowScenario,
        seeds: Sequence[int],
        limits: LatencyLimits,
        make: Callable[[float], CapLadder],
        told: Callable[[str], None],
    ) -> None:
        self.scenario, self.seeds, self.limits = scenario, seeds, limits
        self.make, self.told = make, told
        self.trials: list[RowTrial] = []
        self.binding = ""

    def most(self, bound: int) -> int:
        """Return the most servers that can be added, at most a bound."""
        # -1 stands for less than what was planned for: the planned row itself is tried as well.
        low, high = -1, bound + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._is_good(middle) else (low, middle)
        if low < 0:
            raise InfeasibleError(
                f"the row does not carry the {self.scenario.servers} servers it was planned for: "
                f"{self.binding}",
                hint="lower the load, or raise the budget",
            )
        return low

    def _is_good(self, added: int) -> bool:
        """Run the trials of one number until one of them goes wrong."""
        for seed in self.seeds:
            made = _trial(replace(self.scenario, added=added, seed=seed), self.make)
            self.trials.append(made)
            fault = made.fault(self.limits)
            self.told(f"{added} more servers, seed {seed}: {fault or 'good'}")
            if fault:
                self.binding = f"{added} more: {fault}"
                return False
        return True


def _trial(scenario: RowScenario, make: Callable[[float], CapLadder]) -> RowTrial:
    """Replay one row without and with the policy."""
    # Both replays have the same requests, so that what differs is the policy's doing.
    requests = scenario.requests()
    free = replay_scenario(scenario, uncapped(), requests=requests)
    policy = make(free.plant.row.budget_w)
    capped = replay_scenario(scenario, policy, requests=requests)
    details = capped.report.outcome.details
    return RowTrial(
        added=scenario.added,
        seed=scenario.seed,
        brakes=int(details["brakes"]),
        peak=capped.peak,
        longest_over_s=details["longest_over_s"],
        longer=longer_than(capped, free),
    )

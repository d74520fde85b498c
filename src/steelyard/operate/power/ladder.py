"""Policies that keep a row under its power budget: steps of locked clocks, and a brake."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from steelyard.errors import ConfigError
from steelyard.sim.control import Command, Observation
from steelyard.sim.power import BRAKE, CLOCKS, METER

__all__ = ["CapLadder", "CapStep", "all_cap", "no_cap", "one_threshold", "polca"]

_HIGH, _LOW = CLOCKS
BASE_CLOCK, DEEP_CLOCK, HIGH_CLOCK = 1275 / 1410, 1110 / 1410, 1305 / 1410
"""Clocks of an A100 over its 1,410 MHz: base, deep cap, cap of high priority (arXiv 2308.12908)."""
_NEVER = (math.inf, -math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class CapStep:
    """One step of a ladder.

    Attributes:
        above: power over the budget above which the step is taken.
        below: power over the budget below which it is taken back.
        clocks: clock of each priority from this step on, by target.
    """

    above: float
    below: float
    clocks: Mapping[str, float]


@dataclass(slots=True)
class CapLadder:
    """Climbs steps as the power rises, goes back as it falls, and brakes above the budget.

    A step at the same threshold as the one before is taken only once that one has landed and the
    power is still above: capping low priority may suffice. Nothing is taken back before the last
    change has landed. Settings are whole, so those that got lost are sent again.

    Source: arXiv 2308.12908, section on the control policy.

    Attributes:
        budget_w: power that the row may draw.
        steps: steps from the first to take to the last, thresholds never falling.
        latency_s: seconds until a clock has landed.
        brake_latency_s: seconds until the brake has landed.
        brake_below: power over the budget below which the brake is taken back.
        repeat_s: seconds after which settings are sent again; infinity for never.
    """

    budget_w: float
    steps: Sequence[CapStep] = ()
    latency_s: float = 40.0
    brake_latency_s: float = 5.0
    brake_below: float = 0.84
    repeat_s: float = math.inf
    _level: int = field(default=0, init=False)
    _is_braked: bool = field(default=False, init=False)
    _settled_s: float = field(default=0.0, init=False)
    _brake_settled_s: float = field(default=0.0, init=False)
    _repeat_at_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        """Refuse thresholds that contradict each other."""
        if not self.budget_w > 0 or min(self.latency_s, self.brake_latency_s) < 0:
            raise ConfigError(
                f"a budget of {self.budget_w:g} W and latencies of {self.latency_s:g} and "
                f"{self.brake_latency_s:g} s, but 0 < budget and 0 <= latency"
            )
        last = 0.0
        for step in self.steps:
            if not last <= step.above < 1 or not 0 < step.below < step.above:
                raise ConfigError(
                    f"thresholds {last:g} <= {step.above:g} < 1 and 0 < {step.below:g} < "
                    f"{step.above:g} must hold",
                    hint="let thresholds rise below 1, and the hysteresis be smaller than each",
                )
            last = step.above
        if not 0 < self.brake_below < 1:
            raise ConfigError(f"0 < {self.brake_below:g} < 1 must hold for the end of a brake")
        self._repeat_at_s = self.repeat_s

    @property
    def level(self) -> int:
        """Steps taken now."""
        return self._level

    def decide(self, now_s: float, observation: Observation) -> list[Command]:
        """Return the settings that change; all of them where they are sent again."""
        share = observation.value(METER) / self.budget_w
        before = self._settings()
        reason = ""
        # A power that is not known yet, NaN, compares as false everywhere.
        if share > 1 and not self._is_braked:
            self._is_braked, reason = True, "power above the budget"
            self._brake_settled_s = now_s + self.brake_latency_s
        elif self._is_braked and share < self.brake_below and now_s >= self._brake_settled_s:
            self._is_braked, reason = False, "power below the end of the brake"
        if not self._is_braked:
            reason = self._climb(now_s, share) or reason
        after = self._settings()
        if now_s >= self._repeat_at_s:
            self._repeat_at_s = now_s + self.repeat_s
            return [Command(target, value, "sent again") for target, value in after.items()]
        changed = [target for target in after if after[target] != before[target]]
        return [Command(target, after[target], reason) for target in changed]

    def quiet(self, now_s: float) -> tuple[float, float, float]:
        """Return the readings in watts that change nothing, and until when."""
        if self._is_braked:
            return _NEVER
        low = self.steps[self._level - 1].below if self._level else -math.inf
        if now_s >= self._settled_s:
            high = self.steps[self._level].above if self._level < len(self.steps) else 1.0
            return low * self.budget_w, high * self.budget_w, self._repeat_at_s
        # Until the last change has landed nothing is taken back, nor a step of its threshold taken.
        own = self.steps[self._level - 1].above if self._level else 0.0
        high = next((step.above for step in self.steps[self._level :] if step.above > own), 1.0)
        return -math.inf, high * self.budget_w, min(self._settled_s, self._repeat_at_s)

    def _climb(self, now_s: float, share: float) -> str:
        """Go up, or down by one step; return why, empty where nothing changes."""
        start = self._level
        while self._level < len(self.steps) and share > self.steps[self._level].above:
            is_later = self._level and (
                self.steps[self._level].above <= self.steps[self._level - 1].above
            )
            if is_later and (self._level > start or now_s < self._settled_s):
                break
            self._level += 1
        if self._level > start:
            self._settled_s = now_s + self.latency_s
            return f"power above {self.steps[self._level - 1].above:.0%} of the budget"
        if start and share < self.steps[start - 1].below and now_s >= self._settled_s:
            self._level -= 1
            self._settled_s = now_s + self.latency_s
            return f"power below {self.steps[start - 1].below:.0%} of the budget"
        return ""

    def _settings(self) -> dict[str, float]:
        """Return all settings as they should be now."""
        clocks = {_HIGH: 1.0, _LOW: 1.0}
        for step in self.steps[: self._level]:
            clocks |= step.clocks
        return clocks | {BRAKE: float(self._is_braked)}


def polca(
    budget_w: float,
    *,
    t1: float = 0.80,
    t2: float = 0.89,
    hysteresis: float = 0.05,
    base_clock: float = BASE_CLOCK,
    deep_clock: float = DEEP_CLOCK,
    high_clock: float = HIGH_CLOCK,
    latency_s: float = 40.0,
    repeat_s: float = math.inf,
) -> CapLadder:
    """Return the policy of two thresholds: low priority first, then deeper, then high priority.

    Args:
        budget_w: power that the row may draw.
        t1: power over the budget above which low priority loses its boost.
        t2: power over the budget above which it is capped deeply; high priority is capped where the
            power stays above once that has landed.
        hysteresis: how far below a threshold its step is taken back.
        base_clock: clock of low priority above `t1`, over the highest.
        deep_clock: and above `t2`.
        high_clock: clock of high priority.
        latency_s: seconds until a clock has landed.
        repeat_s: seconds after which settings are sent again.

    Returns:
        The policy.

    Raises:
        ConfigError: 0 < hysteresis < t1 < t2 < 1 does not hold.

    Source: arXiv 2308.12908; thresholds, hysteresis and clocks are those of the paper.
    """
    if not 0 < hysteresis < t1 < t2 < 1:
        raise ConfigError(
            f"0 < hysteresis < t1 < t2 < 1 must hold, not 0 < {hysteresis:g} < {t1:g} < {t2:g} < 1",
            hint="raise t2 or lower t1",
        )
    steps = (
        CapStep(t1, t1 - hysteresis, {_LOW: base_clock}),
        CapStep(t2, t2 - hysteresis, {_LOW: deep_clock}),
        CapStep(t2, t2 - hysteresis, {_HIGH: high_clock}),
    )
    below = t2 - hysteresis
    return CapLadder(budget_w, steps, latency_s, brake_below=below, repeat_s=repeat_s)


def no_cap(budget_w: float) -> CapLadder:
    """Return the policy that only brakes."""
    return CapLadder(budget_w)


def one_threshold(
    budget_w: float, *, threshold: float = 0.89, clock: float = DEEP_CLOCK, hysteresis: float = 0.05
) -> CapLadder:
    """Return the policy of one threshold for low priority alone."""
    step = CapStep(threshold, threshold - hysteresis, {_LOW: clock})
    return CapLadder(budget_w, (step,))


def all_cap(
    budget_w: float, *, threshold: float = 0.89, clock: float = DEEP_CLOCK, hysteresis: float = 0.05
) -> CapLadder:
    """Return the policy of one threshold for all priorities at once."""
    step = CapStep(threshold, threshold - hysteresis, {_LOW: clock, _HIGH: clock})
    return CapLadder(budget_w, (step,))

"""Weeks of a row under a policy: the loop of `sim.control`, run only where the policy would act."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError
from steelyard.sim.control import (
    Actuator,
    ControlReport,
    Meter,
    Policy,
    Reading,
    VirtualControl,
)
from steelyard.sim.power.kernel import scan
from steelyard.sim.power.plant import METER, RowPlant
from steelyard.sim.power.requests import RowRequests
from steelyard.sim.power.row import ServerRow

__all__ = ["BandPolicy", "RowReplay", "replay_row"]

Array = NDArray[np.float64]


class BandPolicy(Policy, Protocol):
    """A policy that says which readings it would not act on."""

    def quiet(self, now_s: float) -> tuple[float, float, float]:
        """Return the lowest and highest reading in watts that change nothing, and until when.

        Args:
            now_s: time of the next decision.

        Returns:
            Watts, watts and seconds: at each decision before that time a reading within both, ends
            included, makes `decide` return nothing and leaves the policy as it is. A band whose
            low end is above its high end holds no reading.
        """
        ...


@dataclass(frozen=True, slots=True)
class RowReplay:
    """A row under a policy.

    Attributes:
        report: commands and outcome, as `sim.control.simulate` returns it.
        plant: the row at the end, with the times of each request.
        period_s: seconds between readings.
        power_w: power of the row at each reading, without noise, [readings].
    """

    report: ControlReport
    plant: RowPlant
    period_s: float
    power_w: Array

    @property
    def peak(self) -> float:
        """Highest power at a reading over the budget."""
        return float(self.power_w.max() / self.plant.row.budget_w)

    def rise(self, within_s: float, *, after_s: float = 600.0) -> float:
        """Return the largest rise of the power within a time, over the budget.

        Args:
            within_s: seconds, at least one period.
            after_s: seconds left out at the beginning, when an idle row fills.

        Returns:
            Share of the budget, from any reading to a later one within the time.
        """
        from scipy.ndimage import minimum_filter1d

        steps = max(round(within_s / self.period_s), 1)
        # The window of a reading ends with it, so what it is compared with came before.
        before = minimum_filter1d(self.power_w, steps + 1, origin=steps // 2)
        first = math.ceil(after_s / self.period_s) + steps
        rises = (self.power_w - before)[first:]
        return float(rises.max(initial=0.0) / self.plant.row.budget_w)


def replay_row(
    policy: BandPolicy,
    row: ServerRow,
    requests: RowRequests,
    meter: Meter,
    actuators: Sequence[Actuator],
    *,
    duration_s: float,
    seed: int = 0,
    name: str = "",
) -> RowReplay:
    """Let a policy watch over a row, deciding at each reading of its meter.

    The same as `sim.control.simulate` with a `RowPlant`, decision by decision; while no command is
    under way, readings that the policy would not act on are passed over in compiled code. Of
    readings that it missed it is shown the latest alone.

    Args:
        policy: decides, and says which readings it would not act on.
        row: the servers.
        requests: what arrives.
        meter: meter of the row's power; its name is `METER`.
        actuators: one for each target that the policy commands.
        duration_s: seconds to simulate, at least a period of the meter.
        seed: seed of noise, losses, latencies and failures.
        name: name of the policy in the report; that of its class when empty.

    Returns:
        The replay.

    Raises:
        ConfigError: the meter has another name, or the time is out of range.
    """
    if meter.name != METER or not meter.period_s <= duration_s < math.inf:
        raise ConfigError(
            f"meter {meter.name!r} every {meter.period_s} s during {duration_s} s, but it must be "
            f"{METER!r}, and the time finite and no shorter than its period"
        )
    plant = RowPlant(row, requests, duration_s=duration_s)
    run = _RowReplaying(policy, plant, meter, actuators, duration_s, np.random.default_rng(seed))
    tick = 0
    while tick < run.ticks:
        tick = run.turn(tick)
    return RowReplay(run.control.end(duration_s, name), plant, meter.period_s, run.truth_w)


class _RowReplaying:
    """State of one replay."""

    def __init__(
        self,
        policy: BandPolicy,
        plant: RowPlant,
        meter: Meter,
        actuators: Sequence[Actuator],
        duration_s: float,
        rng: np.random.Generator,
    ) -> None:
        self.policy, self.plant, self.meter = policy, plant, meter
        self.control = VirtualControl(policy, plant, actuators, rng)
        # There is no decision at the very end, as in `simulate`.
        self.ticks = math.ceil(duration_s / meter.period_s)
        self.late = math.ceil(meter.lag_s / meter.period_s)
        self.truth_w, self.shown_w = np.full((2, self.ticks), np.nan)

    def turn(self, tick: int) -> int:
        """Go to the next decision that may matter and take it; return the tick after it."""
        low_w, high_w, until_s = self.policy.quiet(tick * self.meter.period_s)
        self.control.loop.run(until_s=tick * self.meter.period_s)
        is_quiet = tick > 0 and low_w <= high_w
        last = tick + 1
        if is_quiet:
            # What lands between two ticks has to land before the second one is read.
            bound = min(until_s, self.control.loop.next_s) / self.meter.period_s
            last = max(min(math.ceil(min(bound, self.ticks)) + 1, self.ticks), tick + 1)
            if self.control.loop.next_s <= (last - 1) * self.meter.period_s:
                last = max(last - 1, tick + 1)
        found = scan(
            self.plant.tables,
            self.plant.state,
            self.control.rng,
            (tick, last),
            self.meter.period_s,
            self.late,
            (self.meter.noise, self.meter.loss),
            (low_w, high_w) if is_quiet else (math.inf, -math.inf),
            self.truth_w,
            self.shown_w,
        )
        self._decide(found)
        return found + 1

    def _decide(self, tick: int) -> None:
        """Let the policy see what has arrived by a tick, and decide."""
        now_s, period_s, control = tick * self.meter.period_s, self.meter.period_s, self.control
        control.loop.at(max(now_s, control.loop.now_s), _nothing)
        control.loop.run(until_s=now_s)
        seen = tick - self.late
        while seen >= 0 and math.isnan(self.shown_w[seen]):
            seen -= 1
        if seen >= 0:
            reading = Reading(METER, float(self.shown_w[seen]), seen * period_s)
            known = control.latest.get(METER)
            # A sample that was lost leaves the last one in place, which was seen before.
            if known is None or known.measured_s < reading.measured_s:
                control.arrive(reading)
        control.decide()


def _nothing() -> None:
    """Mark a moment: a loop's time is that of its latest event."""

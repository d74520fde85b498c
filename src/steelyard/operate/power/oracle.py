"""The policy that knew the power in advance, and caps when and as deep as it has to."""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from steelyard.operate.power.ladder import DEEP_CLOCK, HIGH_CLOCK
from steelyard.sim.control import Command, Observation
from steelyard.sim.power import CLOCKS, RowReplay

__all__ = ["ScheduledCaps", "oracle"]

_HIGH, _LOW = CLOCKS
Array = NDArray[np.float64]


@dataclass(slots=True)
class ScheduledCaps:
    """Sends settings at times that were fixed in advance; it looks at no meter.

    Attributes:
        times_s: rising times, the first 0.
        high: clock of high priority from each of them on, over the highest.
        low: clock of low priority.
    """

    times_s: Array
    high: Array
    low: Array
    _sent: int = field(default=-1, init=False)

    def decide(self, now_s: float, observation: Observation) -> list[Command]:
        """Return the settings of the present where they changed since the last decision."""
        place = int(np.searchsorted(self.times_s, now_s, side="right")) - 1
        if place == self._sent:
            return []
        before, self._sent = self._sent, place
        commands = []
        for target, clocks in ((_HIGH, self.high), (_LOW, self.low)):
            if (clocks[before] if before >= 0 else 1.0) != clocks[place]:
                commands.append(Command(target, float(clocks[place]), "planned"))
        return commands

    def quiet(self, now_s: float) -> tuple[float, float, float]:
        """Return a band of all readings, and the time of the next change."""
        following = self._sent + 1
        until_s = self.times_s[following] if following < len(self.times_s) else math.inf
        return -math.inf, math.inf, float(until_s)


def oracle(
    uncapped: RowReplay,
    *,
    latency_s: float = 40.0,
    margin: float = 0.01,
    deep_clock: float = DEEP_CLOCK,
    high_clock: float = HIGH_CLOCK,
) -> ScheduledCaps:
    """Return the caps that the power of a row without caps would have needed.

    Low priority is capped while that power is above the budget; high priority too while capping low
    priority saves too little. What is capped runs longer, so the power afterwards is not quite the
    one that was known: hence the margin.

    Args:
        uncapped: the same row and requests, replayed without caps.
        latency_s: seconds until a clock has landed.
        margin: share of the budget kept free.
        deep_clock: clock of low priority, over the highest.
        high_clock: clock of high priority.

    Returns:
        The policy.
    """
    from scipy.ndimage import maximum_filter1d

    row, period_s = uncapped.plant.row, uncapped.period_s
    curve, tables = row.model.curve, uncapped.plant.tables
    # A command lands between two readings, and holds for both.
    ahead = math.ceil(latency_s / period_s) + 1
    share = uncapped.power_w / row.budget_w
    # As long after as before: a cap is taken back once the need is over, and that lands late too.
    coming = maximum_filter1d(share, 2 * ahead + 1)
    above_w = row.low_servers * float(tables.token_w[1] - tables.token_w[0])
    saved = above_w * (1 - float(curve.dynamic(deep_clock))) / row.budget_w
    low = np.where(coming > 1 - margin, deep_clock, 1.0)
    high = np.where(coming > 1 - margin + saved, high_clock, 1.0)
    changes = np.flatnonzero((np.diff(low) != 0) | (np.diff(high) != 0)) + 1
    places = np.concatenate([[0], changes])
    return ScheduledCaps(places * period_s, high[places], low[places])

"""What work waits for cleaner hours: by the day ahead, or a fixed delay."""

from dataclasses import dataclass

import numpy as np

from steelyard.errors import ConfigError
from steelyard.operate.cooling import DriverForecast, yesterday
from steelyard.sim.datacenter import DEFER, DRAIN, RUN, SiteView

__all__ = ["DayAheadShifting", "delayed_load"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DayAheadShifting:
    """Lets work wait in the dirtier hours of the day ahead, and runs it in the cleaner ones.

    Attributes:
        defer_above: quantile of the day's carbon intensity above which work waits.
        drain_below: quantile at or below which waiting work runs.
        horizon_steps: steps of the day.
        forecast: makes their carbon intensity.
    """

    defer_above: float = 0.7
    drain_below: float = 0.3
    horizon_steps: int = 96
    forecast: DriverForecast = yesterday

    def decide(self, view: SiteView) -> np.ndarray:
        """Return the action of the queue, [scenarios]."""
        ahead = self.forecast(view, self.horizon_steps).carbon_g_per_kwh
        low, high = np.quantile(ahead, [self.drain_below, self.defer_above], axis=0)
        now = view.drivers.carbon_g_per_kwh[view.step]
        # Above the one, at or below the other: on a day of one intensity nothing is put off, and
        # what waits runs.
        return np.where(now > high, DEFER, np.where(now <= low, DRAIN, RUN))


def delayed_load(load: np.ndarray, share: float, delay_steps: int) -> np.ndarray:
    """Return the load when a share of it runs some steps later, and the rest as it comes.

    What comes in the last steps is not moved, so that all that is moved runs within the series.

    Args:
        load: utilisation by step.
        share: part that is delayed, in [0, 1].
        delay_steps: steps by which it runs later.

    Returns:
        Utilisation by step, with the same sum.

    Raises:
        ConfigError: the share or delay is impossible, or a step's load would pass 1.
    """
    if not (0 <= share <= 1 and 0 <= delay_steps <= len(load)):
        raise ConfigError(
            f"a share of {share} delayed by {delay_steps} of {len(load)} steps: the share must be "
            "in [0, 1] and the delay in the series"
        )
    # Work of the last steps would run after the end: left in its place, both loads sum to the same.
    taken = share * load[: len(load) - delay_steps]
    pause = np.zeros(len(load) - len(taken))
    moved = load - np.concatenate([taken, pause]) + np.concatenate([pause, taken])
    if moved.max(initial=0.0) > 1:
        raise ConfigError(
            f"with {share:.0%} of the work {delay_steps} steps later, step {int(moved.argmax())} "
            f"has a load of {moved.max():.2f}",
            hint="delay a smaller share, or give a load with more room",
        )
    return moved

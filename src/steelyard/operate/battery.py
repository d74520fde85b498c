"""When a battery is charged and discharged: by rule, by the day ahead, and at best."""

from dataclasses import dataclass

import numpy as np

from steelyard.errors import ConfigError, InfeasibleError
from steelyard.operate.cooling import DriverForecast, as_yesterday, yesterday
from steelyard.sim.datacenter import STEP_S, BatteryLimits, SiteView

__all__ = ["DayAheadBattery", "RuleBattery", "best_battery_w"]

_HOUR_S = 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleBattery:
    """Charges while the grid will be dirtier than it is, and discharges otherwise.

    Source: arXiv 2404.12498 and SustainDC, the rule its battery agents are compared with.

    Attributes:
        ahead_steps: steps that are looked ahead.
        forecast: makes their carbon intensity.
    """

    ahead_steps: int = 3
    forecast: DriverForecast = as_yesterday

    def decide(self, view: SiteView) -> np.ndarray:
        """Return the power to charge with, [scenarios]; the limits of the battery cut it."""
        ahead = self.forecast(view, self.ahead_steps + 1).carbon_g_per_kwh
        return np.where(ahead[1:].mean(axis=0) > ahead[0], np.inf, -np.inf)


@dataclass(frozen=True, kw_only=True, slots=True)
class DayAheadBattery:
    """Charges while the grid is cleaner than the day ahead, and discharges while it is dirtier.

    What is stored is worth the mean intensity of the day ahead; between the margins around it the
    battery rests, as its losses and the forecast's error would cost more than is gained.

    Attributes:
        margin: distance from that mean, as a share of it.
        horizon_steps: steps of the day.
        forecast: makes their carbon intensity.
    """

    margin: float = 0.06
    horizon_steps: int = 96
    forecast: DriverForecast = yesterday

    def decide(self, view: SiteView) -> np.ndarray:
        """Return the power to charge with, [scenarios]; the limits of the battery cut it."""
        worth = self.forecast(view, self.horizon_steps).carbon_g_per_kwh.mean(axis=0)
        now = view.drivers.carbon_g_per_kwh[view.step]
        is_clean = now < worth * (1 - self.margin)
        return np.where(is_clean, np.inf, np.where(now > worth * (1 + self.margin), -np.inf, 0.0))


def best_battery_w(
    carbon_g_per_kwh: np.ndarray, facility_w: np.ndarray, limits: BatteryLimits
) -> np.ndarray:
    """Return the charging powers of least carbon for a series known in advance.

    The battery is empty before. Its limits are linear, so that a linear program is exact.

    Args:
        carbon_g_per_kwh: carbon intensity by step.
        facility_w: power of the site by step, the most that is discharged.
        limits: limits of the battery.

    Returns:
        Power to charge with by step, negative to discharge.

    Raises:
        ConfigError: the series differ in length, or the battery holds nothing.
        InfeasibleError: the program has no solution.
    """
    from scipy.optimize import linprog
    from scipy.sparse import diags, eye, hstack, vstack

    count = len(carbon_g_per_kwh)
    if len(facility_w) != count or limits.capacity_j <= 0:
        raise ConfigError(
            f"{count} intensities and {len(facility_w)} powers for a battery of "
            f"{limits.capacity_j:g} J: give one of each per step, and a battery"
        )
    hours, whole = STEP_S / _HOUR_S, limits.capacity_j / _HOUR_S
    # Variables: charge, discharge, and energy before each step and after the last, in Wh and W.
    before = eye(count, count + 1)
    change = diags([1.0, -1.0], [1, 0], shape=(count, count + 1))  # pyright: ignore[reportArgumentType]
    one, none = eye(count), diags([0.0], [0], shape=(count, count))  # pyright: ignore[reportArgumentType]
    kept = limits.charge_efficiency * hours
    lost = hours / limits.discharge_efficiency
    flow = hstack([-kept * one, lost * one, change])
    filling = hstack([(kept - limits.fullest_h) * one, none, before])
    emptying = hstack([none, (lost + limits.emptiest_h) * one, -before])
    most_in = limits.charge_rate * whole / limits.charge_efficiency
    most_out = limits.discharge_rate * whole * limits.discharge_efficiency
    done = linprog(
        np.concatenate([carbon_g_per_kwh, -carbon_g_per_kwh, np.zeros(count + 1)]),
        A_ub=vstack([filling, emptying]),
        b_ub=np.repeat([limits.fullest * whole, -limits.emptiest * whole], count),
        A_eq=flow,
        b_eq=np.zeros(count),
        bounds=[(0, most_in)] * count
        + [(0, min(most_out, float(power))) for power in facility_w]
        + [(0, 0)]
        + [(0, whole)] * count,
    )
    if done.x is None:
        raise InfeasibleError(f"no plan of the battery exists: {done.message}")
    return done.x[:count] - done.x[count : 2 * count]

"""A battery with linear limits: how fast it may be charged and discharged at each level."""

from typing import NamedTuple

from steelyard.jit import njit

__all__ = ["BatteryLimits", "battery_step", "charge_limit_w", "discharge_limit_w"]

_HOUR_S = 3600.0


class BatteryLimits(NamedTuple):
    """Limits of a battery, in the symbols of the model.

    Source: Kazhamiaka et al. 2019, linear limits and constant efficiencies (C/L/C), with the values
    of arXiv 2404.12498; its efficiencies are not stated there and those of lithium iron phosphate
    are assumed.

    Attributes:
        capacity_j: energy that it holds, B.
        charge_rate: most power taken up over capacity, per hour (alpha_c).
        discharge_rate: most power given over capacity, per hour (alpha_d).
        charge_efficiency: energy kept over energy taken up (eta_c).
        discharge_efficiency: energy given over energy lost (eta_d).
        fullest: highest share of the capacity (v2).
        fullest_h: hours by which charging power moves that limit (u2).
        emptiest: lowest share of the capacity (v1).
        emptiest_h: hours by which discharging power moves that limit (u1).
    """

    capacity_j: float
    charge_rate: float = 0.1
    discharge_rate: float = 1.0
    charge_efficiency: float = 0.97
    discharge_efficiency: float = 0.97
    fullest: float = 1.0
    fullest_h: float = -0.04
    emptiest: float = 0.0
    emptiest_h: float = 0.01


@njit()
def charge_limit_w(stored_j: float, limits: BatteryLimits, step_s: float) -> float:
    """Return the most power that the battery takes up during a step.

    Args:
        stored_j: energy that it holds.
        limits: `BatteryLimits`.
        step_s: length of the step.

    Returns:
        Watts, 0 when it is full.
    """
    rate = limits.charge_rate * limits.capacity_j / _HOUR_S / limits.charge_efficiency
    room_wh = (limits.fullest * limits.capacity_j - stored_j) / _HOUR_S
    # The fullest that is allowed falls with the power, and the power fills: solved for the power.
    kept_h = limits.charge_efficiency * step_s / _HOUR_S - limits.fullest_h
    return max(min(rate, room_wh / kept_h), 0.0)


@njit()
def discharge_limit_w(stored_j: float, limits: BatteryLimits, step_s: float) -> float:
    """Return the most power that the battery gives during a step.

    Args:
        stored_j: energy that it holds.
        limits: `BatteryLimits`.
        step_s: length of the step.

    Returns:
        Watts, 0 when it is empty.
    """
    rate = limits.discharge_rate * limits.capacity_j / _HOUR_S * limits.discharge_efficiency
    held_wh = (stored_j - limits.emptiest * limits.capacity_j) / _HOUR_S
    lost_h = limits.emptiest_h + step_s / _HOUR_S / limits.discharge_efficiency
    return max(min(rate, held_wh / lost_h), 0.0)


@njit()
def battery_step(
    stored_j: float, wanted_w: float, load_w: float, limits: BatteryLimits, step_s: float
) -> tuple[float, float, float]:
    """Charge or discharge for one step, as far as the limits allow.

    Args:
        stored_j: energy that it holds.
        wanted_w: power to charge with; negative to discharge.
        load_w: power of the site, which is the most that is discharged.
        limits: `BatteryLimits`.
        step_s: length of the step.

    Returns:
        Energy afterwards, power charged and power discharged; one of the two is 0.
    """
    charge, discharge = 0.0, 0.0
    if wanted_w > 0:
        charge = min(wanted_w, charge_limit_w(stored_j, limits, step_s))
    else:
        # Nothing is sold: what the site does not use stays in the battery.
        most = min(discharge_limit_w(stored_j, limits, step_s), load_w)
        discharge = min(-wanted_w, most)
    change = limits.charge_efficiency * charge - discharge / limits.discharge_efficiency
    return stored_j + change * step_s, charge, discharge

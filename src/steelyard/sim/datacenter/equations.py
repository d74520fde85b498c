"""Equations of a data center's parts: servers, racks, chiller, tower and water.

Each is a pure function of numbers; compiled, it takes arrays of equal shape too. Temperatures are
in C, powers and heats in W.
"""

from typing import Any

import numpy as np

from steelyard.jit import njit

__all__ = [
    "AIR_J_PER_M3_K",
    "WATER_J_PER_M3_K",
    "chiller_capacity_ratio",
    "chiller_power_w",
    "fan_flow_ratio",
    "free_share",
    "outlet_fitted_c",
    "server_power_ratio",
    "tower_flow_m3_per_s",
    "tower_water_l_per_s",
]

AIR_J_PER_M3_K = 1.225 * 1006.0
"""Heat that a cubic metre of air takes up per kelvin."""
WATER_J_PER_M3_K = 998.0 * 4186.0
"""The same of water."""

# Straight lines through two points of inlet temperature, 16 and 28 C, from idle to full load.
_COOL_C, _WARM_C = 16.0, 28.0
_POWER_SLOPE = (0.03 - 0.01) / (_WARM_C - _COOL_C)
_POWER_BASE = 0.03 - _POWER_SLOPE * _WARM_C
_POWER_SHIFT = 1.00 - 0.01
_FLOW_SLOPE = (0.225 - 0.01) / (_WARM_C - _COOL_C)
_FLOW_BASE = 0.225 - _FLOW_SLOPE * _WARM_C
_FLOW_SHIFT = 0.225 - 0.01
_LOWEST_FLOW = 0.01

_NOMINAL_CONDENSER_C, _NOMINAL_EVAPORATOR_C = 35.0, 6.67
_RISE = 2.778
# The published curves turn where water is cold enough to lower the lift further: power would rise
# again in colder weather. Head-pressure control holds the lift there; at 1.4 power still falls with
# the capacity ratio at every load.
_MOST_CAPACITY_RATIO = 1.4
_LEAST_PART_LOAD = 0.05
_DRIFT = 1.01


@njit()
def server_power_ratio(inlet_c: Any, load: Any) -> Any:
    """Return a server's power over its full power, fans left out.

    Args:
        inlet_c: temperature of the air it takes in.
        load: utilisation in [0, 1].

    Returns:
        Ratio, 1.00 to 1.02 at full load for inlets of 16 to 28 C.

    Source: arXiv 2404.12498, server model after Sun et al. 2021.
    """
    return _POWER_SLOPE * inlet_c + _POWER_BASE + _POWER_SHIFT * load


@njit()
def fan_flow_ratio(inlet_c: Any, load: Any) -> Any:
    """Return the air through a server over that of its fans at full speed, in [0.01, 1].

    Fans turn faster for warmer air, and for load above a quarter.

    Args:
        inlet_c: temperature of the air it takes in.
        load: utilisation in [0, 1].

    Returns:
        The ratio.
    """
    shift = _FLOW_SHIFT * np.maximum(0.0, load - 0.25) / 0.75
    ratio = _FLOW_SLOPE * inlet_c + _FLOW_BASE + shift
    return np.minimum(np.maximum(ratio, _LOWEST_FLOW), 1.0)


@njit()
def outlet_fitted_c(inlet_c: Any, rack_w: Any, flow_m3_per_s: Any) -> Any:
    """Return a rack's outlet temperature by an empirical fit to simulated flows.

    Args:
        inlet_c: temperature of the air it takes in.
        rack_w: heat of the rack.
        flow_m3_per_s: air through the rack.

    Returns:
        Temperature; the heat that the air carries is not the rack's.

    Source: arXiv 2404.12498, the fit of its released model.
    """
    rise = 1.918 * rack_w**1.096 / (AIR_J_PER_M3_K * flow_m3_per_s**0.824 * 0.526)
    return inlet_c + rise - 14.01


@njit()
def chiller_capacity_ratio(outdoor_c: Any, evaporator_c: Any) -> Any:
    """Return the heat that a chiller can take up over its nominal heat.

    Args:
        outdoor_c: temperature at the condenser.
        evaporator_c: temperature of the chilled water that leaves the evaporator.

    Returns:
        Ratio, at most 1.4.

    Source: EnergyPlus Chiller:Electric, curve of available to nominal capacity.
    """
    lift = (outdoor_c - _NOMINAL_CONDENSER_C) / _RISE - (evaporator_c - _NOMINAL_EVAPORATOR_C)
    # The parabola's vertex; hotter than that the capacity would grow again.
    lift = np.minimum(lift, 0.0570088 / (2 * 0.00185486))
    ratio = 0.944836 - 0.0570088 * lift + 0.00185486 * lift * lift
    return np.minimum(ratio, _MOST_CAPACITY_RATIO)


@njit()
def chiller_power_w(
    heat_w: Any, outdoor_c: Any, evaporator_c: Any, nominal_w: Any, cop: Any
) -> Any:
    """Return the power of a chiller's compressor.

    Args:
        heat_w: heat taken up, at most the available capacity.
        outdoor_c: temperature at the condenser.
        evaporator_c: temperature of the chilled water that leaves the evaporator.
        nominal_w: heat that it takes up at nominal conditions.
        cop: heat per power there.

    Returns:
        Watts; 0 without heat. Below 5 % load it cycles.

    Source: EnergyPlus Chiller:Electric.
    """
    ratio = chiller_capacity_ratio(outdoor_c, evaporator_c)
    available = ratio * nominal_w
    full = 2.333 - 1.975 * ratio + 0.6121 * ratio * ratio
    share = heat_w / available
    part = np.minimum(np.maximum(share, _LEAST_PART_LOAD), 1.0)
    partial = 0.03303 + 0.6852 * part + 0.2818 * part * part
    cycling = np.minimum(share / _LEAST_PART_LOAD, 1.0)
    return partial * full * available / cop * cycling


@njit()
def free_share(wet_bulb_c: Any, evaporator_c: Any, water_rise_c: Any, approach_c: Any) -> Any:
    """Return the share of the heat that water cooled by the tower alone takes up.

    The tower's water cools what returns from the room first; the chiller does the rest.

    Args:
        wet_bulb_c: wet bulb temperature outdoors.
        evaporator_c: temperature at which the water is to leave.
        water_rise_c: kelvin by which it returns warmer, positive.
        approach_c: kelvin by which the tower's water is warmer than the wet bulb; 0 for a plant
            without this.

    Returns:
        Share in [0, 1].
    """
    reached = np.maximum(wet_bulb_c + approach_c, evaporator_c)
    share = (evaporator_c + water_rise_c - reached) / water_rise_c
    return np.minimum(np.maximum(share, 0.0), 1.0) * (approach_c > 0)


@njit()
def tower_flow_m3_per_s(rejected_w: Any, outdoor_c: Any, setpoint_c: Any) -> Any:
    """Return the air that a tower needs for the heat it rejects.

    Args:
        rejected_w: heat of the room and of the compressor.
        outdoor_c: temperature outdoors.
        setpoint_c: temperature of the air supplied to the room.

    Returns:
        Cubic metres per second.

    Source: arXiv 2404.12498, cooling tower.
    """
    rise = np.maximum(50.0 - (outdoor_c - setpoint_c), 1.0)
    return rejected_w / (AIR_J_PER_M3_K * rise)


@njit()
def tower_water_l_per_s(rejected_w: Any, wet_bulb_c: Any, range_c: Any, reference_w: Any) -> Any:
    """Return the water that a tower evaporates, with 1 % drift.

    Args:
        rejected_w: heat of the room and of the compressor.
        wet_bulb_c: wet bulb temperature outdoors.
        range_c: kelvin by which the returning air is warmer than the supplied.
        reference_w: heat of the tower that the curve was made for.

    Returns:
        Litres per second, at least 0.

    Source: arXiv 2404.12498, water use; scaled by the heat, which its curve leaves out.
    """
    m3_per_h = np.maximum(0.044 * wet_bulb_c + 0.3528 * range_c + 0.101, 0.0)
    return m3_per_h / 3.6 * _DRIFT * rejected_w / reference_w

"""The constants of a plant, in the form that compiled functions take, and their sizing."""

from typing import NamedTuple

import numpy as np

from steelyard import catalog
from steelyard.catalog.datacenter import DataCenterSpec, RackGroup
from steelyard.catalog.validate import validate
from steelyard.errors import CatalogError
from steelyard.sim.datacenter.equations import (
    WATER_J_PER_M3_K,
    chiller_capacity_ratio,
    chiller_power_w,
    fan_flow_ratio,
    server_power_ratio,
    tower_flow_m3_per_s,
)

__all__ = ["PlantParts", "parts_of"]

_CHILLER_MARGIN = 1.1
"""Nominal heat of a chiller that is sized here, over that of the design day."""


class PlantParts(NamedTuple):
    """Numbers of one plant; arrays have one value per group of racks.

    Attributes:
        racks: racks of each group.
        servers: servers in each of its racks.
        full_w: power of a server at full load, fans left out.
        idle_w: least power of a server.
        supply_c: inlet above the air supplied.
        return_c: returning air above the outlet.
        flow_m3_per_s: air through a server at full speed of its fans.
        fan_w: power of its fans there.
        rated_w: power of all racks at full load, fans left out.
        idle_it_w: least power of all racks.
        is_fitted: whether outlets follow the empirical fit.
        crac_w: power of all fans of the room at their reference flow.
        crac_flow: air supplied per watt of the racks.
        crac_reference: air at the reference flow.
        chiller_w: nominal heat of the chiller.
        cop: heat per power of the chiller.
        drop_c: chilled water below the air supplied.
        free_approach_c: tower's water above the wet bulb, 0 without economizer.
        room_water_j_per_s_k: heat that the room's water takes up per kelvin.
        tower_w: power of the tower's fan at its reference flow.
        tower_m3_per_s: that flow.
        pumps_w: power of all pumps.
        water_reference_w: heat of the tower of the curve of water use.
        liquid_share: heat that warm water takes up at the chips.
        liquid_approach_c: that water above the wet bulb.
    """

    racks: np.ndarray
    servers: np.ndarray
    full_w: np.ndarray
    idle_w: np.ndarray
    supply_c: np.ndarray
    return_c: np.ndarray
    flow_m3_per_s: np.ndarray
    fan_w: np.ndarray
    rated_w: float
    idle_it_w: float
    is_fitted: bool
    crac_w: float
    crac_flow: float
    crac_reference: float
    chiller_w: float
    cop: float
    drop_c: float
    free_approach_c: float
    room_water_j_per_s_k: float
    tower_w: float
    tower_m3_per_s: float
    pumps_w: float
    water_reference_w: float
    liquid_share: float
    liquid_approach_c: float


def parts_of(spec: DataCenterSpec) -> PlantParts:
    """Work the constants of a plant out, with sizes that the record leaves open.

    Chiller and tower are sized for full load on the design day at the lowest setpoint.

    Args:
        spec: the record.

    Returns:
        The constants.

    Raises:
        CatalogError: the record contradicts itself, names an unknown accelerator or one without a
            rated power, or its chiller is too small for the design day.
    """
    validate(spec, where=f"data center {spec.name}")
    powers = np.array([_server_w(group) for group in spec.racks])
    groups = {
        "racks": [float(group.racks) for group in spec.racks],
        "servers": [float(group.servers) for group in spec.racks],
        "supply_c": [group.supply_approach_c for group in spec.racks],
        "return_c": [group.return_approach_c for group in spec.racks],
        "flow_m3_per_s": [group.server_flow_m3_per_s for group in spec.racks],
        "fan_w": [group.fan_w for group in spec.racks],
    }
    columns = {name: np.array(values) for name, values in groups.items()}
    count = columns["racks"] * columns["servers"]
    rated_w, idle_w = (float(count @ column) for column in powers.T)
    heat_w = _design_heat_w(spec, columns, powers[:, 0])
    air_w = heat_w * (1 - spec.liquid_share)
    crac_reference = spec.crac_reference_m3_per_s_per_watt * rated_w * (1 - spec.liquid_share)
    crac_w = spec.crac_units * spec.crac_fan_w
    room_w = air_w + crac_w
    chiller_w = _chiller_w(spec, room_w)
    coldest = spec.setpoint_low_c - spec.evaporator_drop_c
    design = spec.design_outdoor_c
    compressor_w = float(chiller_power_w(room_w, design, coldest, chiller_w, spec.chiller_cop))
    rejected_w = heat_w + crac_w + compressor_w
    room_flow = spec.crac_units * spec.pump_flow_m3_per_s
    warm_flow = heat_w * spec.liquid_share / (WATER_J_PER_M3_K * spec.liquid_rise_c)
    return PlantParts(
        **columns,
        full_w=np.ascontiguousarray(powers[:, 0]),
        idle_w=np.ascontiguousarray(powers[:, 1]),
        rated_w=rated_w,
        idle_it_w=idle_w,
        is_fitted=spec.thermal == "cfd-fit",
        crac_w=crac_w,
        crac_flow=spec.crac_m3_per_s_per_watt,
        crac_reference=crac_reference,
        chiller_w=chiller_w,
        cop=spec.chiller_cop,
        drop_c=spec.evaporator_drop_c,
        free_approach_c=spec.economizer_approach_c,
        room_water_j_per_s_k=room_flow * WATER_J_PER_M3_K,
        tower_w=spec.tower_fan_share * rejected_w,
        tower_m3_per_s=float(tower_flow_m3_per_s(rejected_w, design, spec.setpoint_low_c)),
        # Two loops of the room, and that of the warm water.
        pumps_w=spec.pump_pressure_pa * (2 * room_flow + warm_flow) / spec.pump_efficiency,
        water_reference_w=spec.water_reference_w,
        liquid_share=spec.liquid_share,
        liquid_approach_c=spec.liquid_approach_c,
    )


def _server_w(group: RackGroup) -> tuple[float, float]:
    """Return full and idle power of a server, its accelerators from the catalog."""
    if not group.accelerator:
        return group.server_full_w, group.server_idle_w
    chip = catalog.accelerator(group.accelerator)
    if not chip.tdp_w:
        raise CatalogError(
            f"{chip.name} has no rated power, which its racks need",
            hint="add tdp_w to a record in the user catalog",
        )
    count = group.accelerators_per_server
    return count * chip.tdp_w + group.host_w, count * chip.idle_w + group.server_idle_w


def _design_heat_w(
    spec: DataCenterSpec, columns: dict[str, np.ndarray], full_w: np.ndarray
) -> float:
    """Return the heat of all racks at full load and their warmest inlet, fans included."""
    inlet = spec.setpoint_high_c + columns["supply_c"]
    one = np.ones_like(inlet)
    fans = columns["fan_w"] * fan_flow_ratio(inlet, one) ** 3
    server = full_w * server_power_ratio(inlet, one) + fans
    return float(columns["racks"] * columns["servers"] @ server)


def _chiller_w(spec: DataCenterSpec, heat_w: float) -> float:
    """Return the chiller's nominal heat: what is given, or what the design day needs."""
    ratio = float(
        chiller_capacity_ratio(spec.design_outdoor_c, spec.setpoint_low_c - spec.evaporator_drop_c)
    )
    if not spec.chiller_w:
        return _CHILLER_MARGIN * heat_w / ratio
    if spec.chiller_w * ratio < heat_w:
        raise CatalogError(
            f"data center {spec.name}: chiller_w is {spec.chiller_w:g} W, which takes up "
            f"{spec.chiller_w * ratio:.4g} W at {spec.design_outdoor_c:g} C outdoors and a "
            f"setpoint of {spec.setpoint_low_c:g} C, but the room makes {heat_w:.4g} W",
            hint=f"give at least {heat_w / ratio:.4g} W, or 0 to have it sized",
        )
    return spec.chiller_w

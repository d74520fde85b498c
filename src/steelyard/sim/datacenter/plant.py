"""A data center's plant: one call meters any number of scenarios at once."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from steelyard.catalog.datacenter import DataCenterSpec
from steelyard.errors import CapacityError, ConfigError
from steelyard.jit import njit
from steelyard.sim.datacenter.columns import PLANT_COLUMNS
from steelyard.sim.datacenter.equations import (
    AIR_J_PER_M3_K,
    chiller_capacity_ratio,
    chiller_power_w,
    fan_flow_ratio,
    free_share,
    outlet_fitted_c,
    server_power_ratio,
    tower_flow_m3_per_s,
    tower_water_l_per_s,
)
from steelyard.sim.datacenter.parts import PlantParts, parts_of

__all__ = ["Plant", "PlantMeters", "check_rows", "plant_row"]

_LARGEST_GAP = 1e-6


@dataclass(frozen=True, slots=True)
class PlantMeters:
    """What a plant meters, in arrays of the scenarios' shape.

    Attributes:
        it_w: power of the racks, their fans included.
        server_fans_w: fans of the servers, part of it.
        crac_w: fans of the room.
        chiller_w: compressor.
        tower_w: fan of the tower.
        pumps_w: pumps of all loops.
        heat_w: heat that leaves the room by air.
        rejected_w: heat that the tower rejects, the compressor's included.
        inlet_c: warmest inlet of a rack.
        outlet_c: warmest outlet.
        return_c: air that returns from the room.
        liquid_c: warm water that enters the racks; NaN without liquid cooling.
        water_l_per_s: water that the tower uses.
        chiller_share: heat of the chiller over its available capacity.
        gap: largest relative gap in the accounts of heat.
    """

    it_w: np.ndarray
    server_fans_w: np.ndarray
    crac_w: np.ndarray
    chiller_w: np.ndarray
    tower_w: np.ndarray
    pumps_w: np.ndarray
    heat_w: np.ndarray
    rejected_w: np.ndarray
    inlet_c: np.ndarray
    outlet_c: np.ndarray
    return_c: np.ndarray
    liquid_c: np.ndarray
    water_l_per_s: np.ndarray
    chiller_share: np.ndarray
    gap: np.ndarray

    @property
    def cooling_w(self) -> np.ndarray:
        """Power of everything beside the racks."""
        return self.crac_w + self.chiller_w + self.tower_w + self.pumps_w

    @property
    def facility_w(self) -> np.ndarray:
        """Power of the whole site."""
        return self.it_w + self.cooling_w

    @property
    def pue(self) -> np.ndarray:
        """Power of the site over that of the racks."""
        return self.facility_w / self.it_w


class Plant:
    """The plant of a record; it holds no state."""

    def __init__(self, spec: DataCenterSpec) -> None:
        """Size the plant.

        Args:
            spec: the record.

        Raises:
            CatalogError: the record contradicts itself, or its chiller is too small.
        """
        self.spec = spec
        self.parts: PlantParts = parts_of(spec)

    @property
    def highest_approach_c(self) -> float:
        """Kelvin by which the warmest inlet is above the setpoint."""
        return float(self.parts.supply_c.max())

    def load_of(self, it_w: Any) -> np.ndarray:
        """Return the load whose metered power of the racks is given.

        Args:
            it_w: power of the racks, fans included, at least that of idle racks.

        Returns:
            Load in [0, 1], for `meters(..., is_metered=True)`.

        Raises:
            ConfigError: a power is below idle, above the rating, or not finite.
        """
        power = np.asarray(it_w, float)
        low, high = self.parts.idle_it_w, self.parts.rated_w
        if not ((power >= low) & (power <= high)).all():
            wrong = power[~((power >= low) & (power <= high))].flat[0]
            raise ConfigError(
                f"it_w is {wrong:g} W, but racks of {self.spec.name} draw {low:g} to {high:g} W",
                hint="give the power of these racks in watts, or another data center",
            )
        return (power - low) / (high - low)

    def meters(
        self,
        setpoint_c: Any,
        load: Any,
        outdoor_c: Any,
        wet_bulb_c: Any,
        *,
        is_metered: bool = False,
    ) -> PlantMeters:
        """Meter scenarios in their steady state; arguments are broadcast.

        Args:
            setpoint_c: temperature of the air supplied.
            load: utilisation in [0, 1].
            outdoor_c: temperature outdoors.
            wet_bulb_c: wet bulb temperature outdoors.
            is_metered: whether the load stands for a metered power of the racks, as from
                `load_of`: it does not depend on the inlet then.

        Returns:
            Meters of the common shape.

        Raises:
            CapacityError: the chiller is too small for a scenario.
            ConfigError: a load is outside [0, 1], or a value is not finite.
        """
        given = [np.asarray(item, float) for item in (setpoint_c, load, outdoor_c, wet_bulb_c)]
        if not (all(np.isfinite(item).all() for item in given) and _is_share(given[1])):
            raise ConfigError(
                "setpoints, loads and weather must be finite, and loads in [0, 1]",
                hint="correct the series before it is simulated",
            )
        shape = np.broadcast_shapes(*(item.shape for item in given))
        flat = [np.ascontiguousarray(np.broadcast_to(item, shape)).ravel() for item in given]
        rows = np.empty((flat[0].size, len(PLANT_COLUMNS)))
        supplied, loads, outdoor, wet_bulb = flat
        _plant_rows(self.parts, supplied, loads, outdoor, wet_bulb, is_metered, rows)
        check_rows(self, rows)
        columns = np.ascontiguousarray(rows.T).reshape(len(PLANT_COLUMNS), *shape)
        return PlantMeters(**dict(zip(PLANT_COLUMNS, columns, strict=True)))


def _is_share(load: np.ndarray) -> bool:
    """Whether all loads lie in [0, 1]."""
    return bool(((load >= 0) & (load <= 1)).all())


def check_rows(plant: Plant, rows: np.ndarray) -> None:
    """Refuse rows whose chiller is too small or whose heat is not accounted for.

    Args:
        plant: what made the rows.
        rows: rows of shape [..., columns], the plant's first.

    Raises:
        CapacityError: the chiller is too small for a scenario.
        ArithmeticError: an account of heat does not close, which is a defect of this program.
    """
    share = rows[..., PLANT_COLUMNS.index("chiller_share")]
    if share.max(initial=0.0) > 1:
        raise CapacityError(
            f"the chiller of {plant.spec.name} ({plant.parts.chiller_w:.4g} W) takes up only "
            f"{1 / share.max():.0%} of the heat in {int((share > 1).sum())} of {share.size} steps",
            hint="raise chiller_w or design_outdoor_c of the record, or lower the load",
        )
    gap = rows[..., PLANT_COLUMNS.index("gap")]
    # The empirical fit of outlets makes or loses heat: its gap is shown, not refused.
    if not plant.parts.is_fitted and not gap.max(initial=0.0) <= _LARGEST_GAP:
        raise ArithmeticError(f"heat of {plant.spec.name} is off by {gap.max():.3g}")


@njit()
def plant_row(
    plant: PlantParts,
    setpoint: Any,
    load: Any,
    outdoor: Any,
    wet_bulb: Any,
    is_metered: bool,
    row: np.ndarray,
) -> None:
    """Meter one scenario into a row of `PLANT_COLUMNS`.

    Args:
        plant: `PlantParts`.
        setpoint: temperature of the air supplied.
        load: utilisation in [0, 1].
        outdoor: temperature outdoors.
        wet_bulb: wet bulb temperature outdoors.
        is_metered: whether the load stands for a metered power.
        row: array that is filled.
    """
    by_air = 1.0 - plant.liquid_share
    metered_w = plant.idle_it_w + (plant.rated_w - plant.idle_it_w) * load
    it, fans, carried, back, count = 0.0, 0.0, 0.0, 0.0, 0.0
    inlet_high, outlet_high = -1e9, -1e9
    for group in range(plant.racks.size):
        inlet = setpoint + plant.supply_c[group]
        flow = fan_flow_ratio(inlet, load)
        fan = plant.fan_w[group] * flow**3
        if is_metered:
            server = metered_w * plant.full_w[group] / plant.rated_w
        else:
            server = plant.full_w[group] * server_power_ratio(inlet, load)
            server = max(server, plant.idle_w[group]) + fan
        rack = server * plant.servers[group]
        rack_flow = plant.servers[group] * plant.flow_m3_per_s[group] * flow
        if plant.is_fitted:
            outlet = outlet_fitted_c(inlet, rack * by_air, rack_flow)
        else:
            outlet = inlet + rack * by_air / (AIR_J_PER_M3_K * rack_flow)
        racks = plant.racks[group]
        it += racks * rack
        fans += racks * plant.servers[group] * fan
        carried += racks * rack_flow * AIR_J_PER_M3_K * (outlet - inlet)
        back += racks * (outlet + plant.return_c[group])
        count += racks
        inlet_high = max(inlet_high, inlet)
        outlet_high = max(outlet_high, outlet)
    air_flow = plant.crac_flow * it * by_air
    crac = plant.crac_w * (air_flow / plant.crac_reference) ** 3
    made = it * by_air + crac
    per_kelvin = AIR_J_PER_M3_K * air_flow
    if plant.is_fitted:
        return_c = back / count
        heat = per_kelvin * max(0.0, return_c - setpoint)
    else:
        return_c = setpoint + made / per_kelvin
        heat = made
    evaporator = setpoint - plant.drop_c
    rise = heat / plant.room_water_j_per_s_k
    free = free_share(wet_bulb, evaporator, max(rise, 1e-9), plant.free_approach_c)
    left = heat * (1.0 - free)
    available = chiller_capacity_ratio(outdoor, evaporator) * plant.chiller_w
    chiller = chiller_power_w(left, outdoor, evaporator, plant.chiller_w, plant.cop)
    rejected = heat + chiller + it * plant.liquid_share
    flow = tower_flow_m3_per_s(rejected, outdoor, setpoint)
    row[0] = it
    row[1] = fans
    row[2] = crac
    row[3] = chiller
    row[4] = plant.tower_w * min(flow / plant.tower_m3_per_s, 1.0) ** 3
    row[5] = plant.pumps_w
    row[6] = heat
    row[7] = rejected
    row[8] = inlet_high
    row[9] = outlet_high
    row[10] = return_c
    row[11] = wet_bulb + plant.liquid_approach_c if plant.liquid_share > 0 else np.nan
    row[12] = tower_water_l_per_s(rejected, wet_bulb, return_c - setpoint, plant.water_reference_w)
    row[13] = left / available
    # What the racks' air, the room's air and the tower carry, against the power that became heat.
    racks_gap = abs(carried / (it * by_air) - 1.0)
    room_gap = abs(per_kelvin * (return_c - setpoint) / made - 1.0)
    tower_gap = abs(rejected / (it + crac + chiller) - 1.0)
    row[14] = max(racks_gap, room_gap, tower_gap)


@njit()
def _plant_rows(
    plant: PlantParts,
    setpoint: Any,
    load: Any,
    outdoor: Any,
    wet_bulb: Any,
    is_metered: bool,
    rows: np.ndarray,
) -> None:
    """Meter scenarios, one row each."""
    for place in range(rows.shape[0]):
        plant_row(
            plant,
            setpoint[place],
            load[place],
            outdoor[place],
            wet_bulb[place],
            is_metered,
            rows[place],
        )

"""Facts about one data center: its racks, and the plant that cools them."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["DataCenterSpec", "RackGroup"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RackGroup:
    """Racks that are alike.

    Attributes:
        racks: how many there are.
        servers: servers in each.
        server_full_w: power of a server at full load without its fans, at its coolest inlet; not
            given where the servers hold accelerators.
        server_idle_w: least power of a server.
        accelerator: catalog name of what a server is built around, empty for none.
        accelerators_per_server: how many a server holds.
        host_w: rated power of the rest of such a server.
        supply_approach_c: kelvin by which the inlet is warmer than the air supplied; what a flow
            simulation of the room gives.
        return_approach_c: kelvin by which the air that returns is warmer than the outlet.
        server_flow_m3_per_s: air through a server whose fans turn at full speed.
        fan_w: power of a server's fans at full speed.
    """

    racks: int
    servers: int
    server_full_w: float = 0.0
    server_idle_w: float = 0.0
    accelerator: str = ""
    accelerators_per_server: int = 0
    host_w: float = 0.0
    supply_approach_c: float = 5.0
    return_approach_c: float = -2.5
    server_flow_m3_per_s: float = 0.051
    fan_w: float = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class DataCenterSpec:
    """Racks, room cooling, chiller, tower, pumps and battery of one site.

    Source: Naug et al. 2023 (arXiv 2404.12498); values of the records say what they rest on.

    Attributes:
        name: catalog name.
        site: catalog name of the site whose prices and grid count.
        racks: groups of racks that are alike.
        thermal: "balance" carries all heat that is made; "cfd-fit" takes outlet temperatures from
            an empirical fit, which removes more or less heat than was made.
        setpoint_low_c: coolest supply air.
        setpoint_high_c: warmest supply air.
        inlet_limit_c: warmest inlet without a violation; 27 is recommended by ASHRAE.
        inlet_allowable_c: warmest inlet that hardware bears; 32 is class A1.
        crac_units: air handlers of the room, each with a fan and a share of the water.
        crac_fan_w: power of one unit's fan at its reference flow.
        crac_m3_per_s_per_watt: air supplied per watt of the racks.
        crac_reference_m3_per_s_per_watt: flow at which fans draw `crac_fan_w`, per watt of the
            racks' rating.
        chiller_w: nominal heat that the chiller takes up; 0 sizes it for the design day.
        chiller_cop: heat taken up per power at nominal conditions.
        evaporator_drop_c: kelvin by which chilled water is colder than the air supplied.
        design_outdoor_c: hottest outdoor air that tower and chiller are sized for.
        economizer_approach_c: kelvin by which water cooled without the chiller is warmer than the
            wet bulb; 0 for a plant that always runs its chiller.
        tower_fan_share: power of the tower's fan at its largest flow, per heat rejected.
        pump_pressure_pa: pressure that the pumps of each of the two loops overcome.
        pump_flow_m3_per_s: water through one unit, in either loop.
        pump_efficiency: efficiency of pumps with their motors.
        water_reference_w: heat of the tower that the curve of water use was made for.
        liquid_share: heat of the racks that warm water takes up at the chips, without a chiller.
        liquid_limit_c: warmest water that may enter the racks.
        liquid_approach_c: kelvin by which that water is warmer than the wet bulb.
        liquid_rise_c: kelvin by which it is warmed.
        battery_j: energy that the battery holds; 0 for none.
        confidence: high, medium or unsure.
        source: paper or documentation where the facts stand.
    """

    name: str
    site: str
    racks: tuple[RackGroup, ...]
    thermal: Literal["balance", "cfd-fit"] = "balance"
    setpoint_low_c: float = 15.0
    setpoint_high_c: float = 27.0
    inlet_limit_c: float = 27.0
    inlet_allowable_c: float = 32.0
    crac_units: int = 20
    crac_fan_w: float = 150.0
    crac_m3_per_s_per_watt: float = 5.663e-5
    crac_reference_m3_per_s_per_watt: float = 9.438e-5
    chiller_w: float = 0.0
    chiller_cop: float = 3.0
    evaporator_drop_c: float = 9.0
    design_outdoor_c: float = 46.0
    economizer_approach_c: float = 0.0
    tower_fan_share: float = 0.0105
    pump_pressure_pa: float = 3e5
    pump_flow_m3_per_s: float = 1.1e-3
    pump_efficiency: float = 0.87
    water_reference_w: float = 4.1e6
    liquid_share: float = 0.0
    liquid_limit_c: float = 37.0
    liquid_approach_c: float = 5.0
    liquid_rise_c: float = 8.0
    battery_j: float = 0.0
    confidence: str = "medium"
    source: str = ""

    @property
    def num_servers(self) -> int:
        """Servers in all racks."""
        return sum(group.racks * group.servers for group in self.racks)

"""A data center: racks, cooling, water, battery and grid, for many scenarios at once."""

from steelyard.sim.datacenter.battery import BatteryLimits
from steelyard.sim.datacenter.center import DataCenter, Drivers, SiteAction, SiteState, windows
from steelyard.sim.datacenter.plant import Plant, PlantMeters
from steelyard.sim.datacenter.queue import DEFER, DRAIN, RUN, QueueRules
from steelyard.sim.datacenter.replay import SitePolicy, SiteRun, SiteView, simulate_site
from steelyard.sim.datacenter.weather import (
    STEP_S,
    SiteYear,
    generated_year,
    join_year,
    read_column,
)

__all__ = [
    "DEFER",
    "DRAIN",
    "RUN",
    "STEP_S",
    "BatteryLimits",
    "DataCenter",
    "Drivers",
    "Plant",
    "PlantMeters",
    "QueueRules",
    "SiteAction",
    "SitePolicy",
    "SiteRun",
    "SiteState",
    "SiteView",
    "SiteYear",
    "generated_year",
    "join_year",
    "read_column",
    "simulate_site",
    "windows",
]

"""A row of servers on one power budget, under requests of two priorities and a policy.

`replay_row` lets a policy watch over it for weeks.
"""

from steelyard.sim.power.plant import BRAKE, CLOCKS, METER, PRIORITIES, SERVERS, RowPlant
from steelyard.sim.power.replay import BandPolicy, RowReplay, replay_row
from steelyard.sim.power.requests import (
    HIGH,
    LOW,
    PUBLISHED_MIX,
    RequestKind,
    RowRequests,
    daily_shape,
    draw_requests,
)
from steelyard.sim.power.row import ServerRow
from steelyard.sim.power.scenario import RowScenario

__all__ = [
    "BRAKE",
    "CLOCKS",
    "HIGH",
    "LOW",
    "METER",
    "PRIORITIES",
    "PUBLISHED_MIX",
    "SERVERS",
    "BandPolicy",
    "RequestKind",
    "RowPlant",
    "RowReplay",
    "RowRequests",
    "RowScenario",
    "ServerRow",
    "daily_shape",
    "draw_requests",
    "replay_row",
]

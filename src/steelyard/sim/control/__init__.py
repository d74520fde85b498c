"""One control loop for all rooms: observe, decide, and commands that land after a latency.

`simulate` runs a policy on virtual time against a plant, `drive` the same policy on the real clock;
both return a `ControlReport`.
"""

from steelyard.sim.control.devices import Actuator, Latency, Meter
from steelyard.sim.control.real import Journal, drive
from steelyard.sim.control.report import ControlReport, Landing, with_regret
from steelyard.sim.control.shapes import (
    Command,
    ControlledPlant,
    Observation,
    Outcome,
    Policy,
    Reading,
)
from steelyard.sim.control.virtual import VirtualControl, simulate

__all__ = [
    "Actuator",
    "Command",
    "ControlReport",
    "ControlledPlant",
    "Journal",
    "Landing",
    "Latency",
    "Meter",
    "Observation",
    "Outcome",
    "Policy",
    "Reading",
    "VirtualControl",
    "drive",
    "simulate",
    "with_regret",
]

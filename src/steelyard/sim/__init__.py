"""Virtual time for the simulators of all rooms: one event loop, and what a replay saw."""

from steelyard.sim.loop import EventLoop
from steelyard.sim.timeline import Timeline

__all__ = ["EventLoop", "Timeline"]

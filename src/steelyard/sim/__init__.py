"""Simulators: policies driven in virtual time by one event loop."""

from steelyard.sim.loop import EventLoop
from steelyard.sim.serving import SimulatedReplay, simulate
from steelyard.sim.timeline import Timeline

__all__ = ["EventLoop", "SimulatedReplay", "Timeline", "simulate"]

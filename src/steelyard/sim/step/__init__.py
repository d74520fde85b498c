"""A step of training in time: a task graph on streams and links, its memory, its trace."""

from steelyard.sim.step.events import simulate
from steelyard.sim.step.timeline import StepTimeline

__all__ = ["StepTimeline", "simulate"]

"""A step of training in time: a task graph on streams and links, its memory, its trace."""

from steelyard.sim.step.events import simulate
from steelyard.sim.step.stages import StageTimes
from steelyard.sim.step.timeline import StepTimeline
from steelyard.sim.step.trace import chrome_trace, lanes_chart, write_chrome_trace

__all__ = [
    "StageTimes",
    "StepTimeline",
    "chrome_trace",
    "lanes_chart",
    "simulate",
    "write_chrome_trace",
]

"""One step of training as a graph of tasks, which a simulator times and an executor runs."""

from steelyard.sim.taskgraph.checks import check, violations
from steelyard.sim.taskgraph.lowering import StepOverlap, pipeline_graph
from steelyard.sim.taskgraph.schedules import (
    Pass,
    PipelineSchedule,
    gpipe,
    interleaved,
    one_forward_one_backward,
    zero_bubble,
)
from steelyard.sim.taskgraph.tasks import Buffer, GraphTask, TaskGraph

__all__ = [
    "Buffer",
    "GraphTask",
    "Pass",
    "PipelineSchedule",
    "StepOverlap",
    "TaskGraph",
    "check",
    "gpipe",
    "interleaved",
    "one_forward_one_backward",
    "pipeline_graph",
    "violations",
    "zero_bubble",
]

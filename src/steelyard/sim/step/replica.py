"""Tasks of one pipeline replica, made and ordered once for all steps that differ in times alone."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.sim.step.beside import TrafficBeside
from steelyard.sim.step.longest_path import OrderedGraph
from steelyard.sim.taskgraph.lowering import StepOverlap, pipeline_graph
from steelyard.sim.taskgraph.schedules import (
    PipelineSchedule,
    gpipe,
    interleaved,
    one_forward_one_backward,
    zero_bubble,
)

__all__ = ["SCHEDULES", "ReplicaTasks", "replica_tasks"]

SCHEDULES = {"gpipe": gpipe, "1f1b": one_forward_one_backward, "zero-bubble": zero_bubble}
"""Generators by name; "1f1b" with several chunks per rank is interleaved."""


class ReplicaTasks(NamedTuple):
    """Tasks of one replica, and what of them does not depend on times.

    Attributes:
        ordered: the graph with its order.
        beside: which passes run beside which traffic.
        device: [T] rank of each task.
        is_kernel: [T] which tasks run kernels, and are slow on a slow machine.
    """

    ordered: OrderedGraph
    beside: TrafficBeside
    device: NDArray[np.int64]
    is_kernel: NDArray[np.bool_]


@lru_cache(maxsize=16)
def replica_tasks(
    schedule: str,
    pipeline: int,
    num_micro_batches: int,
    num_chunks: int,
    overlap: StepOverlap,
    data_parallel: bool,
) -> ReplicaTasks:
    """Make the tasks of one replica.

    Args:
        schedule: key of `SCHEDULES`.
        pipeline: ranks of the pipeline.
        num_micro_batches: micro-batches per step and replica.
        num_chunks: stages per rank.
        overlap: what communicates beside the kernels.
        data_parallel: whether there are other replicas.

    Returns:
        The tasks; the same object for the same arguments.

    Raises:
        ConfigError: the schedule cannot be made of so many micro-batches, ranks and chunks.
    """
    made: PipelineSchedule
    if num_chunks > 1:
        made = interleaved(pipeline, num_micro_batches, num_chunks)
    else:
        made = SCHEDULES[schedule](pipeline, num_micro_batches)
    graph = pipeline_graph(made, overlap=overlap, data_parallel=data_parallel)
    return ReplicaTasks(
        OrderedGraph.of(graph),
        TrafficBeside.of(graph),
        np.array([task.device for task in graph.tasks]),
        np.array([task.kind == "compute" and task.op != "load" for task in graph.tasks]),
    )

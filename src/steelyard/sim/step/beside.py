"""What traffic beside the kernels costs them: it takes multiprocessors and memory bandwidth."""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.sim.step.timeline import Array
from steelyard.sim.taskgraph.tasks import TaskGraph

__all__ = ["TrafficBeside"]


class TrafficBeside(NamedTuple):
    """Which passes run beside which traffic.

    A transfer to the next stage runs beside the passes around it, which are alike; it is charged to
    the one that made what is sent. Weights of a rank's second and later chunks are gathered beside
    the first passes of a step, as many as there are ranks, and their gradients are scattered beside
    the last ones. Those of the first chunk have nothing beside them: nothing computes before they
    are gathered or after they are scattered.

    Attributes:
        passes: places of passes in a graph.
        traffic: places of the traffic beside them.
        shares: shares of that traffic's seconds.
    """

    passes: NDArray[np.int64]
    traffic: NDArray[np.int64]
    shares: Array

    @classmethod
    def of(cls, graph: TaskGraph) -> "TrafficBeside":
        """Find the traffic on streams of its own in a graph of `taskgraph.pipeline_graph`."""
        found = [*_hops(graph), *_collectives(graph)]
        places = np.array([item[:2] for item in found], dtype=np.int64).reshape(-1, 2)
        return cls(places[:, 0], places[:, 1], np.array([item[2] for item in found], dtype=float))

    def seconds(self, duration_s: Array) -> Array:
        """Return the seconds of traffic beside each task, [T].

        Args:
            duration_s: [T] seconds of each task of the graph.

        Returns:
            0 for all tasks but passes.
        """
        weights = self.shares * duration_s[self.traffic]
        found = np.zeros(len(duration_s))
        np.add.at(found, self.passes, weights)
        return found


def _hops(graph: TaskGraph) -> Iterator[tuple[int, int, float]]:
    """List sends with the passes that made what they send."""
    for place, task in enumerate(graph.tasks):
        if task.kind == "send" and task.stream != "compute":
            yield task.deps[0], place, 1.0


def _collectives(graph: TaskGraph) -> Iterator[tuple[int, int, float]]:
    """Spread gathers over the first forward passes of a stage, and scatters over its last ones.

    On a single pass of each stage their cost would add up along the way of one micro-batch through
    all stages, which no rank bears.
    """
    beside: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for place, task in enumerate(graph.tasks):
        if task.op in ("forward", "backward", "backward_weight"):
            beside["gather" if task.op == "forward" else "scatter", task.stage].append(place)
    for place, task in enumerate(graph.tasks):
        if task.axis == "data" and task.stream != "compute" and task.stage >= graph.num_devices:
            passes = beside[task.op, task.stage]
            few = (
                passes[: graph.num_devices] if task.op == "gather" else passes[-graph.num_devices :]
            )
            yield from ((item, place, 1 / len(few)) for item in few)

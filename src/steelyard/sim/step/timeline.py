"""When each task of a step ran, and what follows: bubbles, memory, the path that sets the time."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.sim.taskgraph.tasks import Buffer, TaskGraph

__all__ = ["StepTimeline"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class StepTimeline:
    """Times of the T tasks of a graph.

    Attributes:
        graph: what was run.
        start_s: [T] seconds from the step's begin.
        finish_s: [T] seconds, at least the start.
    """

    graph: TaskGraph
    start_s: Array
    finish_s: Array

    @property
    def time_s(self) -> float:
        """Seconds of the whole step; 0 for a graph without tasks."""
        return float(self.finish_s.max(initial=0.0))

    def busy_s(self, stream: str = "compute") -> Array:
        """Return the seconds that a stream of each device worked, [devices]."""
        found = np.zeros(self.graph.num_devices)
        for (device, name), places in self.graph.streams.items():
            if name == stream:
                found[device] = (self.finish_s - self.start_s)[list(places)].sum()
        return found

    def bubble_fraction(self) -> Array:
        """Return the share of the step in which each device computes nothing, [devices]."""
        kernels = np.zeros(self.graph.num_devices)
        for place, task in enumerate(self.graph.tasks):
            if task.kind == "compute" and task.stream == "compute":
                kernels[task.device] += self.finish_s[place] - self.start_s[place]
        return 1 - kernels / self.time_s if self.time_s else kernels

    def peak_bytes(self, size_bytes: Callable[[Buffer], float]) -> Array:
        """Return the most memory that each device holds in buffers, [devices].

        Memory is held from the start of the task that allocates it to the end of the one that frees
        it; what ends at an instant makes room for what starts then.

        Args:
            size_bytes: bytes of a buffer.

        Returns:
            Bytes, 0 for devices without buffers.
        """
        changes: list[list[tuple[float, int, float]]] = [[] for _ in range(self.graph.num_devices)]
        for place, task in enumerate(self.graph.tasks):
            of_device = changes[task.device]
            of_device += [(self.start_s[place], 1, size_bytes(item)) for item in task.allocates]
            of_device += [(self.finish_s[place], 0, -size_bytes(item)) for item in task.frees]
        return np.array(
            [np.cumsum([size for *_, size in sorted(item)]).max(initial=0.0) for item in changes]
        )

    def critical_path(self) -> list[int]:
        """Return the places of tasks that follow each other without a gap up to the step's end.

        Shortening any other task alone leaves the step as long as it is.
        """
        from steelyard.sim.taskgraph.order import predecessors

        before, node = predecessors(self.graph)
        found: list[int] = []
        place = int(self.finish_s.argmax()) if len(self.finish_s) else -1
        while place >= 0:
            found.append(place)
            ends = [(self.finish_s[item], item) for item in before[node[place]]]
            last_s, last = max(ends, default=(0.0, -1))
            # The first tasks start at 0 and wait for nobody.
            place = last if last_s > 0 or self.start_s[place] > 0 else -1
        return found[::-1]

"""The same times as the event loop's, as longest paths in numba, for many replicas at once."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import ConfigError, merged
from steelyard.jit import njit
from steelyard.sim.step.events import durations_of
from steelyard.sim.step.timeline import Array, StepTimeline
from steelyard.sim.taskgraph.order import topological
from steelyard.sim.taskgraph.tasks import TaskGraph

__all__ = ["OrderedGraph", "longest_path", "replica_times"]


def longest_path(graph: TaskGraph, duration_s: ArrayLike) -> StepTimeline:
    """Time a graph whose order of transfers does not depend on time.

    Args:
        graph: tasks of all devices; no link may be shared by several streams.
        duration_s: [T] seconds of each task.

    Returns:
        The timeline that `events.simulate` finds.

    Raises:
        ConfigError: tasks wait for one another, streams share a link, or a duration is wrong.
    """
    start, finish = replica_times(graph, np.asarray(duration_s, dtype=float)[:, None])
    return StepTimeline(graph, start[:, 0], finish[:, 0])


def replica_times(graph: TaskGraph, duration_s: ArrayLike) -> tuple[Array, Array]:
    """Time R data-parallel replicas of a graph, which meet in the collectives of the data axis.

    Args:
        graph: tasks of one replica; no link may be shared by several streams.
        duration_s: [T, R] seconds of each task in each replica.

    Returns:
        Start and finish of each task in each replica, [T, R] seconds.

    Raises:
        ConfigError: tasks wait for one another, streams share a link, or a duration is wrong.
    """
    return OrderedGraph.of(graph).times(duration_s)


@dataclass(frozen=True, kw_only=True)
class OrderedGraph:
    """A graph made ready to be timed again and again.

    Attributes:
        graph: tasks of one replica.
        order: nodes so that each comes after those it waits for.
        counts: [T + 1] where the edges of each node begin.
        edges: nodes that each node waits for.
        node: [T] node of each task.
        meets: [T] whether replicas meet in a task.
    """

    graph: TaskGraph
    order: NDArray[np.int64]
    counts: NDArray[np.int64]
    edges: NDArray[np.int64]
    node: list[int]
    meets: NDArray[np.bool_]

    @classmethod
    def of(cls, graph: TaskGraph) -> "OrderedGraph":
        """Order a graph.

        Args:
            graph: tasks of one replica; no link may be shared by several streams.

        Returns:
            The graph with its order.

        Raises:
            ConfigError: tasks wait for one another, or streams share a link.
        """
        _refuse_shared(graph)
        order, before, node = topological(graph)
        if len(order) < len(set(node)):
            from steelyard.sim.taskgraph.checks import check

            check(graph)
        meets = [task.kind == "collective" and task.axis == "data" for task in graph.tasks]
        return cls(
            graph=graph,
            order=np.array(order, dtype=np.int64),
            counts=np.cumsum([0, *map(len, before)]),
            edges=np.array([item for items in before for item in items], dtype=np.int64),
            node=node,
            meets=np.array(meets),
        )

    def times(self, duration_s: ArrayLike) -> tuple[Array, Array]:
        """Time replicas of the graph, as `replica_times` does.

        Args:
            duration_s: [T, R] seconds of each task in each replica.

        Returns:
            Start and finish of each task in each replica, [T, R] seconds.

        Raises:
            ConfigError: a duration is wrong.
        """
        durations = durations_of(self.graph, duration_s)
        start, finish = _relax(self.order, self.counts, self.edges, self.meets, durations)
        return start[self.node], finish[self.node]


def _refuse_shared(graph: TaskGraph) -> None:
    """Refuse links of several streams: who comes first there is a matter of time."""
    streams: defaultdict[str, set[tuple[int, str]]] = defaultdict(set)
    for task in graph.tasks:
        if task.link:
            streams[task.link].add((task.device, task.stream))
    shared = [
        ConfigError(f"link {link!r} is shared by {len(found)} streams", hint="use events.simulate")
        for link, found in streams.items()
        if len(found) > 1
    ]
    if shared:
        raise merged(shared)


@njit()
def _relax(
    order: NDArray[np.int64],
    counts: NDArray[np.int64],
    edges: NDArray[np.int64],
    meets: NDArray[np.bool_],
    duration_s: Array,
) -> tuple[Array, Array]:
    num_replicas = duration_s.shape[1]
    start = np.zeros_like(duration_s)
    finish = np.zeros_like(duration_s)
    for place in order:
        for edge in range(counts[place], counts[place + 1]):
            for replica in range(num_replicas):
                start[place, replica] = max(start[place, replica], finish[edges[edge], replica])
        if meets[place]:
            # Replicas meet: all of them start with the last, and last as long as the slowest.
            start[place] = start[place].max()
            finish[place] = start[place] + duration_s[place].max()
        else:
            finish[place] = start[place] + duration_s[place]
    return start, finish

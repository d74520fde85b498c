"""Which tasks must end before which: dependencies, streams and collectives as one list of edges."""

import itertools
from collections import deque

from steelyard.sim.taskgraph.tasks import TaskGraph

__all__ = ["predecessors", "topological", "waiting_for"]


def predecessors(graph: TaskGraph) -> tuple[list[list[int]], list[int]]:
    """List what each node of a graph waits for.

    A node is a task, or all members of a collective that start together.

    Args:
        graph: tasks of all devices.

    Returns:
        For each node the nodes before it, and for each task its node; the first member's place
        stands for a collective, and the places of the others have no nodes before them.
    """
    node = list(range(len(graph.tasks)))
    for members in graph.joins:
        for place in members:
            node[place] = members[0]
    before: list[list[int]] = [[] for _ in graph.tasks]
    for place, task in enumerate(graph.tasks):
        before[node[place]] += [node[dep] for dep in task.deps]
    for places in graph.streams.values():
        for first, second in itertools.pairwise(places):
            before[node[second]].append(node[first])
    return before, node


def topological(graph: TaskGraph) -> tuple[list[int], list[list[int]], list[int]]:
    """Order the nodes of a graph so that each comes after those it waits for.

    Args:
        graph: tasks of all devices.

    Returns:
        The nodes in order, as far as they can be ordered, and what `predecessors` returns.
    """
    before, node = predecessors(graph)
    after: list[list[int]] = [[] for _ in before]
    missing = [len(items) for items in before]
    for place, items in enumerate(before):
        for item in items:
            after[item].append(place)
    ready = deque(
        place for place in range(len(before)) if node[place] == place and not missing[place]
    )
    order = []
    while ready:
        place = ready.popleft()
        order.append(place)
        for item in after[place]:
            missing[item] -= 1
            if not missing[item]:
                ready.append(item)
    return order, before, node


def waiting_for(graph: TaskGraph) -> list[int]:
    """List the tasks that never start because they wait for one another.

    Args:
        graph: tasks of all devices.

    Returns:
        Their places, those that wait only for what is itself in the circle first; empty for a graph
        that ends.
    """
    order, before, node = topological(graph)
    ended = set(order)
    stuck = [place for place in range(len(graph.tasks)) if node[place] not in ended]
    # Tasks behind the circle wait as well, but are not its reason: those that nobody who is stuck
    # waits for are taken off, layer by layer.
    inside = set(stuck)
    while True:
        needed = {item for place in inside for item in before[node[place]]}
        kept = {place for place in inside if node[place] in needed}
        if kept == inside:
            return sorted(inside)
        inside = kept

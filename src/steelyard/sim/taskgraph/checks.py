"""What is wrong with a task graph, all of it at once."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from steelyard.errors import ConfigError, merged
from steelyard.sim.taskgraph.order import waiting_for
from steelyard.sim.taskgraph.tasks import Buffer, TaskGraph

__all__ = ["check", "violations"]

_NAMED = 4
"""Tasks of a deadlock that are named."""


def check(graph: TaskGraph) -> TaskGraph:
    """Refuse a graph that cannot run, or does not give back its memory.

    Args:
        graph: tasks of all devices.

    Returns:
        The graph.

    Raises:
        ConfigError: lists every violation.
    """
    found = violations(graph)
    if found:
        raise merged([ConfigError(text, hint="correct the generator") for text in found])
    return graph


def violations(graph: TaskGraph) -> list[str]:
    """List what is wrong with a graph, a sentence each.

    Args:
        graph: tasks of all devices.

    Returns:
        Wrong places, sends without a receive and receives without a send, tasks that wait for one
        another, memory that is never freed, freed twice, or freed before it is allocated; empty for
        a sound graph.
    """
    places = list(_wrong_places(graph))
    # Where a dependency points nowhere, the order cannot be followed any further.
    return places or [*_unmatched(graph), *_deadlock(graph), *_memory(graph)]


def _wrong_places(graph: TaskGraph) -> Iterator[str]:
    count = len(graph.tasks)
    for task in graph.tasks:
        if not 0 <= task.device < graph.num_devices:
            yield f"{task}: the graph has devices 0 to {graph.num_devices - 1}"
        for dep in task.deps:
            if not 0 <= dep < count:
                yield f"{task} depends on task {dep}, but there are {count} tasks"


def _unmatched(graph: TaskGraph) -> Iterator[str]:
    """Find sends and receives that lack their other end, or do not name each other."""
    ends: defaultdict[tuple[str, int, int], Counter[str]] = defaultdict(Counter)
    for task in graph.tasks:
        if task.kind == "send":
            ends[task.tag, task.device, task.peer]["send"] += 1
        elif task.kind == "recv":
            ends[task.tag, task.peer, task.device]["recv"] += 1
    for (tag, source, target), count in ends.items():
        if count["send"] != count["recv"]:
            yield (
                f"{tag!r} from device {source} to {target}: {count['send']} sends and "
                f"{count['recv']} receives"
            )
    for place, task in enumerate(graph.tasks):
        sends = [graph.tasks[dep] for dep in task.deps if graph.tasks[dep].kind == "send"]
        if task.kind == "recv" and not any(send.tag == task.tag for send in sends):
            yield f"{task} (task {place}) does not depend on the send of {task.tag!r}"


def _deadlock(graph: TaskGraph) -> Iterator[str]:
    stuck = waiting_for(graph)
    if stuck:
        named = "; ".join(str(graph.tasks[place]) for place in stuck[:_NAMED])
        more = f" and {len(stuck) - _NAMED} more" if len(stuck) > _NAMED else ""
        yield f"tasks wait for one another: {named}{more}"


def _memory(graph: TaskGraph) -> Iterator[str]:
    """Find memory that is not allocated and freed once each, in this order."""
    allocated: dict[tuple[int, Buffer], int] = {}
    freed: set[tuple[int, Buffer]] = set()
    for place, task in enumerate(graph.tasks):
        for buffer in task.allocates:
            if (task.device, buffer) in allocated:
                yield f"{task} allocates {_words(buffer)} again"
            allocated[task.device, buffer] = place
    for place, task in enumerate(graph.tasks):
        for buffer in task.frees:
            key = (task.device, buffer)
            if key not in allocated:
                yield f"{task} frees {_words(buffer)}, which nothing allocates there"
            elif key in freed:
                yield f"{task} frees {_words(buffer)} again"
            elif allocated[key] != place and not _reaches(graph, allocated[key], place):
                yield f"{task} may free {_words(buffer)} before it is allocated"
            freed.add(key)
    for device, buffer in allocated.keys() - freed:
        yield f"{_words(buffer)} on device {device} is never freed"


def _words(buffer: Buffer) -> str:
    return f"{buffer.kind} of stage {buffer.stage}, micro-batch {buffer.micro_batch}"


def _reaches(graph: TaskGraph, first: int, second: int) -> bool:
    """Return whether one task always comes before another: by its stream or by dependencies."""
    one, other = graph.tasks[first], graph.tasks[second]
    if (one.device, one.stream) == (other.device, other.stream):
        return first < second
    waiting, seen = [second], set()
    while waiting:
        place = waiting.pop()
        if place == first:
            return True
        if place not in seen:
            seen.add(place)
            waiting += graph.tasks[place].deps
    return False

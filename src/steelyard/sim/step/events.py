"""A step event by event: streams, links and collectives, each task when it may start."""

from collections import defaultdict, deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import ConfigError
from steelyard.sim.loop import EventLoop
from steelyard.sim.step.timeline import Array, StepTimeline
from steelyard.sim.taskgraph.checks import check
from steelyard.sim.taskgraph.tasks import TaskGraph

__all__ = ["durations_of", "simulate"]


def simulate(graph: TaskGraph, duration_s: ArrayLike) -> StepTimeline:
    """Run a graph on virtual time.

    A task starts when it is the next of its stream, its dependencies have ended, the other members
    of its collective are ready, and its link is free. A link serves one transfer at a time, in the
    order in which they became ready.

    Args:
        graph: tasks of all devices.
        duration_s: [T] seconds of each task; a collective lasts as long as its longest member.

    Returns:
        When each task ran.

    Raises:
        ConfigError: the graph has violations, or a duration is negative or not finite.
    """
    check(graph)
    run = _Run(graph, durations_of(graph, duration_s))
    for places in graph.streams.values():
        run.try_start(places[0])
    run.loop.run()
    return StepTimeline(graph, run.start_s, run.finish_s)


def durations_of(graph: TaskGraph, duration_s: ArrayLike) -> Array:
    """Check durations, and give all members of a collective the longest one's.

    Args:
        graph: tasks of all devices.
        duration_s: [T], or [T, R] for R replicas.

    Returns:
        The durations as a new array.

    Raises:
        ConfigError: a duration is negative or not finite, or their number differs.
    """
    found = np.array(duration_s, dtype=float)
    if found.ndim not in (1, 2) or len(found) != len(graph.tasks):
        raise ConfigError(
            f"durations have shape {found.shape}, but the graph has {len(graph.tasks)} tasks",
            hint="give one duration per task",
        )
    wrong = np.argwhere(~(np.isfinite(found) & (found >= 0)))
    if len(wrong):
        task, value = graph.tasks[int(wrong[0][0])], found[tuple(wrong[0])]
        raise ConfigError(
            f"{task} lasts {value} s, but must last 0 s or more", hint="correct the duration"
        )
    for members in graph.joins:
        found[list(members)] = found[list(members)].max(axis=0)
    return found


class _Run:
    """State of a run: what has ended, what is next in each stream, which links are busy."""

    def __init__(self, graph: TaskGraph, duration_s: Array) -> None:
        self.graph = graph
        self.loop = EventLoop()
        self.duration_s = duration_s
        self.start_s = np.full(len(graph.tasks), np.nan)
        self.finish_s = np.full(len(graph.tasks), np.nan)
        self.missing = [len(set(task.deps)) for task in graph.tasks]
        self.after: list[list[int]] = [[] for _ in graph.tasks]
        for place, task in enumerate(graph.tasks):
            for dep in set(task.deps):
                self.after[dep].append(place)
        self.next = dict.fromkeys(graph.streams, 0)
        self.members = {place: items for items in graph.joins for place in items}
        self.waiting: defaultdict[str, deque[int]] = defaultdict(deque)

    def try_start(self, place: int) -> None:
        """Start a task, and the other members of its collective, if all of them may."""
        members: Sequence[int] = self.members.get(place, (place,))
        if not all(self.is_ready(item) for item in members):
            return
        link = self.graph.tasks[place].link
        if not link:
            for item in members:
                self.start(item)
            return
        queue = self.waiting[link]
        # The first of the queue is being served.
        if place not in queue:
            queue.append(place)
            if len(queue) == 1:
                self.start(place)

    def is_ready(self, place: int) -> bool:
        """Return whether a task is the next of its stream and waits for no other task."""
        task = self.graph.tasks[place]
        key = (task.device, task.stream)
        places, count = self.graph.streams[key], self.next[key]
        is_next = count < len(places) and places[count] == place
        return is_next and not self.missing[place] and np.isnan(self.start_s[place])

    def start(self, place: int) -> None:
        """Note the start, and schedule the end."""
        self.start_s[place] = self.loop.now_s
        self.loop.after(self.duration_s[place], lambda: self.finish(place))

    def finish(self, place: int) -> None:
        """Note the end, and start what waited for it."""
        task = self.graph.tasks[place]
        self.finish_s[place] = self.loop.now_s
        key = (task.device, task.stream)
        self.next[key] += 1
        if task.link:
            queue = self.waiting[task.link]
            queue.popleft()
            if queue:
                self.start(queue[0])
        for item in self.after[place]:
            self.missing[item] -= 1
            self.try_start(item)
        places = self.graph.streams[key]
        if self.next[key] < len(places):
            self.try_start(places[self.next[key]])

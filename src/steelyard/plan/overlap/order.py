"""Stage 1: start times of operations that occupy one resource each, as early an end as possible."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

__all__ = ["shortest_order"]


@dataclass
class _Problem:
    """Durations, predecessors and resources of n operations, each after its predecessors."""

    seconds: Sequence[float]
    before: Sequence[Sequence[int]]
    resource: Sequence[str]
    tail: list[float] = field(init=False)
    best_s: float = float("inf")
    best: list[float] = field(default_factory=list)
    nodes: int = 0

    def __post_init__(self) -> None:
        """Find the time from each operation's start to the end of all that follow it."""
        self.tail = list(self.seconds)
        for place in reversed(range(len(self.seconds))):
            for earlier in self.before[place]:
                reached = self.seconds[earlier] + self.tail[place]
                self.tail[earlier] = max(self.tail[earlier], reached)


def shortest_order(
    seconds: Sequence[float],
    before: Sequence[Sequence[int]],
    resource: Sequence[str],
    *,
    max_nodes: int = 2000,
) -> list[float]:
    """Start every operation so that the last one ends early; operations of a resource take turns.

    A branch and bound over active schedules: of the resource that could end something first, each
    operation that could start before that end is tried. It begins with the longest remaining path
    first, which is what is returned when nothing better is found within the limit.

    Args:
        seconds: duration of each operation, positive, [n].
        before: places of the operations that each waits for, all smaller than its own.
        resource: what each occupies, [n].
        max_nodes: nodes that are tried; with fewer than it takes, the best so far is returned.

    Returns:
        Start of each operation in seconds, [n].

    Source: Giffler and Thompson 1960 (active schedules); the problem of stage 1 in Zhu et al. 2024
        (NanoFlow, arXiv 2408.12757), section 4.1.2.
    """
    problem = _Problem(list(seconds), before, resource)
    count = len(problem.seconds)
    if count:
        _branch(problem, [float("nan")] * count, {}, frozenset(), max_nodes)
    return problem.best


def _branch(
    problem: _Problem,
    start: list[float],
    free: dict[str, float],
    done: frozenset[int],
    max_nodes: int,
) -> None:
    """Try every operation that may come next where resources are contended."""
    count = len(problem.seconds)
    if len(done) == count:
        end = max(a + b for a, b in zip(start, problem.seconds, strict=True))
        if end < problem.best_s * (1 - 1e-9):
            problem.best_s, problem.best = end, list(start)
        return
    # The first dive always reaches a leaf, whatever the limit.
    if problem.best and problem.nodes >= max_nodes:
        return
    problem.nodes += 1
    earliest = _earliest(problem, start, free, done)
    if _bound(problem, earliest, free, done) >= problem.best_s * (1 - 1e-6):
        return
    ready = [
        place
        for place in range(count)
        if place not in done and all(item in done for item in problem.before[place])
    ]
    first = min(ready, key=lambda place: (earliest[place] + problem.seconds[place], place))
    ends = earliest[first] + problem.seconds[first]
    kind = problem.resource[first]
    rivals = [item for item in ready if problem.resource[item] == kind and earliest[item] < ends]
    for place in sorted(rivals, key=lambda item: (-problem.tail[item], earliest[item], item)):
        begun = list(start)
        begun[place] = earliest[place]
        after = free | {kind: earliest[place] + problem.seconds[place]}
        _branch(problem, begun, after, done | {place}, max_nodes)


def _earliest(
    problem: _Problem, start: list[float], free: dict[str, float], done: frozenset[int]
) -> list[float]:
    """Return when each operation that has not started could, by what is fixed so far."""
    found = list(start)
    for place in range(len(found)):
        if place not in done:
            ends = (found[item] + problem.seconds[item] for item in problem.before[place])
            found[place] = max(free.get(problem.resource[place], 0.0), *ends, 0.0)
    return found


def _bound(
    problem: _Problem, earliest: list[float], free: dict[str, float], done: frozenset[int]
) -> float:
    """Return a time before which the rest cannot end: by paths, and by each resource's load."""
    rest = [place for place in range(len(earliest)) if place not in done]
    found = max([*free.values(), *(earliest[item] + problem.tail[item] for item in rest)])
    for kind in {problem.resource[item] for item in rest}:
        own = [item for item in rest if problem.resource[item] == kind]
        head = min(earliest[item] for item in own)
        load = float(np.sum([problem.seconds[item] for item in own]))
        follows = min(problem.tail[item] - problem.seconds[item] for item in own)
        found = max(found, head + load + follows)
    return found

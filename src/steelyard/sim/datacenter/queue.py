"""A queue of work that may wait: deferred tasks by age, run within a day."""

from typing import NamedTuple

import numpy as np

from steelyard.jit import njit

__all__ = ["DEFER", "DRAIN", "RUN", "TASK", "QueueRules", "queue_step"]

DEFER, RUN, DRAIN = 0, 1, 2
"""Actions: let all that may wait, run what comes, run what waits too."""
TASK = 0.01
"""One task is 1 % of the site's utilisation for one step."""


class QueueRules(NamedTuple):
    """What may wait, how much and how long.

    Source: arXiv 2404.12498 and its successor SustainDC: queue of 500 tasks, 24 hours, 90 %.

    Attributes:
        flexible_share: share of the load that may wait.
        most_tasks: tasks that may wait at once.
        highest_load: load up to which waiting tasks are run.
        deadline_steps: steps after which a task runs as soon as there is room.
    """

    flexible_share: float = 0.0
    most_tasks: float = 500.0
    highest_load: float = 0.9
    deadline_steps: int = 96


@njit()
def queue_step(
    queue: np.ndarray, load: float, action: int, rules: QueueRules
) -> tuple[float, float, float]:
    """Let the load of one step wait or run.

    What the queue has no room for runs at once, so that nothing is dropped.

    Args:
        queue: work that waits by steps since it came, the last for all at or past the deadline, in
            load times steps; changed in place.
        load: utilisation that comes.
        action: `DEFER`, `RUN` or `DRAIN`.
        rules: `QueueRules`.

    Returns:
        Load that runs, work that waits, and work that is past the deadline.
    """
    last = rules.deadline_steps
    queue[last] += queue[last - 1]
    for age in range(last - 1, 0, -1):
        queue[age] = queue[age - 1]
    queue[0] = 0.0
    waiting = queue.sum()
    deferred = 0.0
    if action == DEFER:
        room = max(rules.most_tasks * TASK - waiting, 0.0)
        deferred = min(rules.flexible_share * load, room)
        queue[0] = deferred
    runs = load - deferred
    # What is due runs whatever the action; draining takes the oldest next.
    oldest = 1 if action == DRAIN else last
    for age in range(last, oldest - 1, -1):
        taken = min(queue[age], max(rules.highest_load - runs, 0.0))
        queue[age] -= taken
        runs += taken
    return runs, queue.sum(), queue[last]

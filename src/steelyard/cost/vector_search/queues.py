"""Systolic priority queues on an FPGA: cycles, and how many levels select the best of many."""

__all__ = ["queue_cycles", "queue_levels"]

_LEGAL_LEVELS = (2, 3)


def queue_cycles(length: int, inserts: float) -> float:
    """Return the cycles that a systolic queue takes for a query.

    Args:
        length: slots of the queue.
        inserts: values that go in, one every two cycles.

    Returns:
        Cycles from the first value to the last slot that is read out.

    Source: Jiang et al. 2023 (arXiv 2306.11182), model of priority queues.
    """
    return 3 + (5 + 2 * inserts) + (2 + length)


def queue_levels(k: int, inserts: float, queues: int) -> tuple[int, ...] | None:
    """Return how many queues stand in each level of a selection.

    Args:
        k: slots of each queue.
        inserts: values that go into each queue of the first level.
        queues: queues of the first level.

    Returns:
        Queues by level, down to one; each level is the smallest that takes no longer than the one
        before. None where that needs more levels than were ever built.

    Source: Jiang et al. 2023 (arXiv 2306.11182), hierarchical priority queue.
    """
    levels, bound = [queues], queue_cycles(k, inserts)
    while levels[-1] > 1 and len(levels) < max(_LEGAL_LEVELS):
        above = levels[-1]
        fewer = next((n for n in range(1, above) if queue_cycles(k, above * k // n) <= bound), None)
        if fewer is None:
            return None
        levels.append(fewer)
        bound = queue_cycles(k, above * k // fewer)
    return tuple(levels) if levels[-1] == 1 and len(levels) in _LEGAL_LEVELS else None

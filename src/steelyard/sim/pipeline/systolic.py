"""A systolic priority queue, cycle by cycle: neighbours compare and swap, one insert in two."""

import numpy as np
from numpy.typing import NDArray

from steelyard.jit import njit

__all__ = ["systolic_select"]


def systolic_select(values: NDArray[np.float32], length: int) -> tuple[NDArray[np.float32], int]:
    """Feed values to a queue and read out what it kept.

    Args:
        values: values in the order in which they come [N].
        length: slots of the queue, at least 1.

    Returns:
        The `length` smallest values, the smallest first, infinity where there are fewer, and the
        cycles from the first insert until the last slot is read.

    Source: Jiang et al. 2023 (arXiv 2306.11182), systolic priority queue.
    """
    slots = np.full(length, np.inf, np.float32)
    cycles = _feed(slots, np.ascontiguousarray(values, np.float32))
    return slots[::-1].copy(), cycles


@njit()
def _feed(slots: np.ndarray, values: np.ndarray) -> int:
    """Insert values, let the last swaps end, and read the slots out; return the cycles."""
    cycles = 0
    for value in values:
        # The leftmost slot holds the largest that is kept: a smaller one takes its place.
        slots[0] = min(slots[0], value)
        _swap(slots, 0)
        _swap(slots, 1)
        cycles += 2
    # A value may still be on its way: it moves one place per cycle, while slots are read.
    for step in range(len(slots)):
        _swap(slots, step % 2)
        cycles += 1
    return cycles


@njit()
def _swap(slots: np.ndarray, first: int) -> None:
    """Let each pair of neighbours put the larger value on the left."""
    for place in range(first, len(slots) - 1, 2):
        if slots[place] < slots[place + 1]:
            slots[place], slots[place + 1] = slots[place + 1], slots[place]

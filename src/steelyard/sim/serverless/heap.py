"""The event heap of the compiled loop: by time, priority and sequence, as `EventLoop` orders."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.jit import njit

__all__ = ["Heap", "Records", "make_heap", "pop", "push", "widen"]

Records = Any
"""An array of records: a checker of types does not know their fields."""
_PRIORITY = 1 << 52
"""The key is priority * 2^52 + sequence, so one comparison orders both."""


_ITEMS = np.dtype([("time_s", "f8"), ("key", "i8"), ("slot", "i8")])
_EVENTS = np.dtype([("first", "i8"), ("second", "i8"), ("value", "f8")])


class Heap(NamedTuple):
    """Events; what one carries lies in a slot that does not move while the heap is sorted.

    Attributes:
        items: time, key (priority and sequence) and slot, sorted as a heap.
        events: what each carries, by slot: two integers and a number.
        free: stack of free slots.
        count: events waiting, and events ever pushed.
    """

    items: Records
    events: Records
    free: NDArray[np.int64]
    count: NDArray[np.int64]


def make_heap(capacity: int) -> Heap:
    """Return an empty heap for so many events."""
    return Heap(
        np.zeros(capacity, dtype=_ITEMS),
        np.zeros(capacity, dtype=_EVENTS),
        np.arange(capacity, dtype=np.int64),
        np.zeros(2, dtype=np.int64),
    )


def widen(heap: Heap) -> Heap:
    """Return the same heap with twice the room."""
    old = len(heap.items)
    wider = make_heap(2 * old)
    for name in ("items", "events", "free"):
        getattr(wider, name)[:old] = getattr(heap, name)
    wider.count[:] = heap.count
    return wider


@njit(error_model="numpy")
def push(heap: Heap, time_s: float, priority: int, first: int, second: int, value: float) -> None:
    """Add an event; there must be room."""
    place = heap.count[0]
    slot = heap.free[place]
    heap.events[slot].first, heap.events[slot].second, heap.events[slot].value = (
        first,
        second,
        value,
    )
    key = priority * _PRIORITY + heap.count[1]
    heap.count[0] += 1
    heap.count[1] += 1
    while place > 0:
        parent = (place - 1) >> 1
        at = heap.items[parent].time_s
        if at < time_s or (at == time_s and heap.items[parent].key < key):
            break
        heap.items[place].time_s, heap.items[place].key = at, heap.items[parent].key
        heap.items[place].slot = heap.items[parent].slot
        place = parent
    heap.items[place].time_s, heap.items[place].key, heap.items[place].slot = time_s, key, slot


@njit(error_model="numpy")
def pop(heap: Heap) -> tuple[int, int]:
    """Remove the first event; its slot may be read until the next push.

    Args:
        heap: at least one event.

    Returns:
        Priority and slot.
    """
    priority, slot = heap.items[0].key // _PRIORITY, heap.items[0].slot
    heap.count[0] -= 1
    last = heap.count[0]
    heap.free[last] = slot
    time_s, key, moved = heap.items[last].time_s, heap.items[last].key, heap.items[last].slot
    place = 0
    while True:
        child = 2 * place + 1
        if child >= last:
            break
        right = child + 1
        if right < last and (
            heap.items[right].time_s < heap.items[child].time_s
            or (
                heap.items[right].time_s == heap.items[child].time_s
                and heap.items[right].key < heap.items[child].key
            )
        ):
            child = right
        at = heap.items[child].time_s
        if time_s < at or (time_s == at and key < heap.items[child].key):
            break
        heap.items[place].time_s, heap.items[place].key = at, heap.items[child].key
        heap.items[place].slot = heap.items[child].slot
        place = child
    heap.items[place].time_s, heap.items[place].key, heap.items[place].slot = time_s, key, moved
    return priority, slot

"""The event heap of the compiled loop: by time, priority and sequence, as `EventLoop` orders."""

from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from steelyard.jit import njit_borrowing

__all__ = ["PRIORITY", "ZERO", "Heap", "Records", "constants", "make_heap", "pop", "push", "widen"]

Records = Any
"""An array of records: a checker of types does not know their fields."""
PRIORITY = 1 << 52
"""The key is priority * 2^52 + sequence, so one comparison orders both."""
_WAYS = 4
"""Children of a place: half as many levels as two, and siblings lie side by side in memory."""

_EVENTS = np.dtype(
    [("time_s", "f8"), ("key", "i8"), ("first", "i8"), ("second", "i8"), ("value", "f8")]
)


def constants(count: int) -> tuple[int, ...]:
    """Return 0, 1, and so on up to below `count`, to name what compiled functions are handed.

    They are of NumPy's type: numba compiles a function anew for every plain integer in a call.
    """
    return cast(tuple[int, ...], tuple(np.arange(count, dtype=np.int64)))


(ZERO,) = constants(1)


class Heap(NamedTuple):
    """Events in the order of a heap.

    Attributes:
        events: time, key (priority and sequence), and what an event carries.
        count: events waiting, and events ever pushed.
    """

    events: Records
    count: NDArray[np.int64]


def make_heap(capacity: int) -> Heap:
    """Return an empty heap for so many events; one more row holds the event that was popped."""
    return Heap(np.zeros(capacity + 1, dtype=_EVENTS), np.zeros(2, dtype=np.int64))


def widen(heap: Heap) -> Heap:
    """Return the same heap with twice the room."""
    wider = make_heap(2 * len(heap.events))
    wider.events[: len(heap.events)] = heap.events
    wider.count[:] = heap.count
    return wider


@njit_borrowing()
def _move(events: Records, place: int, source: int) -> None:
    """Copy an event, field by field: numba copies no record at once."""
    events[place].time_s, events[place].key = events[source].time_s, events[source].key
    events[place].first, events[place].second = events[source].first, events[source].second
    events[place].value = events[source].value


@njit_borrowing()
def push(heap: Heap, time_s: float, priority: int, first: int, second: int, value: float) -> None:
    """Add an event; there must be room."""
    events, place = heap.events, heap.count[0]
    key = priority * PRIORITY + heap.count[1]
    heap.count[0] += 1
    heap.count[1] += 1
    while place > 0:
        parent = (place - 1) // _WAYS
        at = events[parent].time_s
        if at < time_s or (at == time_s and events[parent].key < key):
            break
        _move(events, place, parent)
        place = parent
    events[place].time_s, events[place].key = time_s, key
    events[place].first, events[place].second, events[place].value = first, second, value


@njit_borrowing()
def pop(heap: Heap) -> int:
    """Remove the first event and return the row that holds it until the next push or pop.

    Args:
        heap: heap with at least one event.

    Returns:
        The last row of the table, which no waiting event uses.
    """
    events = heap.events
    # What was popped goes out of the heap's way: a later push may take its old place.
    out = len(events) - 1
    _move(events, out, ZERO)
    heap.count[0] -= 1
    last = heap.count[0]
    time_s, key = events[last].time_s, events[last].key
    place = 0
    while True:
        child = _WAYS * place + 1
        if child >= last:
            break
        for other in range(child + 1, min(child + _WAYS, last)):
            at, least = events[other].time_s, events[child].time_s
            if at < least or (at == least and events[other].key < events[child].key):
                child = other
        at = events[child].time_s
        if time_s < at or (time_s == at and key < events[child].key):
            break
        _move(events, place, child)
        place = child
    _move(events, place, last)
    return out

"""Seconds that a piece of work took, without those in which other programs had the processor."""

import time
from collections.abc import Callable
from typing import TypeVar

try:
    import resource
except ImportError:  # Windows has none
    resource = None

__all__ = ["WorkClock", "fastest"]

T = TypeVar("T")


class WorkClock:
    """Counts from when it is made.

    A trial is short: what runs beside it is likely not there for all of the work that it stands
    for, and would be carried over to it. Threads that work side by side take more processor time
    than time passes, and one that waits its turn takes less: the smaller of both is the work's own.
    """

    def __init__(self) -> None:
        """Begin."""
        self._wall_s, self._own_s = time.perf_counter(), time.process_time()
        self._blocks = _blocks_read()

    def read_s(self) -> float:
        """Return the seconds of work since the clock was made.

        Returns:
            The lesser of time and processor time of this process; the time, where something was
            read from a drive, which waits without a processor.
        """
        wall_s = time.perf_counter() - self._wall_s
        own_s = time.process_time() - self._own_s
        return wall_s if _blocks_read() > self._blocks else min(wall_s, own_s)


def fastest(work: Callable[[], T]) -> tuple[float, T]:
    """Do some work twice.

    Args:
        work: leaves nothing behind that makes the second time another one.

    Returns:
        Seconds of work of the faster time, and what it returned.
    """
    clock = WorkClock()
    work()
    first_s = clock.read_s()
    clock = WorkClock()
    found = work()
    return min(first_s, clock.read_s()), found


def _blocks_read() -> int:
    """Return how often this process had a drive read something; 0 where nothing tells."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_inblock if resource else 0

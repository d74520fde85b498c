"""Seconds that a piece of work took, without those in which other programs had the processor."""

import hashlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from steelyard.parallel import torch_threads

try:
    import resource
except ImportError:  # Windows has none
    resource = None

__all__ = ["WorkClock", "fastest", "free_threads"]

T = TypeVar("T")

_SPIN_S, _PROBES, _ALMOST, _HASHED = 0.03, 3, 0.25, bytes(1 << 16)
_REPEATS, _REPEATS_S = 5, 0.1


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
    """Do some work twice; five times where that takes no more than a tenth of a second.

    Args:
        work: leaves nothing behind that makes the next time another one.

    Returns:
        Seconds of work of the fastest time, and what the last one returned.
    """
    taken_s: list[float] = []
    began_s = time.perf_counter()
    while True:
        clock = WorkClock()
        found = work()
        taken_s.append(clock.read_s())
        # Short work is what the loss of a processor, for a moment, makes many times as long.
        is_long = time.perf_counter() - began_s > _REPEATS_S
        if len(taken_s) >= (2 if is_long else _REPEATS):
            return min(taken_s), found


@contextmanager
def free_threads() -> Iterator[int]:
    """Use only so many threads of torch in a block as get a processor of their own now.

    Threads wait for each other at the end of every step. Where other programs want the processors,
    one that waits for its turn holds up all of them: a step that takes microseconds then takes
    the milliseconds of a turn, and no clock tells that apart from work.

    Yields:
        Threads inside the block, 1 or more.
    """
    import torch

    with torch_threads(_running_at_once(torch.get_num_threads())) as threads:
        yield threads


def _running_at_once(most: int) -> int:
    """Return how many of some threads run at once, by processor time over time."""
    found = 1
    with ThreadPoolExecutor(most) as pool:
        # One probe may fall into a short interruption; other work that goes on is in all of them.
        for _ in range(_PROBES if most > 1 else 0):
            own_s, wall_s = time.process_time(), time.perf_counter()
            # Hashing lets go of the interpreter, so threads hash side by side.
            for ended in [pool.submit(_spin, wall_s + _SPIN_S) for _ in range(most)]:
                ended.result()
            taken_s = time.perf_counter() - wall_s
            found = max(found, int((time.process_time() - own_s) / taken_s + _ALMOST))
            if found >= most:
                break
    return min(found, most)


def _spin(until_s: float) -> None:
    """Hash until a time."""
    while time.perf_counter() < until_s:
        hashlib.sha256(_HASHED)


def _blocks_read() -> int:
    """Return how often this process had a drive read something; 0 where nothing tells."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_inblock if resource else 0

"""The event loop of every simulator: a heap keyed by time, priority and sequence."""

import heapq
import math
from collections.abc import Callable

from steelyard.errors import ConfigError

__all__ = ["EventLoop"]


class EventLoop:
    """Runs actions in the order of their virtual time.

    Events of one time run by rising priority, and within a priority in the order they were
    scheduled, so a run repeats exactly.

    Attributes:
        now_s: virtual time of the event that runs, 0 before the first.
        num_events: events run so far.
    """

    def __init__(self) -> None:
        """Start at time 0 with nothing to do."""
        self.now_s = 0.0
        self.num_events = 0
        self._heap: list[tuple[float, int, int, Callable[[], None]]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_s(self) -> float:
        """Time of the next event, infinity when there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def at(self, time_s: float, action: Callable[[], None], *, priority: int = 0) -> None:
        """Schedule an action at an absolute time.

        Args:
            time_s: seconds, not before `now_s`.
            action: called without arguments; it may schedule more.
            priority: lower runs first among events of one time.

        Raises:
            ConfigError: the time is not finite or lies in the past.
        """
        if not math.isfinite(time_s) or time_s < self.now_s:
            raise ConfigError(
                f"event at {time_s} s, but the loop stands at {self.now_s} s",
                hint="events may only be scheduled ahead",
            )
        heapq.heappush(self._heap, (time_s, priority, self._sequence, action))
        self._sequence += 1

    def after(self, delay_s: float, action: Callable[[], None], *, priority: int = 0) -> None:
        """Schedule an action `delay_s` >= 0 seconds from now."""
        self.at(self.now_s + delay_s, action, priority=priority)

    def step(self) -> bool:
        """Run the next event; False when there is none."""
        if not self._heap:
            return False
        self.now_s, _, _, action = heapq.heappop(self._heap)
        self.num_events += 1
        action()
        return True

    def run(self, *, until_s: float = math.inf) -> float:
        """Run events up to and including time `until_s`, or until none is left.

        Args:
            until_s: seconds of virtual time.

        Returns:
            The time of the last event run; events after `until_s` stay scheduled.
        """
        while self._heap and self._heap[0][0] <= until_s:
            self.step()
        return self.now_s

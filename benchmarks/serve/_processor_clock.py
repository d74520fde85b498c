"""A clock of processor time, for measurements on a machine that others use as well."""

import time

__all__ = ["ProcessorClock"]


class ProcessorClock:
    """Counts what this process computes, and passes over what it would wait.

    On an idle machine an engine of one thread sees the same times as by the wall clock, as it
    either computes or waits for an arrival. Elsewhere the time in which other programs have its
    processor is left out; what they take of caches and memory is not.
    """

    def __init__(self) -> None:
        """Start at the processor time that was used so far."""
        self._passed_s = 0.0

    def now_s(self) -> float:
        """Return seconds from an arbitrary start."""
        return time.process_time() + self._passed_s

    def wait_until(self, time_s: float) -> None:
        """Let time pass up to a moment at once; nothing when it is past."""
        self._passed_s += max(time_s - self.now_s(), 0.0)

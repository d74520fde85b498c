"""Measuring only while nothing else takes the processors: wait, look afterwards, measure again."""

import time
from collections.abc import Callable
from typing import TypeVar

from steelyard.contention import LoadMeter, other_work
from steelyard.errors import CalibrationError

__all__ = ["MOST_LOST", "Patience"]

T = TypeVar("T")

_REST = 0.1
"""Processors of every one usable that others may keep busy at the start of a measurement."""

_GOOD = 0.05
"""Share of the time that may be lost to others before a measurement is made again."""

MOST_LOST = 0.2
"""Share of the time that may be lost to others at all: figures are then at most a quarter off."""


class Patience:
    """Seconds that may go into waiting for a quiet machine and into measuring again.

    Attributes:
        lost: largest share of the time that was lost to others in any measurement kept so far.
    """

    def __init__(
        self,
        seconds: float,
        *,
        processors: int,
        tell: Callable[[str], None],
        refuses: bool = True,
    ) -> None:
        """Begin with all of the seconds.

        Args:
            seconds: may be spent over all measurements; 0 takes every measurement as it comes.
            processors: processors this process may use.
            tell: receives what is waited for.
            refuses: whether a measurement that stays disturbed is an error.
        """
        self.lost = 0.0
        self._left_s = seconds
        self._processors = processors
        self._tell = tell
        self._refuses = refuses

    def measure(self, work: Callable[[], T]) -> T:
        """Measure when the machine is quiet, and again when it was not.

        Args:
            work: measures; called at least once.

        Returns:
            What the least disturbed call returned.

        Raises:
            CalibrationError: others took too much of every call.
        """
        best, least = None, float("inf")
        while True:
            self._wait()
            begin_s = time.monotonic()
            meter = LoadMeter()
            found = work()
            load = meter.read()
            if load.lost < least:
                best, least = found, load.lost
            if least <= _GOOD or self._left_s <= 0:
                break
            # The first call is the measurement; only its repeats are paid for.
            self._left_s -= time.monotonic() - begin_s
            self._tell("other work took part of the processors: measuring again")
        if self._refuses and least > MOST_LOST:
            raise CalibrationError(
                f"the machine is busy: other work took {100 * least:.0f} % of the processor time "
                f"of the measurement, at most {100 * MOST_LOST:.0f} % can be corrected for",
                hint="end the other work (`top` shows it) and run again, or measure all the same "
                "with --force",
            )
        self.lost = max(self.lost, least)
        return best  # pyright: ignore[reportReturnType]

    def _wait(self) -> None:
        """Rest until others keep few processors busy, or the patience is spent."""
        while self._left_s > 0:
            begin_s = time.monotonic()
            others = other_work()
            if others <= _REST * self._processors:
                return
            self._left_s -= time.monotonic() - begin_s
            self._tell(
                f"other work keeps {others:.1f} of {self._processors} processors busy: waiting for "
                f"a quiet moment, {max(self._left_s, 0):.0f} s more at most"
            )

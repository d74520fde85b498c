"""The speed of the machine of the moment: a fixed piece of work, timed again and again.

Other processes, neighbours on the same host, heat and clocks change how fast a machine is from one
minute to the next. A forecast of a time is for the speed that was seen when it was made.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, pstdev

import torch

__all__ = ["Pace", "Pacer", "drift", "joined"]

_WINDOW = 25
"""Timings in a window: five seconds of them."""

_ROWS = 256
_DISPATCHES = 300
_PRODUCTS = 8
_CAP = 4.0
"""Times the median that one timing may count: a thread that sleeps through its turn adds many
milliseconds to a piece of work of two, and hardly any to a step of a hundred."""

_COMMON_Z = 1.28
"""Standard deviations from the middle to the end of an 80 % interval of a normal distribution."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """What the fixed work took over a time.

    Attributes:
        median_s: median over the timings, seconds; 0 when there is none.
        mean_s: mean over the timings, the slowest capped, seconds; 0 when there is none.
        windows_s: means over five seconds each.
        lone_mean_s: mean over the timings of work that one thread does, the dispatch of small
            operations: another process on a second processor slows threads that meet, and leaves
            a lone one as it was.
        lone_windows_s: its means over five seconds each.
    """

    median_s: float = 0.0
    mean_s: float = 0.0
    windows_s: tuple[float, ...] = ()
    lone_mean_s: float = 0.0
    lone_windows_s: tuple[float, ...] = ()


@dataclass(slots=True)
class Pacer:
    """Times the fixed work again and again while something else is measured.

    Attributes:
        clock: tells the time, seconds.
        every_s: time between two timings, seconds.
        timings_s: what the work of all threads took each time, seconds.
        lone_timings_s: what the work of one thread took, seconds.
    """

    clock: Callable[[], float] = time.perf_counter
    every_s: float = 0.2
    timings_s: list[float] = field(default_factory=list)
    lone_timings_s: list[float] = field(default_factory=list)
    _next_s: float = -math.inf
    _operands: tuple[torch.Tensor, torch.Tensor] | None = None

    def tick(self) -> None:
        """Time the work when it is due.

        Call it between the steps of what is measured, where it adds to none of their times.
        """
        if self.clock() < self._next_s:
            return
        self.time_once()
        self._next_s = self.clock() + self.every_s

    def time_once(self) -> None:
        """Time the work now."""
        if self._operands is None:
            generator = torch.Generator().manual_seed(0)
            shape = (_ROWS, _ROWS)
            self._operands = (
                torch.randn(shape, generator=generator),
                torch.randn(shape, generator=generator) / math.sqrt(_ROWS),
            )
        values, weights = self._operands
        with torch.inference_mode():
            # What was measured has filled the caches with its own data: the first product is not
            # timed.
            torch.mm(values, weights)
            begin_s = self.clock()
            for _ in range(_PRODUCTS):
                values = torch.nn.functional.silu(values @ weights)
            self.timings_s.append(self.clock() - begin_s)
            small = values[0, :8]
            begin_s = self.clock()
            for _ in range(_DISPATCHES):
                torch.add(small, small)
            self.lone_timings_s.append(self.clock() - begin_s)

    def pace(self) -> Pace:
        """Sum the timings up."""
        if not self.timings_s:
            return Pace()
        together, lone = _capped(self.timings_s), _capped(self.lone_timings_s)
        return Pace(
            median_s=median(together),
            mean_s=fmean(together),
            windows_s=_windows(together),
            lone_mean_s=fmean(lone),
            lone_windows_s=_windows(lone),
        )


def _capped(timings_s: list[float]) -> list[float]:
    """Return the timings, none of them above some times their median."""
    most_s = _CAP * median(timings_s)
    return [min(seconds, most_s) for seconds in timings_s]


def _windows(timings_s: list[float]) -> tuple[float, ...]:
    """Return the means over the windows; a rest of less than half a window is left out."""
    starts = range(0, max(len(timings_s) - _WINDOW // 2, 1), _WINDOW)
    return tuple(fmean(timings_s[start : start + _WINDOW]) for start in starts)


def joined(paces: Iterable[Pace]) -> Pace:
    """Return the pace over several times together; those without timings do not count.

    Args:
        paces: paces in the order of time.

    Returns:
        Medians and means are medians over the times, the windows those of all.
    """
    known = [pace for pace in paces if pace.windows_s]
    if not known:
        return Pace()
    return Pace(
        median_s=median(pace.median_s for pace in known),
        mean_s=median(pace.mean_s for pace in known),
        windows_s=tuple(window for pace in known for window in pace.windows_s),
        lone_mean_s=median(pace.lone_mean_s for pace in known),
        lone_windows_s=tuple(window for pace in known for window in pace.lone_windows_s),
    )


def drift(windows_s: Sequence[float]) -> float:
    """Return how far the speed strays: relative half-width of 80 % of the windows.

    Args:
        windows_s: times of the fixed work, each a mean over some seconds.

    Returns:
        A fraction; 0 for fewer than three windows.
    """
    if len(windows_s) < 3:
        return 0.0
    return math.expm1(_COMMON_Z * pstdev(map(math.log, windows_s)))

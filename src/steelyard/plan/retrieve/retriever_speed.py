"""Seconds of towers and indexes on one core, as straight lines through what was measured."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import CalibrationError

__all__ = ["LatencySample", "SpeedLine", "joined_p95_s", "time_calls"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class LatencySample:
    """Times of one kind of call.

    Attributes:
        work: operations, bytes or codes of a call.
        median_s: seconds that half of the calls stay below.
        p95_s: seconds that 95 % of them stay below.
    """

    work: float
    median_s: float
    p95_s: float


@dataclass(frozen=True, kw_only=True)
class SpeedLine:
    """Seconds by work: a fixed part, and one that grows.

    Attributes:
        overhead_s: fixed part.
        s_per_work: seconds of a unit of work.
        tail: ratio of the 95th percentile to the median.
    """

    overhead_s: float
    s_per_work: float
    tail: float

    @classmethod
    def through(cls, samples: Sequence[LatencySample]) -> "SpeedLine":
        """Fit a line to measured medians.

        Relative errors count, so that small calls matter as much as large ones; no part of the
        line is negative.

        Args:
            samples: two or more, of different work.

        Returns:
            The line.

        Raises:
            CalibrationError: fewer than two amounts of work, or times that are not positive.
        """
        works = np.array([item.work for item in samples])
        medians = np.array([item.median_s for item in samples])
        if len(np.unique(works)) < 2 or not (medians > 0).all():
            raise CalibrationError(
                f"speed from {len(samples)} samples of {len(np.unique(works))} amounts of work",
                hint="time two sizes or more",
            )
        design = np.column_stack([np.ones(len(works)), works]) / medians[:, None]
        line = np.linalg.lstsq(design, np.ones(len(works)), rcond=None)[0]
        if line[0] < 0:
            line = np.array([0.0, 1 / float(np.mean(works / medians))])
        elif line[1] < 0:
            line = np.array([float(np.exp(np.log(medians).mean())), 0.0])
        tails = [item.p95_s / item.median_s for item in samples]
        return cls(
            overhead_s=float(line[0]), s_per_work=float(line[1]), tail=float(np.median(tails))
        )

    def median_s(self, work: float) -> float:
        """Return the seconds that half of the calls stay below."""
        return self.overhead_s + self.s_per_work * work

    def p95_s(self, work: float) -> float:
        """Return the seconds that 95 % of the calls stay below, while none waits for another."""
        return self.tail * self.median_s(work)


def joined_p95_s(*parts: tuple[float, float]) -> float:
    """Return what 95 % of calls stay below that do one thing after another.

    Args:
        *parts: median seconds of each, and the ratio of its 95th percentile to them.

    Returns:
        The sum of the medians, and of what the percentiles add: as independent delays do, by
        their squares.
    """
    medians = sum(median for median, _ in parts)
    return medians + math.sqrt(sum((median * (tail - 1)) ** 2 for median, tail in parts))


def time_calls(
    call: Callable[[int], object],
    count: int,
    work: float,
    *,
    clock: Callable[[], float] = time.perf_counter,
    warm_up: int = 3,
    between: Callable[[], object] | None = None,
) -> LatencySample:
    """Time a call many times.

    Args:
        call: takes the number of the call.
        count: timed calls.
        work: what one of them does.
        clock: seconds; the processor's own where others share the machine.
        warm_up: calls before, not timed.
        between: what is done before each call and not timed: in service other work runs between
            two calls of a kind, and takes the caches.

    Returns:
        The sample.
    """
    for number in range(warm_up):
        call(number)
    seconds = np.empty(count)
    for number in range(count):
        if between is not None:
            between()
        begin_s = clock()
        call(number)
        seconds[number] = clock() - begin_s
    median, p95 = np.quantile(seconds, [0.5, 0.95])
    return LatencySample(work=work, median_s=float(median), p95_s=float(p95))

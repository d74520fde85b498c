"""Repeat a call often enough to trust its median, and keep the spread."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from steelyard.quantity import Measurement

__all__ = ["Clock", "Samples", "Timed", "clock_of", "host_clock", "quietest", "repeat"]

Clock = Callable[[Callable[[], Any], int], float]
"""Runs a call a number of times and returns the seconds that all of them took."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Seconds of one piece of work, measured several times.

    Attributes:
        seconds: time of each repetition, a mean over its inner loop.
        disturbed: times of slower rounds, which count for the spread only.
    """

    seconds: tuple[float, ...]
    disturbed: tuple[float, ...] = ()

    @property
    def median_s(self) -> float:
        """Median over the repetitions of the quietest round."""
        return float(np.median(self.seconds))

    @property
    def spread(self) -> float:
        """Interquartile range over the median, all rounds."""
        low, middle, high = np.percentile(self.seconds + self.disturbed, [25, 50, 75])
        return float((high - low) / middle)

    def rate(self, work: float) -> float:
        """Return `work` (FLOPs, bytes) per second at the median."""
        return work / self.median_s

    def measurement(self, name: str, work: float = 0.0) -> Measurement:
        """Make the measurement of a time, or of a rate when `work` is given.

        Args:
            name: name of the quantity.
            work: FLOPs or bytes of one repetition; 0 for a time.

        Returns:
            Median of the quietest round, standard deviation and count of all rounds.
        """
        every = np.asarray(self.seconds + self.disturbed)
        value = self.rate(work) if work else self.median_s
        spread = float((work / every if work else every).std())
        return Measurement(
            quantity=name, value=value, spread=spread, count=len(every), time_s=time.time()
        )


Timed = tuple[Samples, float]
"""What a probe returns: its samples, and the FLOPs or bytes of one repetition, 0 for a time."""


def quietest(rounds: list[Samples]) -> Samples:
    """Return the round with the least median: other work only ever slows a round down.

    Args:
        rounds: samples of the same work, measured at different moments; at least one.

    Returns:
        The fastest round's repetitions, the others kept as `disturbed`.
    """
    best = min(rounds, key=lambda samples: samples.median_s)
    rest = tuple(
        seconds for samples in rounds if samples is not best for seconds in samples.seconds
    )
    return Samples(best.seconds, rest)


def host_clock(call: Callable[[], Any], loops: int) -> float:
    """Time `loops` calls by the wall clock."""
    start = time.perf_counter()
    for _ in range(loops):
        call()
    return time.perf_counter() - start


def _cuda_clock(call: Callable[[], Any], loops: int) -> float:
    """Time `loops` calls by events on the GPU's stream, so that launches are not counted."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(loops):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def clock_of(device: str) -> Clock:
    """Return the clock of a device: events on CUDA, the wall clock elsewhere."""
    return _cuda_clock if device == "cuda" else host_clock


def repeat(
    call: Callable[[], Any],
    clock: Clock,
    *,
    repeats: int = 7,
    least_s: float = 0.003,
    most_s: float = 0.5,
) -> Samples:
    """Warm a call up, then time it `repeats` times.

    Args:
        call: work that is timed.
        clock: times a number of calls.
        repeats: repetitions to make.
        least_s: least length of a repetition, which loops until it lasts about this long.
        most_s: time after which no more repetitions start; at least 3 are made.

    Returns:
        Seconds per call of each repetition.
    """
    # The first call pays for page faults, caches and lazy initialization; it only warms up.
    call()
    once = max(clock(call, 1), 1e-7)
    loops = max(1, math.ceil(least_s / once))
    seconds: list[float] = []
    while len(seconds) < 3 or (len(seconds) < repeats and sum(seconds) * loops < most_s):
        seconds.append(clock(call, loops) / loops)
        if seconds[-1] * loops > 8 * least_s:
            # The single call above was fast by chance: too many loops would spend all the time.
            loops = max(1, loops // 8)
    return Samples(tuple(seconds))

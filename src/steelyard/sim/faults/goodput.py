"""The share of time that moves a job forward, and the checkpoint interval that makes it largest."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from steelyard.errors import require
from steelyard.sim.faults.processes import FailureProcess, Weibull

__all__ = [
    "MemoryAndStorage",
    "best_interval",
    "best_two_levels",
    "daly_interval_s",
    "exponential_interval_s",
    "renewal_goodput",
    "two_level_goodput",
    "young_interval_s",
]

_NEGLIGIBLE = 1e-10
_GRID = 400
"""Intervals that are tried before the best one is refined; records, and laws that are nearly
periodic, have many small maxima."""
_SMOOTH_GRID = 24


def young_interval_s(mtbf_s: float, save_s: float) -> float:
    """Return the first-order optimum of the work between saves, sqrt(2 save x MTBF).

    Source: Young 1974, "A first order approximation to the optimum checkpoint interval".
    """
    return math.sqrt(2 * save_s * mtbf_s)


def daly_interval_s(mtbf_s: float, save_s: float) -> float:
    """Return the higher-order optimum of the work between saves, in seconds.

    Args:
        mtbf_s: mean seconds between failures.
        save_s: seconds that a save blocks; beyond twice the MTBF the optimum is the MTBF.

    Returns:
        Seconds above 0.

    Source: Daly 2006, "A higher order estimate of the optimum checkpoint interval", equation 37.
    """
    if save_s >= 2 * mtbf_s:
        return mtbf_s
    part = save_s / (2 * mtbf_s)
    return young_interval_s(mtbf_s, save_s) * (1 + math.sqrt(part) / 3 + part / 9) - save_s


def exponential_interval_s(mtbf_s: float, save_s: float) -> float:
    """Return the exact optimum of the work between saves where failures come at a constant rate.

    Args:
        mtbf_s: mean seconds between failures.
        save_s: seconds that a save blocks.

    Returns:
        Seconds: MTBF (1 + W(-exp(-save / MTBF - 1))), with Lambert's W.

    Source: Daly 2006, equation 20, solved for its minimum.
    """
    from scipy.special import lambertw

    return mtbf_s * float(1 + lambertw(-math.exp(-save_s / mtbf_s - 1)).real)


def renewal_goodput(
    process: FailureProcess, *, interval_s: float, save_s: float, restart_s: float
) -> float:
    """Return the long-run share of time that is kept work.

    From one failure to the next, a job restarts, then works and saves in turn; what was not saved
    is lost, and a failure during the restart begins it again.

    Args:
        process: times between failures.
        interval_s: work between saves, above 0.
        save_s: seconds that a save blocks.
        restart_s: seconds from a failure until work goes on.

    Returns:
        A fraction: interval x sum over k of P(gap >= restart + k (interval + save)) / mean gap.
        With exponential gaps it is Daly's equation 20.

    Source: Ross, "Stochastic Processes", renewal reward theorem.
    """
    period_s = interval_s + save_s
    if isinstance(process, Weibull) and process.shape == 1:
        # The sum is a geometric series; saves of milliseconds would make it millions of terms.
        kept = math.exp(-restart_s / process.mean_s) / math.expm1(period_s / process.mean_s)
        return interval_s * kept / process.mean_s
    # Cycles beyond the largest gap that matters are never completed.
    last = 1
    while process.survival(restart_s + last * period_s) > _NEGLIGIBLE and last < 2**24:
        last *= 2
    cycles = np.arange(1, last + 1, dtype=float)
    kept = process.survival(np.nextafter(restart_s + cycles * period_s, 0.0)).sum()
    return float(interval_s * kept / process.mean_s)


def best_interval(
    process: FailureProcess, *, save_s: float, restart_s: float
) -> tuple[float, float]:
    """Return the work between saves that keeps most, and the share of time that it keeps.

    Args:
        process: times between failures.
        save_s: seconds that a save blocks, above 0.
        restart_s: seconds from a failure until work goes on.

    Returns:
        Seconds and a fraction.
    """
    from scipy.optimize import minimize_scalar

    def wasted(log_interval: float) -> float:
        interval_s = math.exp(log_interval)
        return -renewal_goodput(process, interval_s=interval_s, save_s=save_s, restart_s=restart_s)

    middle = math.log(young_interval_s(process.mean_s, save_s))
    is_smooth = isinstance(process, Weibull) and process.shape <= 1
    grid = np.linspace(middle - 3, middle + 3, _SMOOTH_GRID if is_smooth else _GRID)
    found = [wasted(item) for item in grid]
    best = int(np.argmin(found))
    near = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    refined: Any = minimize_scalar(wasted, bounds=near, method="bounded", options={"xatol": 1e-6})
    if refined.fun < found[best]:
        return math.exp(float(refined.x)), -float(refined.fun)
    return math.exp(float(grid[best])), -float(found[best])


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryAndStorage:
    """Frequent saves to memory, and a save to storage with every so many of them.

    Attributes:
        memory_save_s: seconds that a save to memory blocks.
        memory_restart_s: seconds until work goes on from memory.
        save_s: seconds that a save to storage blocks beyond the one to memory.
        restart_s: seconds until work goes on from storage.
        hard_fraction: share of failures that take the memory with them.
    """

    memory_save_s: float
    memory_restart_s: float
    save_s: float
    restart_s: float
    hard_fraction: float

    def __post_init__(self) -> None:
        seconds = ("memory_save_s", "memory_restart_s", "save_s", "restart_s")
        rules = {
            name: (0 <= getattr(self, name) < math.inf, "finite seconds of 0 or more")
            for name in seconds
        }
        require(self, **rules, hard_fraction=(0 <= self.hard_fraction <= 1, "in [0, 1]"))


def two_level_goodput(
    mtbf_s: float, levels: MemoryAndStorage, *, interval_s: float, every: int
) -> float:
    """Return the long-run share of time that is kept work with two levels of checkpoints.

    Failures come at a constant rate; each is hard with `hard_fraction`, which costs all work since
    the last save to storage. The expected time between two saves to storage follows segment by
    segment: T_j = a_j + b_j T_0, as a hard failure goes back to the first.

    Args:
        mtbf_s: mean seconds between failures of both kinds.
        levels: what saves and restarts take.
        interval_s: work between saves to memory.
        every: saves to memory per save to storage, at least 1.

    Returns:
        A fraction, exact for exponential failures.
    """
    rate, hard = 1 / mtbf_s, levels.hard_fraction
    stays, lasts_s = _survives(rate, levels.restart_s)
    # From a hard failure: restarts until one is not hit, then the first segment.
    hard_s = lasts_s / stays
    stays, lasts_s = _survives(rate, levels.memory_restart_s)
    again = 1 - (1 - stays) * (1 - hard)
    # From a soft failure: the same with memory, unless a hard failure comes in between.
    soft_s = (lasts_s + (1 - stays) * hard * hard_s) / again
    soft_here, soft_first = stays / again, (1 - stays) * hard / again
    constant, slope = 0.0, 0.0
    for place in reversed(range(every)):
        extra_s = levels.save_s if place == every - 1 else 0.0
        stays, lasts_s = _survives(rate, interval_s + levels.memory_save_s + extra_s)
        fails = 1 - stays
        here = 1 - fails * (1 - hard) * soft_here
        constant = (
            lasts_s + stays * constant + fails * ((1 - hard) * soft_s + hard * hard_s)
        ) / here
        slope = (stays * slope + fails * ((1 - hard) * soft_first + hard)) / here
    return every * interval_s * (1 - slope) / constant


def _survives(rate: float, duration_s: float) -> tuple[float, float]:
    """Return the probability that a stretch sees no failure, and its mean time up to one."""
    fails = -math.expm1(-rate * duration_s)
    return 1 - fails, fails / rate


def best_two_levels(mtbf_s: float, levels: MemoryAndStorage) -> tuple[float, int, float]:
    """Return the work between saves to memory, how many go with one to storage, and the goodput.

    Args:
        mtbf_s: mean seconds between failures of both kinds.
        levels: what saves and restarts take; saves to memory take some time.

    Returns:
        Seconds, a count, and a fraction.
    """
    from scipy.optimize import minimize_scalar

    first = math.log(young_interval_s(mtbf_s, levels.memory_save_s))

    def best_for(every: int) -> tuple[float, float]:
        found: Any = minimize_scalar(
            lambda item: -two_level_goodput(mtbf_s, levels, interval_s=math.exp(item), every=every),
            bounds=(first - 4, first + 4),
            method="bounded",
        )
        return -float(found.fun), math.exp(float(found.x))

    # The goodput rises with the number up to its best and falls after.
    tried = {every: best_for(every) for every in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)}
    best = max(tried, key=lambda every: tried[every])
    for every in np.unique(np.linspace(max(best // 2, 1), 2 * best, 25).astype(int)):
        tried[int(every)] = best_for(int(every))
    best = max(tried, key=lambda every: tried[every])
    return tried[best][1], best, tried[best][0]

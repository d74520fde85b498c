"""The loop over passes of a pool whose utility halves, for all parameter sets and points."""

import math

import numpy as np
from numpy.typing import NDArray

from steelyard.jit import njit

__all__ = ["log_growth"]

_NOTHING = 1e-18


@njit(cache=True)
def log_growth(
    samples: NDArray[np.float64], pass_samples: NDArray[np.float64], rate: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sum exp(-rate k) ln(n_end / n_begin) over passes k.

    This is the integral of d ln n with a weight that falls from pass to pass. The first pass, k =
    0, begins at one sample. With rate 0 it is ln n.

    Args:
        samples: n, number of samples seen in all, [n].
        pass_samples: samples seen in all during which the pool is passed once, [n].
        rate: ln 2 / half-life in passes, 0 or more, [S, n].

    Returns:
        The weighted growth and its derivative by the log of the half-life, [S, n] each.
    """
    sets, count = rate.shape
    growth, slope = np.empty((sets, count)), np.zeros((sets, count))
    for point in range(count):
        passes = samples[point] / pass_samples[point]
        if passes <= 1.0:
            growth[:, point] = math.log(samples[point])
            continue
        for row in range(sets):
            fall = rate[row, point]
            keep = math.exp(-fall)
            total, moved, weight, done = math.log(pass_samples[point]), 0.0, keep, 1.0
            while done < passes and weight > _NOTHING:
                part = weight * math.log(min(done + 1.0, passes) / done)
                total += part
                moved += part * fall * done
                weight *= keep
                done += 1.0
            growth[row, point] = total
            slope[row, point] = moved
    return growth, slope

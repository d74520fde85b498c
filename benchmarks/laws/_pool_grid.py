"""The slow obvious way to a utility and a half-life: a grid over both, in Python loops."""

import math
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "FLOOR",
    "PASSES",
    "SIDE",
    "SIZE",
    "START",
    "error_bare",
    "error_by_arrays",
    "grid_search",
]

Array = NDArray[np.float64]

START = 1e5 / 0.025
FLOOR = 0.1
SIZE = 12.8e6
"""Samples at which every pool has an excess error of 1, irreducible error and samples per pool:
Goyal, Maini et al. 2024 (arXiv 2404.07177), as shipped with its programs for ImageNet error."""

PASSES = np.array([2.0, 4, 6, 8, 10])
SIDE = 316
"""Utilities and half-lives tried: 316 each, close to 1e5 pairs."""


def grid_search(
    curves: list[Array], error: Callable[[int, float, float], float], part: int
) -> tuple[float, float]:
    """Search a grid of b and tau for each pool.

    Args:
        curves: errors of each pool alone after `PASSES`, [5] each.
        error: error after so many passes, for a utility and a half-life.
        part: only every `part`-th b is tried, and the time scaled up.

    Returns:
        CPU seconds of the whole grid, and the sum of the pools' best objectives.
    """
    begin = time.process_time()
    total = 0.0
    for curve in curves:
        least = math.inf
        for i in range(0, SIDE, part):
            for j in range(SIDE):
                utility = -0.005 - 0.495 * i / (SIDE - 1)
                half_life = 1 + 9 * j / (SIDE - 1)
                objective = 0.0
                for passes, measured in zip(PASSES, curve, strict=True):
                    size = abs(math.log(error(int(passes), utility, half_life) / measured))
                    objective += 0.5 * size * size if size <= 1e-3 else 1e-3 * (size - 0.5e-3)
                least = min(least, objective)
        total += least
    return (time.process_time() - begin) * SIDE / len(range(0, SIDE, part)), float(total)


def error_by_arrays(passes: int, utility: float, half_life: float) -> float:
    """Return the error of one pool after whole passes with arrays over passes."""
    number = np.arange(passes)
    utilities = utility * 0.5 ** (number / half_life)
    ends, begins = SIZE * (number + 1) / START, SIZE * number / START
    return float(
        ends[0] ** utilities[0] * ((ends[1:] / begins[1:]) ** utilities[1:]).prod() + FLOOR
    )


def error_bare(passes: int, utility: float, half_life: float) -> float:
    """Return the error of one pool after whole passes in a loop."""
    error = (SIZE / START) ** utility
    for k in range(1, passes):
        error *= ((k + 1) / k) ** (utility * 0.5 ** (k / half_life))
    return error + FLOOR

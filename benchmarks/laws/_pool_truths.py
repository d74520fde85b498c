"""Curves of single pools with true errors of mixtures, by the law itself and by training runs."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.laws._pool_grid import FLOOR, PASSES, SIZE, START
from benchmarks.laws._pool_runs import Pool, draw_pools, train
from numpy.typing import NDArray

from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.pools.pool_utility import log_mixture_excess

__all__ = [
    "BUDGETS",
    "HALF_LIFE",
    "NAMES",
    "UTILITY",
    "Truth",
    "by_passes",
    "first_pools",
    "law_truths",
    "mixture_errors",
    "numbers",
    "points_of",
    "trained_truth",
]

# Goyal, Maini et al. 2024 (arXiv 2404.07177): constants shipped with its programs, ImageNet error,
# buckets by T-MARS score
NAMES = ("top 10", "10-20", "20-30", "30-40")
UTILITY = np.array([-0.16, -0.125, -0.1, -0.085])
HALF_LIFE = np.array([6.7272727, 8.5454545, 5.2727273, 2.2727273])
BUDGETS = SIZE * np.geomspace(1.5, 50, 15)


def numbers() -> dict[str, Array]:
    """Return the published constants as the law's functions take them."""
    shared_ones = {"a": np.ones(1), "n0": np.array([START]), "d": np.array([FLOOR])}
    return shared_ones | {"b": UTILITY[None], "tau": HALF_LIFE[None]}


def mixture_errors(shares: Array, samples: Array) -> Array:
    """Return the law's errors for one mixture at many budgets."""
    rows = np.tile(shares, (len(samples), 1))
    return FLOOR + np.exp(
        log_mixture_excess(numbers(), rows, np.full(rows.shape, SIZE), samples)[0]
    )


def first_pools(count: int) -> Array:
    """Return equal shares of the first pools, [4]."""
    return np.array([1 / count] * count + [0.0] * (4 - count))


def by_passes(count: int, samples: float, inside: bool = False) -> float:
    """Return the error of `count` equal pools, aggregated pass by pass.

    Args:
        count: number of pools.
        samples: samples seen.
        inside: whether the floor is added to the first pass, as the programs do, or at the end.

    Returns:
        The error.
    """
    union = SIZE * count
    error = 0.0
    for k in range(math.ceil(samples / union)):
        utility = (
            sum(UTILITY[i] * 0.5 ** (k / (HALF_LIFE[i] * count)) for i in range(count)) / count
        )
        end = min(samples, union * (k + 1))
        error = (
            (end / START) ** utility + FLOOR * inside
            if k == 0
            else error * (end / (union * k)) ** utility
        )
    return error + FLOOR * (not inside)


@dataclass(frozen=True)
class Truth:
    """Measured curves of single pools and true errors of the first 1 to 4 pools, [4, budgets]."""

    points: dict[str, NDArray[Any]]
    error: Array
    budgets: Array
    mixtures: Array


def law_truths(count: int) -> list[Truth]:
    """Generate by the law, the mean of 3 seeds with 0.3 % noise each on the curves."""
    alone = np.stack([mixture_errors(row, PASSES * SIZE) for row in np.eye(4)])
    mixed = np.stack([mixture_errors(first_pools(p), BUDGETS) for p in (1, 2, 3, 4)])
    generator = np.random.default_rng(0)
    noise = 0.003 / math.sqrt(3) * generator.standard_normal((count, *alone.shape))
    return [
        Truth(points_of(SIZE, 4), (alone * np.exp(own)).ravel(), BUDGETS, mixed) for own in noise
    ]


def trained_truth(seeds: int) -> Truth:
    """Train on pools that cover the test inputs ever more thinly and have ever noisier labels."""
    kinds = [Pool(1.1, 0.3), Pool(1.2, 0.35), Pool(1.3, 0.4), Pool(1.4, 0.45)]
    size = 1500
    budgets = np.rint(1500 * np.geomspace(1.5, 48, 11))
    alone = []
    mixed = []
    for seed in range(seeds):
        pools = draw_pools(kinds, size, 100 + seed)
        alone.append([train([pool], PASSES * size, seed) for pool in pools])
        mixed.append([train(pools[:p], budgets, seed) for p in (1, 2, 3, 4)])
    return Truth(
        points_of(size, 4), np.mean(alone, axis=0).ravel(), budgets, np.mean(mixed, axis=0)
    )


def points_of(size: float, pools: int) -> dict[str, NDArray[Any]]:
    """Return the inputs of curves of single pools, [pools passes] each."""
    labels = np.repeat(np.array(NAMES[:pools]), len(PASSES))
    return {
        "samples": np.tile(PASSES, pools) * size,
        "pool_size": np.full(len(labels), size),
        "pool": labels,
    }

"""The hierarchical flow beside a Gaussian head, and the cascade beside attention on one level.

All series are generated. Shapes and budgets were chosen on seeds 0 to 2; what is reported is of
seeds that nothing was chosen on.
"""

import time

import numpy as np
from benchmarks.common import Check

from steelyard.operate.forecast import evaluate
from steelyard.operate.forecast.levels import Levels
from steelyard.operate.forecast.networks.hierarchical import (
    HierarchicalFlowForecaster,
    cascade_config,
)
from steelyard.operate.series import SeriesSet

__all__ = ["chain_of_levels", "hierarchy_checks", "two_sites"]

_STEP_S = 600.0
_WINDOWS = 500
_CHAIN = Levels.of("load-a, load-b, load-c > cpu-a, cpu-b, cpu-c > latency-a, latency-b")


def two_sites(seed: int, steps: int) -> SeriesSet:
    """Generate a load that one of two sites serves, and which one nobody can foresee.

    Args:
        seed: seed of all draws.
        steps: steps of ten minutes.

    Returns:
        "all", and its parts "east" and "west".
    """
    rng = np.random.default_rng((seed, 1))
    day = 2 * np.pi * np.arange(steps) * _STEP_S / 86_400
    load = 100 * (1 + 0.3 * np.sin(day)) * rng.lognormal(0, 0.05, steps)
    share = np.where(rng.uniform(size=steps) < 0.5, 0.8, 0.2) + 0.03 * rng.normal(size=steps)
    east = load * share
    west = load * (1 - share)
    return SeriesSet.from_arrays(
        [east + west, east, west], step_s=_STEP_S, ids=["all", "east", "west"]
    )


def chain_of_levels(seed: int, steps: int) -> SeriesSet:
    """Generate three loads, the processors that serve them a step later, and latencies after that.

    Args:
        seed: seed of all draws.
        steps: steps of ten minutes.

    Returns:
        Eight series on three levels.
    """
    rng = np.random.default_rng((seed, 2))
    day = 2 * np.pi * np.arange(steps + 2) * _STEP_S / 86_400
    loads = np.empty((3, steps + 2))
    for row in range(3):
        walk = np.zeros(steps + 2)
        for step in range(1, steps + 2):
            walk[step] = 0.9 * walk[step - 1] + 0.2 * rng.normal()
        loads[row] = 1 + 0.3 * np.sin(day + rng.uniform(0, 6.3)) + 0.35 * walk
    loads = np.maximum(loads, 0.05)
    weights = rng.dirichlet(np.ones(3), 3)
    busy = np.clip(0.5 * weights @ loads + 0.01 * rng.normal(size=(3, steps + 2)), 0.02, 0.97)
    paths = rng.dirichlet(np.ones(3), 2)
    waits = paths @ (1 / (1 - busy)) * rng.lognormal(0, 0.02, (2, steps + 2))
    # A latency follows the processors a step before it, and those the loads a step before them.
    rows = [*loads[:, 2:], *busy[:, 1:-1], *waits[:, :-2]]
    return SeriesSet.from_arrays(rows, step_s=_STEP_S, ids=_CHAIN.names)


def hierarchy_checks(quick: bool) -> list[Check]:
    """Train and score on generated series."""
    return [*_flow_checks(quick)]

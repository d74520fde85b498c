"""A seasonal rise that moves cannot follow: with the forecast of it and without."""

import numpy as np

from steelyard.operate.shards.policy import Adaptive
from steelyard.operate.shards.simulate import LoadTrace, simulate

__all__ = ["over_capacity_s", "rising_load"]

_NODES, _GRAINS, _PERIOD_S, _WINDOWS = 16, 128, 200, 500
_RAMP_S, _PLATEAU_S, _GROUPS = 30, 10, 4
_AHEAD_S = 20.0
"""Two copies, one after the other."""
_SHARE, _HEIGHT = 0.03, 25.0
_CAPACITY = 1.5
"""What a node can answer, in mean loads of a node."""


def rising_load(seed: int) -> np.ndarray:
    """Draw a load of which a few grains are asked 26 times as much at the same time of each period.

    Args:
        seed: seed of the draws.

    Returns:
        Accesses per second by window and grain, [500, 128], 1000 a node in the mean.
    """
    random = np.random.default_rng(seed)
    rates = np.repeat(random.lognormal(0, 0.5, _GRAINS)[None], _WINDOWS, 0)
    order, count = random.permutation(_GRAINS), int(_SHARE * _GRAINS)
    for group in range(_GROUPS):
        middle_s = (group + 0.5) * _PERIOD_S / _GROUPS
        away_s = np.abs((np.arange(_WINDOWS) - middle_s + _PERIOD_S / 2) % _PERIOD_S)
        away_s = np.abs(away_s - _PERIOD_S / 2)
        rise = np.clip((_PLATEAU_S / 2 + _RAMP_S - away_s) / _RAMP_S, 0, 1)
        rates[:, order[group * count : (group + 1) * count]] *= (1 + _HEIGHT * rise)[:, None]
    rates *= np.exp(0.05 * random.standard_normal(rates.shape))
    return rates * (1e3 * _NODES / rates.sum(1).mean())


def over_capacity_s(seed: int, *, predict: bool) -> tuple[float, float]:
    """Simulate the store under such a load.

    Shards of 100 MB take ten seconds to copy, a third of a ramp. Height, shares and horizon, and
    the number of phases that profiles are grouped by, were chosen on seeds 0 to 2.

    Args:
        seed: seed of the load.
        predict: whether the planner looks ahead.

    Returns:
        Seconds that nodes carried more than 1.5 mean loads, summed over nodes, after the first
        period, which the forecast learns from; and the bytes that were copied.
    """
    rates = rising_load(seed)
    policy = Adaptive(
        ping_s=1.0,
        lease_s=4.0,
        temporal=False,
        cold_after_s=1e9,
        predict=predict,
        period_s=_PERIOD_S,
        num_bins=100,
        horizon_s=_AHEAD_S,
    )
    trace = LoadTrace(rates=rates, grain_bytes=1e8)
    run = simulate(trace, nodes=_NODES, policy=policy, shards=_GRAINS)
    loads = run.loads[_PERIOD_S:]
    return float((loads > _CAPACITY * 1e3).sum()), run.moved_bytes

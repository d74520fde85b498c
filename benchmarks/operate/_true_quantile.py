"""A demand whose next quantile is known to the one who drew it."""

import numpy as np
from scipy.special import ndtri

from steelyard.operate.autoscale import (
    BayesianScaler,
    DemandForecaster,
    OracleQuantile,
    replay,
)
from steelyard.operate.forecast.recent_errors import RecentErrors
from steelyard.sim.autoscale import Service

__all__ = ["hours_over_truth"]

_STEP_S = 300.0
_MEMORY = 0.9


def hours_over_truth(seed: int, *, steps: int) -> float:
    """Return instance-hours of the Bayesian scaler over those of the true quantile.

    The logarithm of the demand is a day's wave and noise with memory .9, so that the next step's
    quantile, given the last step, is known.

    Args:
        seed: seed of the demand.
        steps: steps that are replayed, after as many of history.

    Returns:
        A ratio.
    """
    rng = np.random.default_rng(seed)
    wave = 0.4 * np.sin(np.arange(2 * steps) * 2 * np.pi / 288 + rng.uniform(0, 6))
    size = rng.uniform(0.05, 0.2)
    noise = np.zeros(2 * steps)
    for step in range(1, 2 * steps):
        noise[step] = _MEMORY * noise[step - 1] + size * rng.standard_normal()
    demand = 1000 * np.exp(wave + noise)
    service = Service(capacity=40.0, target_utilization=0.8, allowed=0.05, max_replicas=10_000)
    next_mean = wave[1:] + _MEMORY * noise[:-1]
    truth = 1000 * np.exp(next_mean + size * ndtri(1 - service.allowed))
    week, past = demand[steps:], demand[:steps]
    oracle = OracleQuantile(service, truth[steps - 1 :], step_s=_STEP_S)
    ours = BayesianScaler(service, step_s=_STEP_S)
    forecast = DemandForecaster(RecentErrors(), step_s=_STEP_S, horizon=1)
    runs = [
        replay(service, week, oracle, step_s=_STEP_S),
        replay(service, week, ours, step_s=_STEP_S, forecaster=forecast, history=past),
    ]
    known, found = (item.report.outcome.details["instance_hours"] for item in runs)
    return found / known

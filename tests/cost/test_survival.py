"""Survival of stored data against simulation and known closed forms."""

import math

import numpy as np
import pytest

from steelyard.cost.survival import Coded, Copies, sample_survival, survival
from steelyard.errors import ConfigError


@pytest.mark.parametrize(
    "scheme",
    [Copies(replicas=1), Copies(replicas=2, groups=5), Copies(replicas=3), Coded(data=4, parity=2)],
    ids=str,
)
def test_formula_agrees_with_simulation(scheme):
    rate, repair, horizon = 0.02, 4.0, 60.0
    said = survival(scheme, rate, repair, horizon_s=horizon).probability
    trials = 4000
    seen = sample_survival(
        scheme, rate, repair, horizon_s=horizon, trials=trials, generator=np.random.default_rng(1)
    )
    assert abs(said - seen) < 4 * math.sqrt(said * (1 - said) / trials) + 1e-9


def test_known_closed_forms():
    assert survival(Copies(replicas=1), 1e-3, 5.0, horizon_s=100).probability == pytest.approx(
        math.exp(-0.1), rel=1e-9
    )
    # Mean time to data loss of two copies: (3 lambda + mu) / (2 lambda^2).
    found = survival(Copies(replicas=2), 1e-6, 100.0)
    assert found.mean_time_s == pytest.approx((3e-6 + 0.01) / (2 * 1e-12), rel=1e-12)


def test_small_losses_keep_their_precision():
    short = survival(Copies(replicas=3), 1e-8, 60.0, horizon_s=3600)
    year = survival(Copies(replicas=3), 1e-8, 60.0)
    assert 0 < short.loss < year.loss < 1e-10


def test_order_of_schemes():
    rate, repair = 1e-6, 600.0

    def loss(scheme):
        return survival(scheme, rate, repair).loss

    assert loss(Copies(replicas=3)) < loss(Copies(replicas=2)) < loss(Copies(replicas=1))
    # One code of the same tolerance has more ways to lose three members; one more parity pays.
    assert loss(Coded(data=6, parity=3)) < loss(Copies(replicas=3)) < loss(Coded(data=4, parity=2))
    assert loss(Copies(replicas=3, groups=10)) == pytest.approx(
        10 * loss(Copies(replicas=3)), rel=1e-3
    )


def test_edges():
    assert survival(Copies(replicas=2), 0.0, 1.0).probability == 1
    assert survival(Coded(data=4, parity=0), 1.0, 1.0, horizon_s=1e3).probability < 1e-12
    with pytest.raises(ConfigError, match="repair"):
        survival(Copies(replicas=2), 1e-6, 0.0)
    with pytest.raises(ConfigError, match="replicas"):
        Copies(replicas=0)

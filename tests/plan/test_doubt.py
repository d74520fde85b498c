"""Doubt about layouts: against draws, closed forms, and planted spreads."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import ConfigError, FitError
from steelyard.plan.beliefs import PARTS, Beliefs, fit_beliefs
from steelyard.plan.probes import PartProbe, probes_of, with_answer
from steelyard.plan.regret import regret_of

_SPREADS = (0.1, 0.3, 0.1, 0.1, 0.2, 0.3, 0.1, 0.05)


def _shares(rng, count):
    """Draw shares of parts of which some are missing."""
    rows = rng.dirichlet(np.full(len(PARTS), 0.5), count)
    rows[:, 2] = 0.0
    return rows / rows.sum(axis=1, keepdims=True)


@given(st.integers(0, 2**31), st.integers(2, 6))
def test_an_answer_is_conditioning_on_all_times(seed, count):
    """Measuring a step is the textbook conditioning of the joint normal of all errors."""
    rng = np.random.default_rng(seed)
    doubt = Beliefs(parts=_SPREADS, own=0.05).doubt(_shares(rng, count))
    full = doubt.times_covariance
    full[0, 0] += 0.02**2
    error = float(rng.normal(0, 0.2))
    probe = next(item for item in probes_of(doubt, 1, np.ones(count)) if item.layout == 0)
    after = with_answer(doubt, probe, np.exp(error))
    gain = full[1:, 0] / full[0, 0]
    assert after.shift[1:] == pytest.approx(gain * error)
    expected = full[1:, 1:] - np.outer(gain, full[0, 1:])
    assert after.times_covariance[1:, 1:] == pytest.approx(expected)
    assert probe.spread == pytest.approx(np.sqrt(expected[0, 0]))
    assert (after.spread <= doubt.spread + 1e-12).all()


def test_the_best_probe_shows_what_the_target_waits_for():
    """A layout that waits for links wants an all-reduce, one that computes a product."""
    shares = np.zeros((3, len(PARTS)))
    shares[0, [0, 1]] = 0.1, 0.9
    shares[1, [0, 5]] = 0.9, 0.1
    shares[2, 0] = 1.0
    alone = [
        PartProbe(name="product", part="compute_s", forecast_s=0.1),
        PartProbe(name="all-reduce", part="tensor_s", forecast_s=0.1),
    ]
    doubt = Beliefs(parts=_SPREADS, own=0.2).doubt(shares)
    seconds = [1.0, 2.0, 3.0]
    assert probes_of(doubt, 0, seconds, parts=alone)[0].name == "all-reduce"
    assert probes_of(doubt, 1, seconds, parts=alone)[0].name == "product"
    best = probes_of(doubt, 2, seconds, names=["a", "b", "c"])[0]
    assert (best.name, best.forecast_s) == ("a step of b", 2.0)
    with pytest.raises(ConfigError, match="layout 3"):
        probes_of(doubt, 3, seconds)
    with pytest.raises(ConfigError, match="more than 0"):
        with_answer(doubt, best, 0.0)


def test_regret_of_two_is_the_closed_form():
    """Two layouts with independent errors: the slower one wins with a normal's probability."""
    from scipy.stats import norm

    shares = np.zeros((2, len(PARTS)))
    shares[0, 0] = shares[1, 1] = 1.0
    doubt = Beliefs(parts=(0.1, 0.1, *[0.1] * 6), own=0.05).doubt(shares)
    found = regret_of([1.0, 1.1], doubt, run_usd=1000.0)
    spread = np.sqrt(2 * (0.1**2 + 0.05**2))
    assert found.chosen == 0
    assert found.runner_up == 1
    assert found.runner_up_wins == pytest.approx(norm.cdf(-np.log(1.1) / spread), abs=0.02)
    assert found.wins.sum() == pytest.approx(1.0)
    assert found.lost_usd == pytest.approx(1000 * found.lost_s)
    assert 0 < found.lost_s < 0.05
    # Errors that both share do not change which is faster.
    same = np.zeros((2, len(PARTS)))
    same[:, 0] = 1.0
    alike = Beliefs(parts=(0.5, *[0.1] * 7), own=0.01).doubt(same)
    assert regret_of([1.0, 1.1], alike).runner_up_wins < 0.01
    assert regret_of([1.0], Beliefs(parts=_SPREADS, own=0.1).doubt(same[:1])).runner_up == -1
    with pytest.raises(ConfigError, match="3 forecast times"):
        regret_of([1.0, 2.0, 3.0], alike)


def test_spreads_are_found_again():
    """From groups drawn with known spreads, the fit finds those that matter."""
    rng = np.random.default_rng(11)
    groups = []
    for _ in range(60):
        shares = _shares(rng, 12)
        factors = rng.normal(0, _SPREADS)
        groups.append((shares, shares @ factors + rng.normal(0, 0.04, 12)))
    found = fit_beliefs(groups)
    for place in (1, 4, 5):
        assert found.parts[place] == pytest.approx(_SPREADS[place], rel=0.3)
    assert found.own == pytest.approx(0.04, rel=0.2)
    inside = []
    for _ in range(300):
        shares = _shares(rng, 1)
        error = shares @ rng.normal(0, _SPREADS) + rng.normal(0, 0.04)
        _, low, high = found.doubt(shares).interval([1.0])
        inside.append(low[0] <= np.exp(error[0]) <= high[0])
    assert 0.7 < np.mean(inside) < 0.9
    with pytest.raises(FitError, match="1 groups"):
        fit_beliefs(groups[:1])
    with pytest.raises(ConfigError, match="own"):
        Beliefs(parts=_SPREADS, own=0.0)

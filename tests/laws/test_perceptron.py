"""The perceptron of pruned data against published theory, simulations, and its own limits."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import ConfigError
from steelyard.laws.theory import best_share, crossover, pruned_error

# Simulated max-margin students in 200 dimensions: (alpha_total, keep, side, error, standard error).
SIMULATED = [
    (6, 0.5, "hard", 0.0826, 0.0015),
    (6, 0.3, "hard", 0.160, 0.0011),
    (6, 0.5, "easy", 0.0879, 0.0009),
    (1.5, 0.6, "hard", 0.322, 0.004),
    (1.5, 0.6, "easy", 0.205, 0.003),
    (10, 0.4, "hard", 0.0481, 0.0020),
]


@pytest.mark.parametrize(("alpha", "keep", "side", "error", "deviation"), SIMULATED)
def test_errors_are_those_of_simulated_students(alpha, keep, side, error, deviation):
    assert pruned_error(alpha, keep, side) == pytest.approx(error, abs=3 * deviation)


def test_all_examples_have_the_known_power():
    assert 32 * pruned_error(32) == pytest.approx(0.5, abs=0.01)
    assert pruned_error(16, 0.2) == pytest.approx(0.032, abs=1e-3)


@settings(max_examples=20, deadline=None)
@given(alpha=st.floats(0.05, 40), keep=st.floats(0.1, 1.0))
def test_errors_are_shares_and_fall_with_data(alpha, keep):
    for side in ("hard", "easy"):
        error = pruned_error(alpha, keep, side)
        assert 0 < error < 0.5
        assert pruned_error(1.5 * alpha, keep, side) < error


def test_hard_ones_pay_beyond_the_crossover_only():
    place = crossover(0.5)
    assert pruned_error(0.8 * place, 0.5, "easy") < pruned_error(0.8 * place, 0.5, "hard")
    assert pruned_error(1.2 * place, 0.5, "easy") > pruned_error(1.2 * place, 0.5, "hard")
    found = best_share(4.0, 32.0)
    assert found.side == "hard" and found.error < pruned_error(4.0) / 5


def test_arguments_out_of_range_are_refused():
    with pytest.raises(ConfigError, match="keep = 0"):
        pruned_error(1.0, 0.0)
    with pytest.raises(ConfigError, match="cannot be kept"):
        best_share(4.0, 2.0)
    with pytest.raises(ConfigError, match="do not change places"):
        crossover(0.5, low=8.0)

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from steelyard.data.index import Permutation, derive_seed, epoch_and_place
from steelyard.errors import ConfigError


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**70), st.integers(0, 2**40))
def test_every_example_stands_at_one_position_and_the_inverse_finds_it(size, seed, epoch):
    order = Permutation(size, seed, epoch)
    examples = order(np.arange(size))
    assert sorted(examples.tolist()) == list(range(size))
    assert np.array_equal(order.inverse(examples), np.arange(size))
    assert int(order(size - 1)) == examples[-1]


@pytest.mark.parametrize("size", [10**6, 999_983, 2**40, 2**62])
def test_large_sizes_invert_and_follow_the_source_order_in_nothing(size):
    order = Permutation(size, 1)
    positions = np.arange(20_000) * (size // 20_000)
    examples = order(positions)
    assert np.array_equal(order.inverse(examples), positions)
    assert abs(np.corrcoef(positions.astype(float), examples.astype(float))[0, 1]) < 0.03


@pytest.mark.parametrize("size", [4, 6, 20, 1500])
def test_orders_are_equally_likely(size):
    """Pairs of the first two examples over many seeds, against the uniform law."""
    # Ten of each of 380 pairs, and as many of fewer.
    seeds = 4000 if size == 20 else 1200
    seen = [Permutation(size, seed)(np.arange(2)) for seed in range(seeds)]
    if size > 50:
        counts = np.bincount(np.array(seen)[:, 0] * 50 // size, minlength=50)
    else:
        first, second = np.array(seen).T
        pairs = np.bincount(first * size + second, minlength=size**2).reshape(size, size)
        assert np.trace(pairs) == 0
        counts = pairs[~np.eye(size, dtype=bool)]
    assert chisquare(counts).pvalue > 1e-3


def test_epochs_seeds_and_names_give_other_orders():
    base = Permutation(1000, 0)(np.arange(1000))
    others = [Permutation(1000, 1), Permutation(1000, 0, 1), Permutation(1000, derive_seed(0, "a"))]
    for other in others:
        assert (other(np.arange(1000)) == base).mean() < 0.02
    assert derive_seed(0, "a") != derive_seed(0, "b") != derive_seed(1, "b")


def test_endless_positions_pass_through_every_epoch():
    epochs, examples = epoch_and_place(np.arange(35), 10, seed=3)
    assert epochs.tolist() == [number // 10 for number in range(35)]
    for epoch in range(3):
        assert sorted(examples[epochs == epoch].tolist()) == list(range(10))
        assert np.array_equal(examples[epochs == epoch], Permutation(10, 3, epoch)(np.arange(10)))


def test_wrong_arguments_are_refused():
    for size, seed, epoch in ((0, 0, 0), (2**62 + 1, 0, 0), (5, -1, 0), (5, 0, -1)):
        with pytest.raises(ConfigError, match="no order of"):
            Permutation(size, seed, epoch)
    for position in (-1, 5):
        with pytest.raises(ConfigError, match="of 5 was asked"):
            Permutation(5, 0)(position)

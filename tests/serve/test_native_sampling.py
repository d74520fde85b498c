import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.serve.running.native.draws import NativeSampling
from steelyard.serve.running.sampling.kernels import numba_kernels

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


@pytest.fixture(scope="module")
def rivals():
    return NativeSampling(), numba_kernels()


def random_logits(rng, rows, size, spread, levels):
    if levels:  # ties everywhere
        return (rng.integers(0, levels, (rows, size)) * spread).astype(np.float32)
    return rng.normal(0, spread, (rows, size)).astype(np.float32)


def columns(rng, rows, size):
    """Rows to draw from, in any order, with parameters of every kind."""
    return (
        rng.permutation(rows),
        rng.choice([0.3, 1.0, 1.7], rows),
        rng.choice([0.0, 0.02, 1.0], rows),
        rng.choice([1, 5, 40, size, size + 7], rows),
        rng.choice([1.0, 0.9, 0.2, 1e-9], rows),
        rng.integers(0, 2**63, rows).astype(np.uint64),
        rng.integers(0, 10**6, rows).astype(np.uint64),
    )


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 9),
    size=st.sampled_from([1, 2, 15, 16, 17, 97, 1023, 1024, 1025, 3000]),
    spread=st.sampled_from([0.0, 0.1, 2.0, 30.0]),
    levels=st.sampled_from([0, 1, 4]),
    seed=st.integers(0, 2**32),
)
def test_native_functions_equal_those_of_numba(rivals, rows, size, spread, levels, seed):
    rng = np.random.default_rng(seed)
    logits = random_logits(rng, rows, size, spread, levels)
    given = columns(rng, rows, size)
    found = []
    for kernels in rivals:
        peaks, totals = np.empty(rows, np.float32), np.empty(rows)
        tokens, best = np.empty(rows, np.int64), np.empty(rows, np.int64)
        ids, values = np.empty((rows, 4), np.int64), np.empty((rows, 4), np.float32)
        kernels.find_peaks(logits, peaks)
        kernels.likeliest(logits, peaks, given[0], best)
        kernels.draw_tokens(logits, peaks, *given, tokens)
        kernels.log_totals(logits, peaks, given[0], totals)
        kernels.top_logits(logits, given[0], ids, values)
        found.append((peaks, best, ids, values, tokens, totals))
    ours, theirs = found
    for mine, other in zip(ours[:4], theirs[:4], strict=True):
        np.testing.assert_array_equal(mine, other)
    np.testing.assert_allclose(ours[5], theirs[5], rtol=1e-6, atol=1e-6)
    for at in np.flatnonzero(ours[4] != theirs[4]):
        assert_on_an_edge(
            logits[given[0][at]], [item[at] for item in given], ours[4][at], theirs[4][at]
        )


def assert_on_an_edge(logits, given, mine, other):
    """Sums in another order may move the edge between two neighbours, and the draw lies on it."""
    _, temperature, min_p, top_k, top_p, *_ = given
    weights = np.exp((np.float64(logits) - logits.max()) / temperature)
    weights[weights < min_p] = 0
    total = weights.sum()
    low, high = sorted((int(mine), int(other)))
    between = weights[low : high + 1] / total
    # Nothing of weight may lie between the two, unless what is kept was cut there.
    assert between[1:-1].sum() < 1e-5 or top_k < len(logits) or top_p < 1


def test_broken_rows_and_masks(rivals):
    logits = np.zeros((3, 70), dtype=np.float32)
    logits[1, 5], logits[2, 69] = np.nan, np.inf
    masks = np.array([[1, 0, 1 << 5], [-1, -1, -1]], dtype=np.int32)
    for kernels in rivals:
        peaks = np.empty(3, dtype=np.float32)
        kernels.find_peaks(logits, peaks)
        np.testing.assert_array_equal(peaks, np.float32([0, np.nan, np.inf]))
        held = logits.copy()
        kernels.forbid(held, np.array([0, 2]), masks)
        assert np.flatnonzero(held[0] == 0).tolist() == [0, 69]
        np.testing.assert_array_equal(held[1:], logits[1:])


def test_arrays_of_another_type_are_not_misread(rivals):
    native, _ = rivals
    with pytest.raises(AssertionError):
        native.find_peaks(np.zeros((1, 3)), np.zeros(1, dtype=np.float32))
    with pytest.raises(AssertionError):
        native.find_peaks(np.zeros((3, 3), dtype=np.float32).T, np.zeros(3, dtype=np.float32))

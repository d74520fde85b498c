"""Sketches against plain answers: errors within their bounds, parts equal to the whole."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.data.sketch import (
    CountMin,
    Covariance,
    FrequentHashes,
    HyperLogLog,
    KllQuantiles,
    Moments,
)
from steelyard.errors import ConfigError

pa = pytest.importorskip("pyarrow")
SEEDS = st.integers(0, 2**32 - 1)
MAKERS = {
    "hll": (lambda: HyperLogLog(10), "hashes"),
    "kll": (lambda: KllQuantiles(64), "numbers"),
    "sampled kll": (lambda: KllQuantiles(64, whole=1024), "numbers"),
    "count-min": (lambda: CountMin(64, 3), "hashes"),
    "frequent": (lambda: FrequentHashes(16), "hashes"),
    "moments": (Moments, "numbers"),
}


def values_of(kind, rng, count):
    if kind == "hashes":
        return rng.zipf(1.5, count).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return rng.standard_normal(count) * 3 + 1e3


def fed(make, values, cuts):
    made = make()
    for part in np.split(values, sorted(cuts)):
        made.update(part)
    return made


def same(one, other):
    mine, theirs = one.sections(), other.sections()
    return mine.keys() == theirs.keys() and all(
        np.array_equal(mine[name], theirs[name], equal_nan=True) for name in mine
    )


@pytest.mark.parametrize("name", ["hll", "kll", "sampled kll", "count-min", "frequent"])
@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, cuts=st.lists(st.integers(0, 5000), max_size=6))
def test_batches_change_no_bit(name, seed, cuts):
    make, kind = MAKERS[name]
    values = values_of(kind, np.random.default_rng(seed), 5000)
    assert same(fed(make, values, cuts), fed(make, values, []))


@pytest.mark.parametrize("name", list(MAKERS))
@settings(max_examples=10, deadline=None)
@given(seed=SEEDS, count=st.integers(0, 6000))
def test_a_state_comes_back_from_its_arrays_and_goes_on_alike(name, seed, count):
    make, kind = MAKERS[name]
    rng = np.random.default_rng(seed)
    first, later = values_of(kind, rng, count), values_of(kind, rng, 3000)
    kept = fed(make, first, [])
    again = type(kept).of(kept.sections())
    assert same(kept, again)
    kept.update(later)
    again.update(later)
    assert same(kept, again)


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, cut=st.integers(0, 4000))
def test_registers_of_parts_are_those_of_the_whole(seed, cut):
    values = values_of("hashes", np.random.default_rng(seed), 4000)
    left, right = fed(HyperLogLog, values[:cut], []), fed(HyperLogLog, values[cut:], [])
    left.merge(right)
    assert same(left, fed(HyperLogLog, values, []))


@pytest.mark.parametrize("count", [0, 1, 7, 100, 5000, 200_000])
def test_distinct_values_are_counted_within_three_standard_errors(count):
    column = pa.array(np.arange(count) * 17)
    from steelyard.data.sketch import hash_column

    made = HyperLogLog(12)
    made.update(hash_column(column))
    made.update(hash_column(column))
    assert made.estimate() == pytest.approx(count, rel=3 * made.standard_error, abs=0.01)


@pytest.mark.parametrize("parts", [1, 7])
@pytest.mark.parametrize("order", ["shuffled", "rising", "falling"])
def test_ranks_of_quantiles_are_within_the_bound(parts, order):
    count, levels = 60_000, np.arange(1, 100) / 100
    worst = []
    for seed in range(12):
        values = np.random.default_rng(seed).permutation(count).astype(float)
        if order != "shuffled":
            values = np.sort(values) if order == "rising" else -np.sort(-values)
        sketches = [fed(KllQuantiles, part, []) for part in np.array_split(values, parts)]
        for other in sketches[1:]:
            sketches[0].merge(other)
        found = sketches[0].quantile(levels)
        worst.append(np.abs((found + 1) / count - levels).max())
    assert np.max(worst) <= 0.0165
    assert sketches[0].quantile([0, 1]).tolist() == [0, count - 1]
    assert sketches[0].rank([count / 4]) == pytest.approx(0.25, abs=0.0165)


@pytest.mark.parametrize("parts", [1, 3])
def test_ranks_of_a_sampled_stream_are_within_the_bound(parts):
    count, levels, worst = 250_000, np.arange(1, 100) / 100, []
    for seed in range(8):
        values = np.random.default_rng(seed).permutation(count).astype(float)
        given = np.array_split(values, parts)
        sketches = [fed(lambda: KllQuantiles(whole=16_384), part, [70_001]) for part in given]
        for other in sketches[1:]:
            sketches[0].merge(other)
        assert sketches[0].count == count
        worst.append(np.abs((sketches[0].quantile(levels) + 1) / count - levels).max())
    assert np.max(worst) <= 0.0165


def test_few_values_have_exact_quantiles():
    made = KllQuantiles()
    made.update([3.0, np.nan, 1.0, 2.0])
    assert made.count == 3
    assert made.quantile([0.0, 0.34, 1.0]).tolist() == [1.0, 2.0, 3.0]
    assert np.isnan(KllQuantiles().quantile(0.5))


def test_a_sketch_of_many_values_stays_small():
    made = KllQuantiles()
    made.update(np.random.default_rng(0).random(1_000_000))
    assert len(made.sections()["items"]) < 2500


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, parts=st.integers(1, 5))
def test_frequent_values_are_kept_and_their_counts_bounded(seed, parts):
    rng = np.random.default_rng(seed)
    values = values_of("hashes", rng, 5000)
    sketches = [fed(lambda: FrequentHashes(32), part, []) for part in np.array_split(values, parts)]
    for other in sketches[1:]:
        sketches[0].merge(other)
    made = sketches[0]
    true = dict(zip(*np.unique(values, return_counts=True), strict=True))
    found = dict(zip(*made.counters(), strict=True))
    assert made.count == 5000
    assert made.error <= 2 * 5000 / 32
    for key, count in true.items():
        assert count - made.error <= found.get(key, 0) <= count


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, cut=st.integers(0, 2000), shift=st.sampled_from([0.0, 1e6, -1e9]))
def test_moments_of_parts_are_those_of_the_whole(seed, cut, shift):
    from scipy import stats

    values = np.random.default_rng(seed).gamma(2.0, size=2000) + shift
    left, right = fed(Moments, values[:cut], []), fed(Moments, values[cut:], [])
    left.merge(right)
    exact = values - shift
    # Numbers of 1e9 are rounded to 1e-7 each time one is added.
    rounding = 1e-14 * abs(shift)
    assert left.mean - shift == pytest.approx(exact.mean(), rel=1e-6, abs=rounding)
    assert left.variance == pytest.approx(exact.var(ddof=1), rel=1e-6)
    if shift < 1e7 and shift > -1e7:
        assert left.skewness == pytest.approx(stats.skew(exact), rel=1e-6)
        assert left.kurtosis == pytest.approx(stats.kurtosis(exact), rel=1e-5)


def test_moments_leave_out_what_is_not_finite():
    made = Moments()
    made.update([1.0, np.nan, np.inf, 3.0])
    assert (made.count, made.mean, made.variance) == (2, 2.0, 2.0)
    assert np.isnan(Moments().mean)


def test_covariances_of_parts_are_those_of_the_whole():
    rows = np.random.default_rng(0).standard_normal((300, 4)) @ np.diag([1, 5, 1e3, 1e-3]) + 1e5
    left, right = Covariance(4), Covariance(4)
    left.update(rows[:100])
    right.update(np.vstack([rows[100:], [[np.nan, 0, 0, 0]]]))
    left.merge(Covariance.of(right.sections()))
    np.testing.assert_allclose(left.matrix, np.cov(rows.T), rtol=1e-6, atol=1e-9)
    assert left.count == 300


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: HyperLogLog(3), "precision of 3"),
        (lambda: KllQuantiles(10), "capacity of 10"),
        (lambda: FrequentHashes(100), "100 counters"),
        (lambda: Covariance(0), "0 columns"),
        (lambda: HyperLogLog(8).merge(HyperLogLog(9)), "precision 8 and 9"),
        (lambda: KllQuantiles(64).merge(KllQuantiles(65)), "k = 64 and 65"),
        (lambda: FrequentHashes(16).merge(FrequentHashes(32)), "16 and 32"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_counts_of_count_min_are_never_too_low_and_seldom_too_high():
    values = values_of("hashes", np.random.default_rng(4), 20_000)
    made = CountMin(512, 4)
    made.update(values)
    keys, counts = np.unique(values, return_counts=True)
    found = made.counts(keys)
    assert made.count == 20_000
    assert (found >= counts).all()
    assert (found - counts > made.error).mean() <= np.exp(-4)

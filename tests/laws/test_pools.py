import math

import numpy as np
import pytest
from benchmarks.laws._floor_inside import error_with_floor_inside
from scipy.integrate import solve_ivp

from steelyard import laws
from steelyard.errors import FitError, SteelyardWarning
from steelyard.laws.decisions.curate import best_weights, curate, pool_frontier
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.forms.pools.pool_fit import PoolFit, fit_pools
from steelyard.laws.forms.pools.pool_utility import (
    binomial_weights,
    effective_pool,
    log_mixture_excess,
    pool_utility,
)

# Goyal, Maini et al. 2024 (arXiv 2404.07177), the constants shipped with its programs for ImageNet
# error, buckets by T-MARS score
POOLS = ("top 10", "10-20", "20-30", "30-40")
UTILITY = np.array([-0.16, -0.125, -0.1, -0.085])
HALF_LIFE = np.array([6.7272727, 8.5454545, 5.2727272, 2.2727272])
A_INSIDE, FLOOR, SIZE = 0.025, 0.1, 12.8e6
PASSES = np.array([2.0, 4, 6, 8, 10])


def numbers(utility=UTILITY, half_life=HALF_LIFE, a=1.0, n0=1e5 / A_INSIDE, d=FLOOR):
    columns = {"a": np.array([a]), "n0": np.array([n0]), "d": np.array([d])}
    return columns | {
        "b": np.array([utility], dtype=float),
        "tau": np.array([half_life], dtype=float),
    }


def mixture(shares, samples, sizes=None, **changes):
    shares = np.array([shares], dtype=float)
    sizes = np.full(shares.shape, SIZE) if sizes is None else np.array([sizes], dtype=float)
    return float(
        np.exp(log_mixture_excess(numbers(**changes), shares, sizes, np.array([samples])))[0, 0]
    )


def by_hand(count, samples, inside=False):
    """Write the law of the first `count` equal pools pass by pass.

    The utility is the mean of the halved ones, whose half-lives are stretched by the count.
    """
    union, error = SIZE * count, 0.0
    for k in range(math.ceil(samples / union)):
        utility = (
            sum(UTILITY[i] * 0.5 ** (k / (HALF_LIFE[i] * count)) for i in range(count)) / count
        )
        end, begin = min(samples, union * (k + 1)), union * k
        if k == 0:
            error = (A_INSIDE * end / 1e5) ** utility + (FLOOR if inside else 0.0)
        else:
            error *= (end / begin) ** utility
    return error if inside else error + FLOOR


def curves(noise=0.0, seed=0, pools=POOLS):
    """Generate what training on each pool alone would measure."""
    generator = np.random.default_rng(seed)
    columns = {
        "samples": np.tile(PASSES, len(pools)) * SIZE,
        "pool_size": np.full(5 * len(pools), SIZE),
    }
    columns["pool"] = np.repeat(pools, 5)
    alone = [
        mixture(np.eye(4)[row], samples) + FLOOR
        for row in range(len(pools))
        for samples in PASSES * SIZE
    ]
    columns["error"] = np.array(alone) * np.exp(noise * generator.standard_normal(len(alone)))
    return columns


@pytest.fixture(scope="module")
def exact():
    return fit_pools(curves(), bootstrap=Bootstrap(count=0))


@pytest.fixture(scope="module")
def noisy():
    return fit_pools(curves(0.002), bootstrap=Bootstrap(count=60))


def test_without_halving_it_is_the_power_law():
    endless = [math.inf] * 4
    for samples in (1e6, 3.3e7, 7e8):
        said = mixture(
            [0.4, 0.1, 0.3, 0.2], samples, utility=[-0.2] * 4, half_life=endless, a=3.0, n0=1.0
        )
        assert said == pytest.approx(3.0 * samples**-0.2, rel=1e-12)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("samples", [1e7, 3.2e7, 1.28e8, 6.4e8])
def test_equal_pools_are_the_published_aggregate(count, samples):
    shares = [1 / count] * count + [0.0] * (4 - count)
    assert mixture(shares, samples) + FLOOR == pytest.approx(by_hand(count, samples), rel=1e-12)
    inside = error_with_floor_inside(
        numbers(), np.array([shares]), np.full((1, 4), SIZE), np.array([samples])
    )
    assert inside[0, 0] == pytest.approx(by_hand(count, samples, inside=True), rel=1e-12)


def steps(shares, sizes, half_lives, samples):
    """Step through the union of all pass boundaries with the state of every pool."""
    ends = {samples} | {
        k * m / r
        for m, r in zip(sizes, shares, strict=True)
        for k in range(1, math.floor(samples * r / m) + 1)
    }
    log_excess, begin = 0.0, 1.0
    for end in sorted(ends):
        middle = 0.5 * (begin + end)
        passed = [math.floor(middle * r / m) for m, r in zip(sizes, shares, strict=True)]
        utility = sum(
            r * b * 0.5 ** (k * r / tau)
            for r, b, k, tau in zip(shares, UTILITY, passed, half_lives, strict=False)
        )
        log_excess += utility * math.log(end / begin)
        begin = end
    return math.exp(log_excess)


def test_unequal_pools_are_the_stepper_over_pass_boundaries():
    shares, sizes = [0.5, 0.3, 0.2], [3e6, 1.1e7, 4e5]
    said = mixture([*shares, 0.0], 2.3e8, sizes=[*sizes, 1.0], n0=1.0)
    assert said == pytest.approx(steps(shares, sizes, HALF_LIFE, 2.3e8), rel=1e-11)


def test_it_solves_the_differential_equation():
    shares, sizes = np.array([0.5, 0.3, 0.2]), np.array([3e6, 1.1e7, 4e5])
    bounds = sorted({k * m / r for m, r in zip(sizes, shares, strict=True) for k in range(1, 12)})
    y, begin = 1.0, 1.0
    for end in [*[bound for bound in bounds if bound < 2e7], 2e7]:
        passed = np.floor(0.5 * (begin + end) * shares / sizes)
        utility = float((shares * UTILITY[:3] * 0.5 ** (passed * shares / HALF_LIFE[:3])).sum())
        slope = lambda log_n, y, utility=utility: utility * y  # noqa: E731
        y = solve_ivp(slope, (math.log(begin), math.log(end)), [y], rtol=1e-10, atol=1e-14).y[0, -1]
        begin = end
    assert mixture([*shares, 0.0], 2e7, sizes=[*sizes, 1.0], n0=1.0) == pytest.approx(y, rel=1e-6)


def test_half_lives_stretch_alike_for_draws_by_size():
    sizes, samples = np.array([[2e6, 5e6, 1e6, 3e6]]), np.array([9e7])
    shares = sizes / sizes.sum()
    by_share = log_mixture_excess(numbers(), shares, sizes, samples, "share")
    assert log_mixture_excess(numbers(), shares, sizes, samples, "size") == pytest.approx(
        by_share, rel=1e-12
    )


@pytest.mark.parametrize(
    "law", [pool_utility("both"), effective_pool("both")], ids=lambda law: law.name
)
def test_gradient_equals_finite_differences(law):
    inputs = {"samples": SIZE * np.array([0.3, 1.0, 2.5, 7.0, 40.0]), "pool_size": np.full(5, SIZE)}
    theta = law.start_grid()
    gradient = law.evaluate(theta, inputs)[1]
    for index in range(theta.shape[1]):
        step = np.zeros(theta.shape[1])
        step[index] = 1e-6
        numeric = (law.predict(theta + step, inputs) - law.predict(theta - step, inputs)) / 2e-6
        np.testing.assert_allclose(gradient[:, index], numeric, rtol=1e-5, atol=1e-7)


def test_fit_recovers_exact_curves(exact):
    found = exact.numbers()
    assert found["b"][0] == pytest.approx(UTILITY, rel=1e-5)
    assert found["tau"][0] == pytest.approx(HALF_LIFE, rel=1e-5)
    assert found["d"][0] == pytest.approx(FLOOR, rel=1e-5)
    assert exact.predict(POOLS[:3], 1.28e8).value == pytest.approx([by_hand(3, 1.28e8)], rel=1e-6)


def test_intervals_hold_the_truth(noisy):
    for given, truth in ((noisy.utilities(0.98), UTILITY), (noisy.half_lives(0.98), HALF_LIFE)):
        assert (
            sum(
                item.low <= value <= item.high
                for item, value in zip(given.values(), truth, strict=True)
            )
            >= 3
        )
    said = noisy.predict(POOLS, [3.2e8, 6.4e8], 0.95)
    truth = np.array([by_hand(4, 3.2e8), by_hand(4, 6.4e8)])
    assert ((said.low < truth) & (truth < said.high)).all()
    assert laws.Fit.from_json(noisy.fit.to_json()).params == noisy.fit.params


@pytest.mark.slow
def test_the_profile_of_the_floor_shows_how_little_is_known(noisy):
    profile = noisy.fit.profile("d", 0.9)
    assert profile.low < FLOOR < profile.high and profile.high > 2 * profile.low


def test_the_best_choice_widens_with_samples(exact):
    frontier = pool_frontier(exact, np.geomspace(3.2e7, 2e10, 60))
    assert frontier.candidates == tuple(POOLS[:count] for count in (1, 2, 3, 4))
    assert frontier.best[0] == 0 and frontier.best[-1] >= 2 and (np.diff(frontier.best) >= 0).all()
    first = frontier.crossings[0]
    at = first.samples.value
    assert (first.before, first.after) == (POOLS[:1], POOLS[:2])
    assert by_hand(1, at * 0.98) < by_hand(2, at * 0.98) and by_hand(1, at * 1.02) > by_hand(
        2, at * 1.02
    )


def test_curation_tells_choice_rejected_and_worth(noisy):
    found = curate(noisy, 2.56e8)
    assert found.pools == POOLS[:2] and found.weights == {"top 10": 0.5, "10-20": 0.5}
    assert found.error.low < found.error.value < found.error.high
    errors = [error for _, error in found.rejected]
    assert errors == sorted(errors) and errors[0] >= found.error.value
    assert found.value_of_more["top 10"] > 0
    crossing = found.crossings[0].samples
    assert crossing.low <= crossing.value <= crossing.high


def test_best_weights_are_those_of_a_fine_grid(exact):
    found = best_weights(exact, 2.56e8, POOLS[:2])
    grid = np.linspace(0, 1, 2001)
    shares = np.stack([grid, 1 - grid, 0 * grid, 0 * grid], axis=1)
    errors = exact.errors(shares, exact.sizes, np.full(2001, 2.56e8))[0]
    said = exact.predict(found, 2.56e8).value[0]
    assert said == pytest.approx(errors.min(), rel=1e-5)
    assert said < exact.predict(POOLS[:2], 2.56e8).value[0]
    assert curate(exact, 2.56e8, weights="best").error.value <= said + 1e-9


def test_larger_pools_last_longer(exact):
    larger = {"top 10": 10 * SIZE}
    assert (
        exact.predict({"top 10": 1}, 2.56e8, pool_sizes=larger).value
        < exact.predict({"top 10": 1}, 2.56e8).value
    )
    assert curate(exact, 2.56e8, larger).pools == POOLS[:1]
    subsets = curate(exact, 2.56e8, candidates="subsets")
    assert len(subsets.rejected) == 14 and subsets.error.value <= curate(exact, 2.56e8).error.value


def test_effective_data_baseline_fits_and_mixes():
    baseline = fit_pools(curves(), law=effective_pool(), bootstrap=Bootstrap(count=0))
    assert baseline.memory == "R"
    assert baseline.predict({"top 10": 1}, 10 * SIZE).value == pytest.approx(
        [by_hand(1, 10 * SIZE)], rel=2e-3
    )
    assert np.isfinite(baseline.predict(POOLS, 6.4e8).value).all()


def test_binomial_weights_are_inverse_variances_of_the_log():
    assert binomial_weights([0.5, 0.8], 1000).tolist() == pytest.approx([1000, 4000])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"error": np.linspace(0.5, 0.9, 20)}, "rises from"),
        ({"samples": np.full(20, SIZE)}, "1 checkpoints"),
        ({"pool_size": np.linspace(1e6, 2e6, 20)}, "has sizes"),
        ({"pool": np.array(["a"] * 3)}, "pool has shape"),
    ],
)
def test_curves_that_cannot_be_fitted_are_refused(change, message):
    with pytest.raises(FitError, match=message):
        fit_pools(curves() | change)


def test_overfitting_at_the_end_warns():
    columns = curves()
    columns["error"][4] = columns["error"][3] * 1.05
    with pytest.warns(SteelyardWarning, match="pool top 10 rises again"):
        fit_pools(columns, bootstrap=Bootstrap(count=0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda fit: pool_utility("somewhere"), "unknown meeting"),
        (lambda fit: fit_pools({"samples": [1.0]}), "no column 'pool_size'"),
        (lambda fit: fit.predict({"best": 1}, 1e9), "unknown pools best"),
        (lambda fit: fit.predict({}, 1e9), "none given"),
        (lambda fit: fit.predict({"top 10": -1}, 1e9), "must be 0 or more"),
        (lambda fit: fit.predict(POOLS, 1e6), "fewer than one pass"),
        (lambda fit: fit.predict(POOLS[:2], 1e9, pool_sizes={"top 10": 1e9}), "need weights"),
        (
            lambda fit: fit.predict(POOLS, 1e9, pool_sizes={"top 10": 0}),
            "pool 'top 10' with 0 samples",
        ),
        (lambda fit: curate(fit, 1e6), "one pass of the smallest"),
        (lambda fit: pool_frontier(fit, []), "no budget"),
        (lambda fit: pool_frontier(fit, [1e9], candidates="all"), "unknown candidates"),
        (
            lambda fit: best_weights(
                PoolFit(fit=fit.fit, pools=fit.pools, sizes=fit.sizes, stretch="size"), 1e9
            ),
            "stretch by share",
        ),
        (lambda fit: binomial_weights([0.5, 1.2], 100), "between 0 and 1"),
    ],
)
def test_bad_input_is_refused(exact, call, message):
    with pytest.raises(FitError, match=message):
        call(exact)

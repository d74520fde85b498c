import math

import numpy as np
import pytest
import scipy.optimize

from steelyard import laws
from steelyard.errors import FitError, SteelyardWarning
from steelyard.laws.decisions.debug_run import debug_run
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.forms.learning_curves.best_over_sizes import best_over_sizes
from steelyard.laws.forms.learning_curves.curve_laws import (
    model_size_law,
    power_law_floor,
    smooth_transition,
)
from steelyard.laws.forms.learning_curves.learning_curve import fit_learning_curve

SAMPLES = 1000.0 * 2 ** np.arange(10)
MANY = 10**7


def curve(samples=SAMPLES, alpha=20.0, beta=0.5, gamma=0.02, plateau=math.inf, noise=0.0, seed=0):
    clean = np.minimum(alpha * samples**-beta + gamma, plateau)
    return clean * np.exp(noise * np.random.default_rng(seed).standard_normal(len(samples)))


def sizes(samples=SAMPLES):
    return 3.0 * samples**0.7


@pytest.fixture(scope="module")
def fitted():
    return fit_learning_curve(
        SAMPLES,
        curve(noise=0.01, seed=2),
        sizes(),
        num_validation=MANY,
        bootstrap=Bootstrap(count=60),
    )


def test_exact_curves_are_recovered():
    found = fit_learning_curve(
        SAMPLES, curve(), sizes(), num_validation=MANY, bootstrap=Bootstrap(count=0)
    )
    assert found.fit.params == pytest.approx({"alpha": 20, "beta": 0.5, "gamma": 0.02}, rel=1e-4)
    assert found.size_fit.params == pytest.approx({"sigma": 3, "beta_p": 0.7}, rel=1e-4)
    assert found.regions.plateau is None and found.regions.power_from is None
    assert found.regions.floor_from == pytest.approx((20 / 0.02) ** 2, rel=1e-3)
    assert set(found.regions.labels) == {"power"}


def test_fit_is_as_good_as_scipy():
    error = curve(noise=0.05, seed=1)
    found = fit_learning_curve(
        SAMPLES, error, plateau_shards=0, num_validation=MANY, bootstrap=Bootstrap(count=0)
    )
    best = min(
        scipy.optimize.least_squares(
            lambda theta: (
                np.logaddexp(theta[0] - theta[1] * np.log(SAMPLES), theta[2]) - np.log(error)
            ),
            [start, beta, floor],
        ).cost
        for start, beta, floor in ((3, 0.5, -4), (1, 0.3, -6), (5, 0.8, -3))
    )
    assert found.fit.objective <= best * (1 + 1e-6)


def test_three_regions_are_found():
    samples = 1000.0 * 2 ** np.arange(12)
    found = fit_learning_curve(
        samples,
        curve(samples, gamma=0.08, plateau=0.4, noise=0.005, seed=5),
        num_validation=MANY,
        bootstrap=Bootstrap(count=0),
    )
    assert (
        found.regions.labels[:2] == ("plateau", "plateau") and found.regions.labels[-1] == "floor"
    )
    assert found.regions.plateau == pytest.approx(0.4, rel=0.02)
    for place, true in (
        (found.regions.power_from, (20 / 0.32) ** 2),
        (found.regions.floor_from, (20 / 0.08) ** 2),
    ):
        assert abs(math.log2(place / true)) < 1


def test_a_known_guess_marks_the_plateau():
    samples = SAMPLES[:7]
    error = curve(samples, plateau=0.6, noise=0.04, seed=3)
    found = fit_learning_curve(
        samples, error, best_guess=0.6, num_validation=MANY, bootstrap=Bootstrap(count=0)
    )
    assert found.regions.labels[:1] == ("plateau",) and found.regions.plateau == 0.6


def test_smooth_bends_leave_the_law():
    samples = 200.0 * 2 ** np.arange(11)
    error = (
        3000 / (900 + samples**0.8) * np.exp(1e-3 * np.random.default_rng(0).standard_normal(11))
    )
    with pytest.warns(SteelyardWarning, match="cannot tell a floor"):
        found = fit_learning_curve(
            samples, error, num_validation=MANY, bootstrap=Bootstrap(count=0)
        )
    assert found.regions.labels.count("plateau") >= 4


def test_answers_carry_intervals(fitted):
    needed = fitted.samples_for(0.03, 0.95)
    assert needed.low < (20 / 0.01) ** 2 < needed.high and needed.low < needed.value < needed.high
    last = SAMPLES[-1]
    true_gain = 1 - curve(np.array([2 * last]))[0] / curve(np.array([last]))[0]
    gained = fitted.gain(1, 0.95)
    assert gained.low < true_gain < gained.high and gained.high - gained.low < 0.1
    model = fitted.model_size(2 * last)
    assert model.low <= model.value <= model.high and model.value == pytest.approx(
        3 * (2 * last) ** 0.7, rel=1e-3
    )


def test_answers_beyond_two_decades_need_a_flag(fitted):
    with pytest.raises(FitError, match="two decades"):
        fitted.gain(7)
    assert 0 < fitted.gain(7, extrapolate=True).value < 1
    with pytest.raises(FitError, match=r"more than|two decades|beyond"):
        fitted.model_size(1e9)
    assert fitted.model_size(1e9, extrapolate=True).value > 0
    near = float(curve(np.array([2e8]))[0])
    with pytest.raises(FitError) as caught:
        fitted.samples_for(near)
    assert "extrapolate=True" in caught.value.hint
    with pytest.raises(FitError, match="not reached"):
        fitted.samples_for(0.01, extrapolate=True)
    with pytest.raises(FitError, match="without model sizes"):
        fit_learning_curve(
            SAMPLES, curve(), num_validation=MANY, bootstrap=Bootstrap(count=0)
        ).model_size(1e5)


@pytest.mark.slow
def test_profile_interval_covers_the_truth():
    inside = 0
    for seed in range(40):
        found = fit_learning_curve(
            SAMPLES,
            curve(noise=0.03, seed=seed),
            plateau_shards=0,
            num_validation=MANY,
            bootstrap=Bootstrap(count=0),
        )
        known = found.fit.profile("beta", 0.9)
        inside += known.low <= 0.5 <= known.high
    assert 31 <= inside <= 40


def test_bad_curves_are_refused():
    good = curve()
    cases = [
        (SAMPLES[:3], good[:3], "3 shards"),
        (np.linspace(1000, 2000, 4), good[:4], "do not show a curve"),
        (SAMPLES, np.where(np.arange(10) == 4, 0.0, good), "rows 5"),
        (SAMPLES, np.where(np.arange(10) == 2, math.nan, good), "rows 3"),
        (
            np.where(np.arange(10) == 1, 1000.0, SAMPLES),
            good,
            "1000 samples are given more than once",
        ),
        (SAMPLES, 1 - good, "error rises"),
        (SAMPLES, np.where(np.arange(10) == 5, 2 * good, good), "32000 samples"),
        (SAMPLES, np.full(10, 0.5), "on a plateau"),
        (SAMPLES, good[:5], "other columns 10 rows"),
    ]
    for samples, error, message in cases:
        with pytest.raises(FitError, match=message) as caught:
            fit_learning_curve(samples, error, num_validation=MANY)
        assert caught.value.hint
    with pytest.raises(FitError, match="beyond a plateau of 8"):
        fit_learning_curve(SAMPLES, good, plateau_shards=8, num_validation=MANY)


def test_small_validation_sets_and_few_shards_are_warned_of():
    with pytest.warns(SteelyardWarning, match="num_validation is not given"):
        fit_learning_curve(SAMPLES, curve(), bootstrap=Bootstrap(count=0))
    with pytest.warns(SteelyardWarning, match="100 validation examples"):
        fit_learning_curve(SAMPLES, curve(), num_validation=100, bootstrap=Bootstrap(count=0))
    with pytest.warns(SteelyardWarning, match="4 shards cannot tell a floor"):
        found = fit_learning_curve(
            SAMPLES[::3],
            curve(SAMPLES[::3], gamma=1e-5),
            num_validation=MANY,
            bootstrap=Bootstrap(count=0),
        )
    assert (
        found.fit.params["beta"] == pytest.approx(0.5, abs=0.01)
        and found.regions.floor_from == math.inf
    )


def test_order_of_shards_does_not_matter():
    error, shuffled = curve(noise=0.02), np.random.default_rng(0).permutation(10)
    plain = fit_learning_curve(
        SAMPLES, error, sizes(), num_validation=MANY, bootstrap=Bootstrap(count=0)
    )
    mixed = fit_learning_curve(
        SAMPLES[shuffled],
        error[shuffled],
        sizes()[shuffled],
        num_validation=MANY,
        bootstrap=Bootstrap(count=0),
    )
    assert plain.fit.params == mixed.fit.params and plain.size_fit.params == mixed.size_fit.params


def test_envelope_takes_the_best_error_and_the_smallest_model_near_it():
    grid = [(m, s) for m in SAMPLES[:4] for s in (1e3, 1e4, 1e5, 1e6)]
    samples, size = (np.array(column) for column in zip(*grid, strict=True))
    error = (
        samples**-0.3
        + samples / 1e4 * 0.001
        + 1e3 / size * 1e-2
        + np.where(size == 1e6, 0.004, 0.0)
    )
    found = best_over_sizes(samples, size, error, tolerance=0.02)
    for row, shard in enumerate(SAMPLES[:4]):
        own = {s: e for m, s, e in zip(samples, size, error, strict=True) if m == shard}
        assert found.error[row] == pytest.approx(min(own.values()))
        assert found.size[row] == min(s for s, e in own.items() if e <= 1.02 * min(own.values()))
    assert found.samples.tolist() == SAMPLES[:4].tolist() and not found.at_largest


def test_envelope_flags_the_edge_and_averages_seeds():
    samples, size = np.repeat(SAMPLES[:3], 4), np.tile([1e3, 1e3, 1e4, 1e4], 3)
    error = np.tile([0.4, 0.9, 0.3, 0.3], 3)
    with pytest.warns(SteelyardWarning, match="largest tried"):
        found = best_over_sizes(samples, size, error, seed=np.tile([0, 1], 6))
    assert found.at_largest == tuple(SAMPLES[:3]) and found.error.tolist() == pytest.approx(
        [0.3] * 3
    )
    averaged = best_over_sizes(
        samples, size, np.tile([0.2, 0.45, 0.5, 0.5], 3), seed=np.tile([0, 1], 6)
    )
    assert averaged.error.tolist() == pytest.approx([0.3] * 3) and averaged.at_smallest == tuple(
        SAMPLES[:3]
    )
    with pytest.raises(FitError, match="rows 1 and 2 are the same cell"):
        best_over_sizes(samples, size, error)
    with pytest.raises(FitError, match="error must be positive and finite; rows 1"):
        best_over_sizes([1.0], [1.0], [0.0])
    with pytest.raises(FitError, match="different lengths"):
        best_over_sizes([1.0, 2.0], [1.0], [0.1])


def test_debugging_names_the_likely_reason(fitted):
    line = float(curve(np.array([40_000.0]))[0])
    enough = 10 * 3 * 40_000**0.7
    assert debug_run(fitted, 40_000, line).hint == "on the line"
    assert debug_run(fitted, 40_000, 1.5 * line, size=enough / 100).hint == "capacity"
    assert (
        debug_run(fitted, 40_000, 1.5 * line, size=enough, training_error=1.4 * line).hint
        == "optimization"
    )
    assert (
        debug_run(fitted, 40_000, 1.5 * line, size=enough, training_error=0.1 * line).hint
        == "label noise"
    )
    found = debug_run(fitted, 40_000, line / 1.5)
    assert (
        found.hint == "leak"
        and found.z < -2
        and found.expected_error == pytest.approx(line, rel=0.03)
    )
    with pytest.raises(FitError, match="positive"):
        debug_run(fitted, 40_000, math.nan)


def test_smooth_transition_solves_its_equation_with_the_right_gradient():
    law = smooth_transition()
    theta = np.array([[-1, 0.5, 3, 0.4, 0.8], [-4, 1, 6, 1.2, 2.5], [0, 0, 1, 0.2, 0.05]])
    log, slopes = law.evaluate(theta, {"samples": SAMPLES})
    error = np.exp(log)
    floor, height, factor = (np.exp(theta[:, index : index + 1]) for index in range(3))
    right = factor * SAMPLES ** -theta[:, 3:4] * (floor + height - error) ** theta[:, 4:5]
    np.testing.assert_allclose(error - floor, right, rtol=1e-9)
    for index in range(5):
        step = np.zeros(5)
        step[index] = 1e-6
        up, down = (law.predict(theta + sign * step, {"samples": SAMPLES}) for sign in (1, -1))
        np.testing.assert_allclose(slopes[:, index], (up - down) / 2e-6, rtol=1e-5, atol=1e-8)


def test_smooth_transition_without_bend_is_the_power_law():
    samples = np.geomspace(1e3, 1e6, 8)
    law, plain = smooth_transition(), power_law_floor()
    bent = law.predict(np.array([[-3.0, 4.0, 2.0, 0.5, 0.0]]), {"samples": samples})
    straight = plain.predict(np.array([[2.0, 0.5, -3.0]]), {"samples": samples})
    np.testing.assert_allclose(bent, straight, rtol=1e-9)


def test_laws_are_known_by_name():
    for law in (power_law_floor(), model_size_law(), smooth_transition()):
        assert laws.law_named(law.name) == law

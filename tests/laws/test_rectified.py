import math

import numpy as np
import pytest
import scipy.optimize

from steelyard import laws
from steelyard.errors import FitError
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.forms.learning_curves.curve_laws import curve_starts
from steelyard.laws.forms.rectified import (
    fit_rectified,
    fit_vanilla,
    rectified,
    required_data,
    transition,
    vanilla,
)

SIZES = 200.0 * 2 ** np.arange(14)
TRUTH = {"B": 1200.0, "D_l": 500.0, "beta": 0.6, "E": 0.7}


def curve(noise=0.0, seed=0, sizes=SIZES, **changed):
    law, values = rectified(), TRUTH | changed
    clean = law.predict(law.coordinates(values)[None], {"examples": sizes})[0]
    return np.exp(clean + noise * np.random.default_rng(seed).standard_normal(len(sizes)))


def test_gradient_matches_differences():
    law = rectified()
    theta = law.coordinates(TRUTH)[None] + np.array([[0.0] * 4, [0.1, -2.0, 0.2, -1.0]])
    _, slopes = law.evaluate(theta, {"examples": SIZES})
    for index in range(4):
        step = np.zeros(4)
        step[index] = 1e-6
        up, down = (law.predict(theta + sign * step, {"examples": SIZES}) for sign in (1, -1))
        np.testing.assert_allclose(slopes[:, index], (up - down) / 2e-6, rtol=1e-6, atol=1e-8)


def test_is_the_formula_and_the_vanilla_law_without_pre_learned_data():
    values = {"B": 30.0, "D_l": 20.0, "beta": 0.5, "E": 1.5}
    law = rectified("samples")
    said = np.exp(law.predict(law.coordinates(values)[None], {"samples": SIZES})[0])
    np.testing.assert_allclose(said, 30 / (20 + SIZES**0.5) + 1.5, rtol=1e-12)
    plain = vanilla("samples")
    without = rectified("samples").predict(
        law.coordinates(values | {"D_l": 1e-3})[None], {"samples": SIZES}
    )
    np.testing.assert_allclose(
        without,
        plain.predict(
            plain.coordinates({"B": 30, "beta": 0.5, "E": 1.5})[None], {"samples": SIZES}
        ),
        rtol=1e-3,
    )


def test_recovers_exact_curves_and_their_transition():
    fit = fit_rectified(SIZES, curve(), bootstrap=Bootstrap(count=0))
    for name, true in TRUTH.items():
        assert fit.params[name] == pytest.approx(true, rel=1e-4), name
    assert transition(fit).value == pytest.approx(500 ** (1 / 0.6), rel=1e-4)


@pytest.mark.parametrize("changed", [{}, {"D_l": 1e-4}, {"beta": 0.15, "B": 4.0, "D_l": 1.0}])
def test_no_start_of_a_slow_solver_does_better(changed):
    loss = curve(0.01, seed=3, **changed)
    fit = fit_rectified(SIZES, loss, bootstrap=Bootstrap(count=0))

    def residuals(theta):
        return np.logaddexp(
            theta[0] - np.logaddexp(theta[1], theta[2] * np.log(SIZES)), theta[3]
        ) - np.log(loss)

    best = min(
        scipy.optimize.least_squares(
            residuals, [math.log(b), math.log(known), beta, math.log(floor)], bounds=fit.law.bounds
        ).cost
        for b in (10, 1e3)
        for known in (3, 300)
        for beta in (0.3, 0.8)
        for floor in (0.5 * loss.min(),)
    )
    assert fit.objective <= best * (1 + 1e-5)


def test_starts_pass_near_the_points():
    starts = curve_starts(SIZES, curve(), np.linspace(0.0, math.log(1e6), 21), -7.0)
    misfit = np.sqrt(
        ((rectified().predict(starts, {"examples": SIZES}) - np.log(curve())) ** 2).mean(axis=1)
    )
    assert starts.shape == (2, 4) and misfit.max() < 0.03


def test_transition_lies_within_its_interval_and_required_data_inverts_the_curve():
    fit = fit_rectified(SIZES, curve(0.003, seed=1), bootstrap=Bootstrap(count=100))
    where = transition(fit, 0.95)
    assert where.low <= 500 ** (1 / 0.6) <= where.high and where.low < where.value < where.high
    wanted = float(curve(sizes=np.array([50_000.0]))[0])
    needed = required_data(fit, wanted, 0.95)
    assert needed.low <= 50_000 <= needed.high
    assert fit.predict({"examples": needed.value}).value[0] == pytest.approx(wanted, rel=1e-9)


def test_required_data_refuses_what_is_out_of_reach():
    fit = fit_rectified(SIZES, curve(), bootstrap=Bootstrap(count=0))
    with pytest.raises(FitError, match=r"0.5 is not reached.*two decades"):
        required_data(fit, 0.5)
    with pytest.raises(FitError, match="worse than"):
        required_data(fit, 10.0)
    far = float(curve(sizes=np.array([1e9]))[0])
    with pytest.raises(FitError) as caught:
        required_data(fit, far)
    assert "extrapolate=True" in caught.value.hint
    assert required_data(fit, far, extrapolate=True).value == pytest.approx(1e9, rel=0.01)
    with pytest.raises(FitError, match="has no D_l"):
        transition(fit_vanilla(SIZES, curve(), bootstrap=Bootstrap(count=0)))


def test_the_loss_before_tuning_may_take_part():
    sizes = np.concatenate([[0.0], SIZES])
    start = TRUTH["B"] / TRUTH["D_l"] + TRUTH["E"]
    fit = fit_rectified(sizes, np.concatenate([[start], curve()]), bootstrap=Bootstrap(count=0))
    assert fit.params["D_l"] == pytest.approx(500, rel=1e-3)


@pytest.mark.parametrize("bad", [math.nan, 0.0, -1.0])
def test_bad_losses_are_named_by_row(bad):
    loss = curve()
    loss[4] = bad
    with pytest.raises(FitError, match=r"rows? 5"):
        fit_rectified(SIZES, loss)


def test_a_floor_that_is_not_reached_is_reported():
    fit = fit_rectified(SIZES, curve(E=1e-4), bootstrap=Bootstrap(count=0))
    assert "E" in fit.at_bounds


def test_law_is_named_and_read_back():
    fit = fit_rectified(SIZES, curve(0.01), bootstrap=Bootstrap(count=0), delta=1e-2)
    assert laws.Fit.from_json(fit.to_json()).params == fit.params
    assert laws.law_named("vanilla:examples").inputs == ("examples",)


def test_vanilla_fit_recovers_its_own_curves():
    loss = 30 / SIZES**0.4 + 0.9
    fit = fit_vanilla(SIZES, loss, bootstrap=Bootstrap(count=0))
    assert fit.params == pytest.approx({"B": 30, "beta": 0.4, "E": 0.9}, rel=1e-4)

"""Forecasts from several forms: no run is seen before its time, and doubt widens the interval."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import FitError
from steelyard.laws.decisions.forecasting.entrants import LARGEST_RUN, entrants
from steelyard.laws.decisions.forecasting.forecast import ensemble, forecast
from steelyard.laws.decisions.forecasting.rolling import roll
from steelyard.laws.decisions.forecasting.scale import WidthScale, doubt
from steelyard.laws.decisions.forecasting.stacking import Stacked, stack
from steelyard.laws.forms.chinchilla import chinchilla, kaplan
from steelyard.laws.forms.powers import power_law
from steelyard.laws.forms.shapes import broken, coupled, saturating, shifted
from steelyard.laws.registry import published


def runs(count=24, noise=0.002, seed=0):
    random = np.random.default_rng(seed)
    points = {
        "parameters": np.exp(random.uniform(14, 19, count)),
        "tokens": np.exp(random.uniform(18, 23, count)),
    }
    truth = published["besiroglu2024"].fit()
    loss = truth.predict(points, extrapolate=True).value
    return points, loss * np.exp(noise * random.standard_normal(count)), truth


FORMS = (chinchilla(), kaplan())
AT = {"parameters": 1e9, "tokens": 2e10}


def test_the_form_that_made_the_runs_carries_the_forecast():
    points, loss, truth = runs()
    said = forecast(points, loss, FORMS, at=AT)
    assert said.carried_by == "chinchilla"
    assert sum(form.weight for form in said.forms) == pytest.approx(1)
    assert said.value[0] == pytest.approx(truth.predict(AT).value[0], rel=0.01)
    assert said.low[0] < truth.predict(AT).value[0] < said.high[0]


def test_no_fit_sees_a_run_beyond_its_cut():
    points, loss, _ = runs()
    size = points["parameters"] * points["tokens"]
    spoiled = np.where(size == size.max(), 3 * loss, loss)
    first, second = (roll(entrants(FORMS), points, goal, size) for goal in (loss, spoiled))
    for before, after in zip(first.theta[:-1], second.theta[:-1], strict=True):
        for ours, theirs in zip(before, after, strict=True):
            assert np.array_equal(ours, theirs)
    last = [
        np.array_equal(ours, theirs)
        for ours, theirs in zip(first.theta[-1], second.theta[-1], strict=True)
    ]
    assert not all(last)
    assert (np.diff(first.cuts) > 0).all() and first.cuts[-1] == size.max()


def test_weights_of_a_cut_know_only_earlier_cuts():
    points, loss, _ = runs()
    size = points["parameters"] * points["tokens"]
    rolling = roll(entrants(FORMS), points, loss, size)
    stacked = stack(rolling)
    assert stacked.weights.sum() == pytest.approx(1) and (stacked.weights >= 0).all()
    beyond = sum(int(rolling.beyond(cut).sum()) for cut in range(len(rolling.cuts) - 1))
    assert len(stacked.errors) == len(stacked.reaches) == beyond
    assert (stacked.reaches > 0).all()
    # The entrant with the larger error on larger runs weighs less.
    order = np.argsort(stacked.entrant_errors)
    assert (np.diff(stacked.weights[order]) <= 0).all()


def test_a_table_of_few_runs_is_answered_with_an_assumed_record():
    points, loss, _ = runs(count=6)
    said = forecast(points, loss, FORMS, at=AT)
    assert not len(said.past_errors) and np.isfinite([said.low, said.value, said.high]).all()


def test_one_axis_is_read_by_its_own_forms():
    samples = np.geomspace(1e3, 1e6, 12)
    loss = 0.4 + 8.0 / samples**0.3
    said = forecast({"samples": samples}, loss, at={"samples": [1e7, 1e8]})
    assert said.value == pytest.approx(0.4 + 8.0 / np.array([1e7, 1e8]) ** 0.3, rel=0.01)
    widths = np.log(said.high / said.low)
    assert widths[1] > widths[0]
    names = {form.name for form in said.forms}
    assert {"power_law:samples", "rectified:samples", LARGEST_RUN} <= names


def test_what_the_runs_do_not_vary_is_not_extrapolated():
    samples = np.geomspace(1e3, 1e6, 12)
    points = {"parameters": np.full(12, 1e6), "tokens": samples}
    loss = 0.4 + 8.0 / samples**0.3
    assert forecast(points, loss, at={"parameters": 1e6, "tokens": 1e7}).value[0] > 0.4
    with pytest.raises(FitError, match=r"parameters is 1e\+06 in every run"):
        forecast(points, loss, at={"parameters": 1e7, "tokens": 1e7})


def test_wrong_requests_are_refused():
    points, loss, _ = runs()
    with pytest.raises(FitError, match="missing: samples"):
        ensemble(points, loss, [power_law("samples")])
    with pytest.raises(FitError, match="missing: tokens"):
        forecast(points, loss, FORMS, at={"parameters": 1e9})
    with pytest.raises(FitError, match="level 1"):
        forecast(points, loss, FORMS, at=AT, level=1.0)
    with pytest.raises(FitError, match="cannot cut along"):
        ensemble(points, loss, FORMS, along="bytes")
    with pytest.raises(FitError, match="different names"):
        ensemble(points, loss, [chinchilla(), chinchilla()])
    with pytest.raises(FitError, match="no forms are known"):
        ensemble({"samples": np.ones(9), "steps": np.ones(9)}, np.ones(9))
    with pytest.raises(FitError, match="runs cannot fit"):
        ensemble({name: column[:3] for name, column in points.items()}, loss[:3], FORMS)


def test_tables_of_many_rows_are_thinned_evenly_by_size():
    points, loss, _ = runs(count=1500)
    found = ensemble(points, loss, [power_law("tokens"), power_law("tokens", floor=False)])
    assert len(found.rolling.target) == 400
    assert found.rolling.size.max() == points["tokens"].max()


def test_the_run_that_separates_the_forms_is_near_and_positive():
    points, loss, _ = runs()
    found = ensemble(points, loss, FORMS)
    run = found.separating()
    size = np.prod(list(run.values()))
    assert 0 < size <= 3.001 * found.rolling.size.max()


@given(
    st.floats(0.5, 0.95),
    st.floats(1e-3, 0.5),
    st.floats(0.0, 6.0),
)
@settings(max_examples=30)
def test_width_grows_with_level_doubt_and_reach(level, about, reach):
    scale = WidthScale(0.4, 0.9, 0.8)

    def width(about, reach, level):
        return scale.half_width(np.array([about]), np.array([reach]), level)[0]

    base = width(about, reach, level)
    assert width(about, reach, level + 0.02) > base
    assert width(1.1 * about, reach, level) > base
    assert width(about, reach + 1.0, level) > base


def test_errors_of_one_sign_widen_the_side_they_warn_of():
    errors = np.full(6, 0.03)
    stacked = Stacked(
        weights=np.array([1.0]),
        entrant_errors=np.array([0.03]),
        errors=errors,
        reaches=np.ones(6),
        recency=np.ones(6),
    )
    low, high = doubt(stacked, np.zeros((1, 1)), np.ones(1))
    # Past forecasts were too high, so the value may well be lower.
    assert low[0] > 1.3 * high[0]


@pytest.mark.parametrize(
    "law", [coupled(), saturating(), shifted("tokens"), broken("tokens")], ids=lambda law: law.name
)
def test_derivatives_are_those_of_differences(law):
    points, _, _ = runs(count=7)
    theta = law.start_grid()[:5]
    _, slopes = law.evaluate(theta, points)
    step = 1e-6
    for index in range(len(law.parameters)):
        moved = np.zeros(len(law.parameters))
        moved[index] = step
        above, below = (law.predict(theta + sign * moved, points) for sign in (1, -1))
        assert slopes[:, index] == pytest.approx((above - below) / (2 * step), rel=1e-4, abs=1e-7)

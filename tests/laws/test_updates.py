import csv
import os
from pathlib import Path

import numpy as np
import pytest
from benchmarks.laws._planted_returns import PlantedReturns
from scipy.optimize import isotonic_regression

from steelyard import laws
from steelyard.errors import FitError, SteelyardWarning
from steelyard.laws.decisions.updates_budget import best_updates_to_data, budget_law
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.forms.updates.return_curves import (
    DataNeeds,
    ReturnCurve,
    best_setting,
    data_needs,
    first_crossings,
    return_thresholds,
)
from steelyard.laws.forms.updates.updates_fit import fit_updates
from steelyard.laws.forms.updates.updates_to_data import (
    UpdatesLaw,
    fit_hyperparameters,
    hyperparameter_law,
    updates_to_data,
)

SHARED = (
    Path(os.environ.get("STEELYARD_SHARED", Path(__file__).resolve().parents[2].parent / "shared"))
    / "data/rl-utd-scaling"
)
UTDS = np.array([0.25, 0.5, 1, 2, 4, 8, 16])
SUITES = {"dmc": (4.92e6, 1e10, 7.25e4), "gym": (1.5e5, 4e9, 2.11e5)}
"""Critic parameters, FLOP per environment step, median need in steps; Rybkin et al. 2025."""


def rows(name, **wanted):
    if not SHARED.is_dir():
        pytest.skip("shared/data/rl-utd-scaling is not on this machine")
    with (SHARED / name).open() as stream:
        return [
            row
            for row in csv.DictReader(stream)
            if all(row[key] == value for key, value in wanted.items())
        ]


def published_hyperparameters(suite, name):
    found = rows("hparam_fits.csv", suite=suite, slope_type="shared", hparam=name)
    law = hyperparameter_law([row["env"] for row in found])
    values = {f"coefficient[{row['env']}]": 10 ** float(row["intercept_log10"]) for row in found}
    theta = law.coordinates({**values, "slope": -float(found[0]["slope_log10"])})
    return laws.Fit(law=law, theta=theta, samples=np.zeros((0, len(theta))), provenance="published")


def published(suite, method="ours"):
    critic, _, unit = SUITES[suite]
    found = rows("data_pareto_fits.csv", suite=suite, method=method)
    law = updates_to_data(unit)
    fits = []
    for row in found:
        values = {
            "Dmin": unit * float(row["d_min_normalised"]),
            "beta": float(row["beta"]),
            "alpha": float(row["alpha"]),
        }
        fits.append(
            laws.Fit(
                law=law,
                theta=law.coordinates(values),
                samples=np.zeros((0, 3)),
                provenance="published",
            )
        )
    return UpdatesLaw(
        utds=UTDS,
        thresholds=np.array([float(row["threshold_J"]) for row in found]),
        fits=tuple(fits),
        batch_size=published_hyperparameters(suite, "batch_size"),
        learning_rate=published_hyperparameters(suite, "learning_rate"),
        critic_parameters=critic,
    )


@pytest.fixture(scope="module")
def settings():
    values = np.concatenate([400 * UTDS**-0.4, 300 * UTDS**-0.4])
    return fit_hyperparameters(
        np.tile(UTDS, 2), ["a"] * 7 + ["b"] * 7, values, bootstrap=Bootstrap(count=0)
    )


def fitted(needs, settings, **options):
    return fit_updates(
        needs, batch_size=settings, learning_rate=settings, critic_parameters=1e5, **options
    )


def test_crossing_equals_isotonic_regression():
    generator = np.random.default_rng(0)
    step = np.arange(1.0, 81.0) * 10
    returns = np.cumsum(generator.normal(10, 60, (80, 25)), axis=0)
    levels = np.array([100.0, 300, 500, 900])
    expected = np.full((25, 4), np.nan)
    for curve in range(25):
        smooth = isotonic_regression(returns[:, curve]).x
        for index, level in enumerate(levels):
            above = np.flatnonzero(smooth >= level - 1e-9)
            expected[curve, index] = step[above[0]] if len(above) else np.nan
    np.testing.assert_array_equal(first_crossings(step, returns, levels), expected)
    assert np.isnan(expected).any() and np.isfinite(expected).any()


def test_thresholds_are_the_published_ones():
    np.testing.assert_allclose(return_thresholds(200)[:4], [200, 314.2, 412.11, 496.03], atol=0.01)
    np.testing.assert_allclose(return_thresholds(300)[[1, 8]], [390.96, 770.13], atol=0.01)


@pytest.mark.parametrize(
    ("unit", "beta", "alpha", "floor", "printed"),
    [
        (7.25e4, 0.57386686, 1.08958539, 1.10010350, 7.98e4),
        (2.11e5, 2.28951918, 0.70037719, 1.03082134, 2.17e5),
    ],
)
def test_law_at_return_800_has_the_printed_plateau(unit, beta, alpha, floor, printed):
    """Rybkin et al. 2025, figure 1; rows of the stored fits."""
    law = updates_to_data(unit)
    theta = law.coordinates({"Dmin": floor * unit, "beta": beta, "alpha": alpha})
    steps = np.exp(law.predict(theta[None], {"utd": np.array([1e9, beta])}))[0]
    assert steps[0] == pytest.approx(printed, rel=0.01)
    assert steps[1] - steps[0] == pytest.approx(unit, rel=1e-3)
    assert laws.law_named(law.name) == law


@pytest.mark.parametrize("suite", ["dmc", "gym"])
@pytest.mark.parametrize("method", ["ours", "baseline_utd2"])
def test_published_points_give_the_published_parameters(suite, method, settings):
    truth = published(suite, method)
    steps = np.stack([truth.steps(threshold, UTDS)[0] for threshold in truth.thresholds], axis=1)
    needs = DataNeeds(
        utds=UTDS,
        thresholds=truth.thresholds,
        steps=steps,
        samples=np.zeros((0, *steps.shape)),
        unit=SUITES[suite][2],
    )
    for loss in ("log", "linear"):
        for one, other in zip(fitted(needs, settings, loss=loss).fits, truth.fits, strict=True):
            assert one.params == pytest.approx(other.params, rel=0.02)


@pytest.mark.parametrize(
    ("suite", "exponent", "first", "last"), [("dmc", -0.74, 2.29, 1.03), ("gym", 0.62, 3.1, 6.3)]
)
def test_published_fits_give_the_published_budget_law(suite, exponent, first, last):
    law, delta = published(suite), SUITES[suite][1]
    line = budget_law(law, delta)
    assert line.exponent.value == pytest.approx(exponent, abs=0.02)
    assert line.utds[[0, -1]] == pytest.approx([first, last], rel=0.01)
    assert line.num_fitted == 8 and not line.at_edge
    for threshold, budget in zip(line.thresholds[-2:], line.budgets[-2:], strict=True):
        said = np.array([line.utd(budget)])
        spent = law.steps(threshold, said)[0, 0] * (law.flops_per_step(said)[0] + delta)
        assert budget <= spent <= 1.1 * budget


@pytest.mark.parametrize("suite", ["dmc", "gym"])
def test_published_recipes_are_proposed(suite):
    law = published(suite)
    for row in rows("proposed_hparams.csv", suite=suite, recipe="shared_fitted"):
        chosen = law.hyperparameters(float(row["utd"]), row["env"])
        assert chosen.batch_size == int(row["batch_size"])
        assert chosen.learning_rate == pytest.approx(float(row["learning_rate"]), rel=5e-3)


def test_best_updates_spend_the_budget():
    law, delta = published("dmc"), 1e10
    line = budget_law(law, delta, num_extrapolated=0)
    for index in (3, 8):
        best = best_updates_to_data(law, line.budgets[index], delta)
        assert best.flops + delta * best.data <= line.budgets[index] * (1 + 1e-9)
        assert (
            best.threshold == pytest.approx(line.thresholds[index], rel=0.05)
            and not best.is_extrapolated
        )
    assert best_updates_to_data(law, 3 * line.budgets[-1], delta).is_extrapolated
    with pytest.raises(FitError, match="does not reach return 200"):
        best_updates_to_data(law, line.budgets[0] / 2, delta)


def test_data_and_compute_follow_their_formulas():
    law = published("gym")
    params = law.fits[4].params
    steps = params["Dmin"] + SUITES["gym"][2] * (4 / params["beta"]) ** -params["alpha"]
    assert law.data_needed(law.thresholds[4], 4).value == pytest.approx(steps)
    batch = np.mean(
        [
            10 ** float(row["intercept_log10"])
            for row in rows(
                "hparam_fits.csv", suite="gym", slope_type="shared", hparam="batch_size"
            )
        ]
    )
    assert law.compute_needed(law.thresholds[4], 4).value == pytest.approx(
        10 * 4 * steps * batch * 4**-0.3096094744219379 * 1.5e5
    )
    between = law.data_needed(0.5 * (law.thresholds[4] + law.thresholds[5]), 4).value
    assert (
        law.data_needed(law.thresholds[4], 4).value
        < between
        < law.data_needed(law.thresholds[5], 4).value
    )
    ratios, data, flops = law.frontier(800.0, 9)
    assert (
        ratios[[0, -1]] == pytest.approx([0.25, 16])
        and (np.diff(data) < 0).all()
        and (flops > 0).all()
    )
    with pytest.raises(FitError, match="outside the fitted thresholds"):
        law.data_needed(900, 4)
    with pytest.raises(FitError, match="must be positive"):
        law.compute_needed(500, 0)
    with pytest.raises(FitError, match="no hyper-parameters"):
        law.hyperparameters(1.0, "Pong")


def planted_needs(seed, bootstraps=40, **options):
    generator = np.random.default_rng(seed)
    return data_needs(
        PlantedReturns().curves(UTDS, generator, **options),
        return_thresholds(300, count=4),
        bootstraps=bootstraps,
        generator=generator,
    )


def test_planted_truth_lies_in_the_intervals(settings):
    law = fitted(planted_needs(3), settings)
    covered = [
        one.interval("alpha", 0.95)[0] <= 0.9 <= one.interval("alpha", 0.95)[1] for one in law.fits
    ]
    assert sum(covered) >= 3
    said = law.data_needed(600.0, 4.0)
    assert said.low < said.value < said.high
    assert (
        budget_law(law, 1e9, num_extrapolated=1).exponent.low
        < budget_law(law, 1e9, num_extrapolated=1).exponent.high
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:more updates needed more data")
def test_planted_intervals_cover_in_100_repeats(settings):
    covered = 0
    for seed in range(100):
        low, high = fitted(planted_needs(seed, 100), settings).fits[-1].interval("alpha", 0.9)
        covered += low <= 0.9 <= high
    assert covered >= 85


def test_planted_best_settings_are_found_in_spite_of_noise():
    truth, generator = PlantedReturns(), np.random.default_rng(5)
    batches, rates = 512 * 2.0 ** np.arange(-2, 2), 5e-4 * 2.0 ** np.arange(-2, 2)
    best = []
    for utd in (1.0, 4.0):
        needed = np.empty((4, 4, 20))
        for row, batch in enumerate(batches):
            for column, rate in enumerate(rates):
                curve = truth.curve("middle", utd, generator, settings=(batch, rate), points=150)
                counts = generator.multinomial(8, np.full(8, 1 / 8), 20) / 8
                needed[row, column] = first_crossings(
                    curve.step, curve.returns @ counts.T, np.array([600.0])
                )[:, 0]
        best.append((best_setting(needed, batches), best_setting(needed.transpose(1, 0, 2), rates)))
    assert best[0] == pytest.approx((512, 5e-4), rel=0.35)
    assert best[1][0] < best[0][0] and best[1][1] < best[0][1]
    with pytest.raises(FitError, match="no setting"):
        best_setting(np.full((4, 4, 2), np.nan), rates)


def test_hyperparameters_share_one_slope():
    generator = np.random.default_rng(0)
    utd, task = np.tile([1.0, 2, 4, 8], 3), np.repeat(["a", "b", "c"], 4)
    values = (
        np.repeat([700.0, 300, 150], 4) * utd**-0.45 * np.exp(0.05 * generator.standard_normal(12))
    )
    one = fit_hyperparameters(utd, task.tolist(), values, bootstrap=Bootstrap(count=0))
    columns = np.column_stack([np.log(utd), *(task == name for name in "abc")])
    slope, *levels = np.linalg.lstsq(columns, np.log(values), rcond=None)[0]
    assert one.params["slope"] == pytest.approx(-slope, rel=1e-6)
    assert [one.params[f"coefficient[{name}]"] for name in "abc"] == pytest.approx(
        np.exp(levels).tolist(), rel=1e-6
    )


def test_resets_are_left_out():
    step, returns = (
        np.arange(1.0, 11.0),
        np.array([[10.0], [20], [30], [5], [10], [25], [35], [40], [45], [50]]),
    )
    curve = ReturnCurve(task="a", utd=1.0, step=step, returns=returns, resets=(3.0,))
    assert curve.step[~curve.kept].tolist() == [4, 5, 6]


def test_normalization_averages_tasks_of_any_difficulty():
    step = np.arange(1.0, 401.0)
    curves = [
        ReturnCurve(task=task, utd=utd, step=step * pace, returns=(step * utd)[:, None])
        for task, pace in (("a", 1.0), ("b", 10.0), ("c", 100.0))
        for utd in (1.0, 2.0)
    ]
    needs = data_needs(curves, np.array([100.0, 200.0]), bootstraps=0)
    np.testing.assert_allclose(needs.steps, [[1000, 2000], [500, 1000]])
    assert needs.unit == 1000.0


def test_bad_input_is_named(settings):
    flat = [
        ReturnCurve(
            task="a", utd=utd, step=np.arange(1.0, 50.0), returns=np.linspace(0, top, 49)[:, None]
        )
        for utd, top in ((1, 900), (2, 500))
    ]
    with pytest.raises(
        FitError, match=r"task a never reaches return 600 at UTD 2.*highest that all reach: 400"
    ):
        data_needs(flat, np.array([400.0, 600.0]), bootstraps=0)
    with pytest.raises(FitError, match="missing b at UTD 1"):
        data_needs(
            [*flat, ReturnCurve(task="b", utd=2, step=np.ones(1), returns=np.ones((1, 1)))],
            np.array([1.0]),
            bootstraps=0,
        )
    with pytest.raises(FitError, match="returns must be finite") as caught:
        ReturnCurve(task="a", utd=1, step=np.ones(1), returns=np.array([[np.nan]]))
    assert "failed" in caught.value.hint
    with pytest.raises(FitError, match="needed \\[T\\]"):
        ReturnCurve(task="a", utd=1, step=np.ones(2), returns=np.ones(2))
    empty = np.zeros((0, 2, 2))
    with pytest.raises(FitError, match="2 UTDs cannot fit the 3 parameters"):
        fitted(
            DataNeeds(
                utds=np.array([1.0, 2]),
                thresholds=np.array([1.0, 2]),
                steps=np.ones((2, 2)),
                samples=empty,
            ),
            settings,
        )
    steps = np.array([[5.0, 9], [4, 7], [4.5, 6], [3, np.nan]])
    some = {
        "utds": np.array([1.0, 2, 4, 8]),
        "thresholds": np.array([100.0, 200]),
        "samples": np.zeros((0, 4, 2)),
    }
    with pytest.raises(FitError, match="UTD 8 for return 200"):
        fitted(DataNeeds(steps=steps, **some), settings)
    with pytest.warns(SteelyardWarning, match="return 100 at UTD 4"):
        law = fitted(DataNeeds(steps=np.nan_to_num(steps, nan=5.0), **some), settings)
    assert law.rises == ((100.0, 4.0),)
    with pytest.raises(FitError, match="need at least 2 in rising order"):
        return_thresholds(900, 800)

import numpy as np
import pytest
import scipy.optimize

from steelyard import laws
from steelyard.errors import FitError, SteelyardWarning
from steelyard.laws.fitting.minimizer import Problem, minimize

TRUTH = laws.published["besiroglu2024"]
LAW = laws.chinchilla()


def points(count, noise, seed, truth=TRUTH):
    generator = np.random.default_rng(seed)
    sizes = np.exp(generator.uniform(np.log(4e7), np.log(1.6e10), count))
    tokens = np.exp(generator.uniform(np.log(1e9), np.log(5e11), count))
    inputs = {"parameters": sizes, "tokens": tokens}
    clean = truth.law.predict(truth.law.coordinates(truth.params)[None], inputs)[0]
    return inputs, np.exp(clean + noise * generator.standard_normal(count))


def objective(law, theta, inputs, target, delta=1e-3):
    log, gradient = law.evaluate(theta[None], inputs)
    residuals = log[0] - np.log(target)
    return laws.huber(residuals, delta).sum(), gradient[0] @ np.clip(residuals, -delta, delta)


def test_recovers_the_truth_of_240_points():
    inputs, target = points(240, 0.003, 0)
    fit = laws.fit(LAW, inputs, target)
    for name, true in TRUTH.params.items():
        low, high = fit.interval(name, 0.999)
        assert low <= true <= high, name
    assert fit.params["E"] == pytest.approx(1.8172, rel=0.01)
    assert fit.params["alpha"] == pytest.approx(0.3478, abs=0.02)
    assert fit.noise == pytest.approx(0.003, rel=0.15)
    assert (
        fit.resampling == "pairs"
        and not fit.prior
        and not fit.at_bounds
        and not fit.flat_directions
    )
    assert fit.drift_source == "holdout"


@pytest.mark.parametrize(
    ("count", "noise", "seed"), [(240, 0.003, 1), (54, 0.01, 2), (30, 0.03, 3)]
)
def test_objective_is_at_least_as_good_as_scipy_from_every_start(count, noise, seed):
    inputs, target = points(count, noise, seed)
    fit = laws.fit(LAW, inputs, target, bootstrap=laws.Bootstrap(count=0), prior=None)
    value, _ = objective(LAW, fit.theta, inputs, target)
    assert fit.objective == pytest.approx(value, rel=1e-12)
    best = min(
        scipy.optimize.minimize(
            lambda theta: objective(LAW, theta, inputs, target), start, jac=True, method="BFGS"
        ).fun
        for start in LAW.start_grid()[::4]
    )
    assert fit.objective <= best * (1 + 1e-6)


@pytest.mark.slow
def test_objective_is_never_worse_than_the_best_of_2000_random_starts():
    inputs, target = points(240, 0.003, 4)
    fit = laws.fit(LAW, inputs, target, bootstrap=laws.Bootstrap(count=0))
    generator = np.random.default_rng(5)
    low, high = np.array([1, 1, -3, 0.1, 0.1]), np.array([12, 14, 1.5, 1, 1])
    zeros = np.zeros(5)
    problem = Problem(
        law=LAW,
        inputs=inputs,
        target=np.log(target),
        weights=np.ones(240),
        delta=1e-3,
        center=zeros,
        precision=zeros,
    )
    random = minimize(problem, generator.uniform(low, high, (2000, 5)))
    assert fit.objective <= random.objective.min() * (1 + 1e-6)


def coverage(repeats, level, count=60):
    inside = np.zeros(5)
    for seed in range(repeats):
        inputs, target = points(count, 0.003, 100 + seed)
        fit = laws.fit(LAW, inputs, target, bootstrap=laws.Bootstrap(seed=seed))
        intervals = [fit.interval(name, level) for name in LAW.names]
        inside += [
            low <= TRUTH.params[name] <= high
            for name, (low, high) in zip(LAW.names, intervals, strict=True)
        ]
    return inside / repeats


def test_parameter_intervals_cover_roughly():
    assert coverage(8, 0.9).mean() > 0.7


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_parameter_intervals_cover_as_they_say():
    inside = coverage(200, 0.9, count=240)
    assert ((inside > 0.83) & (inside < 0.96)).all(), inside


def test_same_seed_same_numbers_and_another_seed_other_samples():
    inputs, target = points(60, 0.003, 6)
    first, again, other = (
        laws.fit(LAW, inputs, target, bootstrap=laws.Bootstrap(count=20, seed=seed))
        for seed in (1, 1, 2)
    )
    assert first.to_json() == again.to_json()
    assert np.array_equal(first.theta, other.theta) and not np.array_equal(
        first.samples, other.samples
    )


def test_weights_of_zero_drop_points():
    inputs, target = points(60, 0.003, 7)
    spoiled = target.copy()
    spoiled[:10] *= 3
    weights = np.where(np.arange(60) < 10, 0.0, 1.0)
    kept = {name: column[10:] for name, column in inputs.items()}
    weighted = laws.fit(LAW, inputs, spoiled, weights=weights, bootstrap=laws.Bootstrap(count=0))
    fewer = laws.fit(LAW, kept, target[10:], bootstrap=laws.Bootstrap(count=0))
    assert weighted.objective == pytest.approx(fewer.objective, rel=1e-9)
    assert weighted.noise == pytest.approx(fewer.noise, rel=1e-4)


def test_outliers_hardly_move_the_fit():
    inputs, target = points(100, 0.003, 8)
    target[:3] *= 1.5
    fit = laws.fit(LAW, inputs, target, bootstrap=laws.Bootstrap(count=0))
    assert fit.params["E"] == pytest.approx(1.8172, rel=0.03)


def test_a_tied_exponent_is_one_parameter():
    truth = laws.published["muennighoff2023_c4"]
    inputs, target = points(60, 0.002, 9, truth)
    fit = laws.fit(truth.law, inputs, target, bootstrap=laws.Bootstrap(count=0))
    assert fit.params["alpha"] == pytest.approx(0.3526596, abs=0.01)


def test_kaplan_form_is_recovered():
    truth = laws.published["kaplan2020"]
    inputs, target = points(120, 0.001, 10, truth)
    fit = laws.fit(truth.law, inputs, target, bootstrap=laws.Bootstrap(count=0))
    assert fit.params["alpha_N"] == pytest.approx(0.076, abs=0.003)
    assert fit.params["alpha_D"] == pytest.approx(0.103, abs=0.005)


def test_one_input_power_law():
    size = np.geomspace(1e4, 1e8, 20)
    fit = laws.fit(laws.power_law("tokens"), {"tokens": size}, 50 * size**-0.3 + 0.7)
    assert fit.params["alpha"] == pytest.approx(0.3, abs=1e-4)
    assert fit.params["E"] == pytest.approx(0.7, rel=1e-3)


GRID = {
    "parameters": np.repeat([1e4, 1e5, 1e6, 3e6], 4),
    "tokens": np.tile([3e5, 1e6, 3e6, 1e7], 4),
}
GRID_LOSS = 1.5 + 20 / GRID["parameters"] ** 0.3 + 200 / GRID["tokens"] ** 0.35


@pytest.mark.parametrize(
    ("points_given", "target", "message"),
    [
        (
            GRID,
            np.where(np.arange(16) == 4, -1.0, GRID_LOSS),
            r"target must be positive.*rows 5 \(-1\)",
        ),
        (GRID, np.where(np.arange(16) == 0, np.nan, GRID_LOSS), r"rows 1 \(nan\)"),
        (
            {**GRID, "tokens": np.where(np.arange(16) > 1, 0.0, 1e6)},
            GRID_LOSS,
            r"tokens must be positive.*and 9 more",
        ),
        ({"parameters": GRID["parameters"]}, GRID_LOSS, "missing: tokens"),
        (GRID, GRID_LOSS[:5], "shape"),
        (GRID, ["a"] * 16, "not a column of numbers"),
        (
            {name: column[:6] for name, column in GRID.items()},
            GRID_LOSS[:6],
            "6 points cannot fit the 5 parameters",
        ),
        (
            {"parameters": GRID["parameters"], "tokens": 20 * GRID["parameters"]},
            GRID_LOSS,
            r"one-axis table: tokens = 20 x parameters",
        ),
        (
            {"parameters": np.full(16, 1e6), "tokens": GRID["tokens"]},
            GRID_LOSS,
            "parameters is 1e\\+06 in every row",
        ),
    ],
)
def test_bad_points_are_refused_by_name(points_given, target, message):
    with pytest.raises(FitError, match=message):
        laws.fit(LAW, points_given, target)


def test_bad_options_are_refused():
    for options in (
        {"weights": -np.ones(16)},
        {"weights": np.zeros(16)},
        {"delta": 0.0},
        {"starts": np.zeros((3, 4))},
    ):
        with pytest.raises(FitError):
            laws.fit(LAW, GRID, GRID_LOSS, **options)
    for options in ({"count": -1}, {"seed": -1}, {"resampling": "jackknife"}):
        with pytest.raises(FitError):
            laws.Bootstrap(**options)
    with pytest.raises(FitError, match="resampling 'pairs' is not for here"):
        laws.fit_steps([1, 2, 4, 8], [9, 6, 4, 3], bootstrap=laws.Bootstrap(resampling="pairs"))
    with pytest.raises(FitError, match="prior for unknown parameters gamma"):
        laws.fit(LAW, GRID, GRID_LOSS, prior={"gamma": laws.Prior(0, 1)})


def test_few_points_warn():
    with pytest.warns(SteelyardWarning, match="9 points for the 5 parameters"):
        laws.fit(
            LAW,
            {name: column[:9] for name, column in GRID.items()},
            GRID_LOSS[:9],
            bootstrap=laws.Bootstrap(count=20),
        )

"""Tables with known truth and the coverage of intervals fitted to them."""

import numpy as np
import pytest

from steelyard import laws
from steelyard.errors import ConfigError, FitError
from steelyard.laws import theory

TRUTH = {"A": 400.0, "alpha": 0.3, "E": 1.7}
LAW = laws.power_law("tokens")
GRID = {"tokens": np.geomspace(1e7, 1e11, 40)}


def test_drawn_runs_are_the_law_times_noise():
    runs = theory.draw(LAW, TRUTH, GRID, 0.05, np.random.default_rng(0))
    np.testing.assert_allclose(runs.clean, 1.7 + 400 / GRID["tokens"] ** 0.3)
    assert np.std(np.log(runs["loss"] / runs.clean)) == pytest.approx(0.05, rel=0.3)
    assert set(runs) == {"tokens", "loss"}
    assert runs.num_runs == 40
    assert not runs.is_outlier.any()


def test_runs_without_noise_give_the_truth_back():
    found = laws.fit(
        LAW,
        theory.draw(LAW, TRUTH, GRID, 0.0, np.random.default_rng(0)),
        "loss",
        bootstrap=laws.Bootstrap(count=0),
    )
    assert "log noise 0" in found.source
    for name, value in TRUTH.items():
        assert found.params[name] == pytest.approx(value, rel=1e-3)


def test_outliers_and_diverged_runs_are_marked():
    grid = {"tokens": np.geomspace(1e7, 1e11, 2000)}
    runs = theory.draw(
        LAW, TRUTH, grid, 0.01, np.random.default_rng(1), outliers=0.1, diverged=0.05
    )
    off = np.abs(np.log(runs["loss"] / runs.clean))
    assert runs.is_outlier.mean() == pytest.approx(0.1, abs=0.03)
    assert runs.is_diverged.mean() == pytest.approx(0.05, abs=0.02)
    assert off[runs.is_diverged].min() > 0.3
    assert np.std(off[~runs.is_outlier & ~runs.is_diverged]) < 0.02


def test_every_law_can_be_drawn_on_its_grid():
    for law, params, grid in (
        (laws.chinchilla(), laws.published["besiroglu2024"].params, theory.chinchilla_grid()),
        (laws.chinchilla(), laws.published["besiroglu2024"].params, theory.isoflop_grid()),
        (
            laws.power_law("samples"),
            {"A": 3.0, "alpha": 0.4, "E": 0.1},
            theory.learning_curve_grid(2**16, 8, repeats=3),
        ),
    ):
        runs = theory.draw(law, params, grid, 0.01, np.random.default_rng(0))
        assert (runs["loss"] > 0).all()


def test_grids_keep_their_promises():
    rows = theory.isoflop_grid([1e18, 1e20], 5)
    np.testing.assert_allclose(6 * rows["parameters"] * rows["tokens"], rows["flops"])
    np.testing.assert_allclose(rows["tokens"][[2, 7]] / rows["parameters"][[2, 7]], 20)
    shards = theory.learning_curve_grid(1000, 4, repeats=2)
    np.testing.assert_array_equal(shards["samples"], [125, 125, 250, 250, 500, 500, 1000, 1000])
    repeated = theory.repeated_data_grid([1e8], [1e6, 1e7], [1, 4])
    np.testing.assert_array_equal(repeated["tokens"], [1e6, 4e6, 1e7, 4e7])
    assert len(theory.routed_grid()["experts"]) == 60
    np.testing.assert_array_equal(theory.crossed(a=[1, 2], b=[3, 4])["b"], [3, 4, 3, 4])


def test_random_feature_runs_hold_losses_of_the_model():
    model = theory.RandomFeatureModel(modes=500)
    runs = theory.random_feature_runs(
        model, [10, 40], [20, 50], [100], noise=0.0, generator=np.random.default_rng(0)
    )
    np.testing.assert_allclose(runs["loss"][2:], model.loss([10, 40], 50, 100).test)
    np.testing.assert_array_equal(runs["width"], [20, 20, 50, 50])
    assert runs.params["steps"] == pytest.approx(2 / 3)


def test_coverage_counts_what_a_known_interval_holds():
    """The mean of 20 normal draws with its 80 % interval of known width."""

    def interval(values):
        center = values.mean()
        half = 1.2815515594457 / np.sqrt(20)
        return {"mean": (center - half, center + half)}

    found = theory.coverage(
        lambda generator: 3 + generator.standard_normal(20), interval, {"mean": 3.0}, 600, 0.8
    )
    assert found.fraction("mean") == pytest.approx(0.8, abs=4 * found.binomial_error())
    assert found.is_calibrated("mean", 0.9999)
    assert found.binomial_error() == pytest.approx(np.sqrt(0.16 / 600))
    assert found.low["mean"] / 600 == pytest.approx(0.1, abs=0.05)
    assert found.width["mean"] == pytest.approx(2 * 1.2815515594457 / np.sqrt(20))


def test_coverage_tells_intervals_that_are_too_narrow():
    def interval(values):
        return {"mean": (values.mean() - 0.05, values.mean() + 0.05)}

    found = theory.coverage(
        lambda generator: generator.standard_normal(20), interval, {"mean": 0.0}, 200, 0.8
    )
    assert not found.is_calibrated("mean")


def test_coverage_of_a_fit():
    def tables(generator):
        return theory.draw(LAW, TRUTH, GRID, 0.01, generator)

    def intervals(runs):
        found = laws.fit(LAW, runs, "loss", bootstrap=laws.Bootstrap(count=60), delta=np.inf)
        return {name: found.interval(name, 0.8) for name in TRUTH}

    found = theory.coverage(tables, intervals, TRUTH, 12, 0.8)
    assert found.repeats == 12
    assert all(found.fraction(name) >= 0.4 for name in TRUTH)


def test_coverage_counts_refusals():
    def refuses(table):
        if table < 0:
            raise FitError("no")
        return {"x": (-9.0, 9.0)}

    found = theory.coverage(
        lambda generator: generator.standard_normal(), refuses, {"x": 0.0}, 40, 0.8
    )
    assert found.refused + found.repeats == 40
    assert found.refused > 5
    assert found.fraction("x") == 1.0


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda rng: theory.draw(LAW, TRUTH, GRID, -1, rng), ConfigError, "noise"),
        (lambda rng: theory.draw(LAW, TRUTH, GRID, 0.1, rng, outliers=2), ConfigError, "outliers"),
        (
            lambda rng: theory.draw(LAW, TRUTH, GRID, 0.1, rng, target="tokens"),
            ConfigError,
            "is an input",
        ),
        (lambda rng: theory.draw(LAW, {"A": 1.0}, GRID, 0.1, rng), FitError, "needs"),
        (lambda rng: theory.draw(LAW, TRUTH, {}, 0.1, rng), FitError, "missing"),
        (lambda rng: theory.isoflop_grid(runs=2), ConfigError, "3 runs"),
        (lambda rng: theory.learning_curve_grid(8, 12), ConfigError, "shards"),
        (lambda rng: theory.crossed(a=[]), ConfigError, "axis a"),
        (lambda rng: theory.coverage(lambda g: 0, lambda t: {}, {}, 5, 0.8), ConfigError, "truth"),
        (
            lambda rng: theory.coverage(lambda g: 0, lambda t: {}, {"x": 1.0}, 5, 0.8),
            ConfigError,
            "no interval for x",
        ),
    ],
)
def test_bad_input_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call(np.random.default_rng(0))


def test_coverage_of_refusals_only_says_why():
    def refuses(table):
        raise FitError("rows 3 are bad")

    with pytest.raises(FitError, match="rows 3"):
        theory.coverage(lambda generator: 0, refuses, {"x": 0.0}, 3, 0.8)

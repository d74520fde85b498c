"""Tables of many points, with the limit set low so that a few hundred count as many."""

from dataclasses import replace

import numpy as np
import pytest

from steelyard import laws
from steelyard.laws.fitting import large
from steelyard.laws.fitting.minimizer import minimize
from steelyard.laws.fitting.points import Points
from steelyard.laws.fitting.study import Study
from steelyard.laws.pictures import series
from steelyard.laws.pictures.charts import fit_chart
from steelyard.laws.pictures.diagnostics import residual_chart

LAW = laws.chinchilla()
TRUTH = laws.published["besiroglu2024"].params


def runs(count, noise=0.003, seed=0):
    generator = np.random.default_rng(seed)
    points = {
        "parameters": np.exp(generator.uniform(17, 23, count)),
        "tokens": np.exp(generator.uniform(21, 26, count)),
    }
    clean = LAW.predict(LAW.coordinates(TRUTH)[None], points)[0]
    return points, np.exp(clean + noise * generator.standard_normal(count))


@pytest.fixture
def low_limit(monkeypatch):
    monkeypatch.setattr(large, "LARGE", 500)
    monkeypatch.setattr(large, "_THINNED", 200)


def spread(fit):
    return fit.samples.std(axis=0)


def test_one_step_reaches_the_optimum_of_the_same_draws():
    points, target = runs(1500)
    study = Study(LAW, Points.checked(LAW, points, target, None), 1e-3)
    theta, _, _ = study.optimum(LAW.start_grid())
    problem = study.problem()
    weights = np.random.default_rng(0).multinomial(1500, np.full(1500, 1 / 1500), 60)
    weights = weights.astype(np.float64)
    full = minimize(replace(problem, weights=weights), np.tile(theta, (60, 1)), far=False).theta
    steps = large.newton_bootstrap(
        problem, theta, np.tile(problem.center, (60, 1)), lambda count: (weights, problem.target)
    )
    assert steps.std(axis=0) == pytest.approx(full.std(axis=0), rel=0.08)
    for column in range(5):
        assert np.corrcoef(steps[:, column], full[:, column])[0, 1] > 0.99


@pytest.mark.parametrize("resampling", ["pairs", "noise"])
def test_a_large_table_has_the_optimum_and_spread_of_full_fits(monkeypatch, resampling):
    points, target = runs(800)
    wanted = laws.Bootstrap(count=200, resampling=resampling)
    full = laws.fit(LAW, points, target, bootstrap=wanted)
    monkeypatch.setattr(large, "LARGE", 500)
    monkeypatch.setattr(large, "_THINNED", 200)
    quick = laws.fit(LAW, points, target, bootstrap=wanted)
    assert quick.theta == pytest.approx(full.theta, abs=1e-6)
    assert quick.objective == pytest.approx(full.objective, rel=1e-9)
    assert spread(quick) == pytest.approx(spread(full), rel=0.3)
    assert quick.drift_source == "holdout"
    assert not np.array_equal(quick.samples, full.samples)


def test_priors_and_bounds_hold_in_a_large_table(low_limit):
    points, target = runs(600, noise=0.02)
    tight = {"alpha": laws.Prior(0.35, 0.001)}
    fit = laws.fit(LAW, points, target, prior=tight, bootstrap=laws.Bootstrap(count=50))
    free = laws.fit(LAW, points, target, prior=None, bootstrap=laws.Bootstrap(count=50))
    alpha = LAW.names.index("alpha")
    assert 0 < spread(fit)[alpha] < spread(free)[alpha] / 3
    low, high = LAW.bounds
    assert ((free.samples >= low) & (free.samples <= high)).all()


def test_clusters_of_a_large_table_are_drawn_together(low_limit):
    points, _ = runs(600)
    own = np.arange(600) // 10
    points["parameters"] = points["parameters"][own]  # the ten checkpoints of a run share its size
    clean = LAW.predict(LAW.coordinates(TRUTH)[None], points)[0]
    target = np.exp(clean + 0.003 * np.random.default_rng(1).standard_normal(60)[own])
    together = laws.fit(LAW, points, target, groups=own)
    apart = laws.fit(LAW, points, target)
    ratio = dict(zip(LAW.names, spread(together) / spread(apart), strict=True))
    assert ratio["A"] > 1.5 and ratio["alpha"] > 1.5


def test_influence_of_a_large_table_is_one_step_from_each_refit(monkeypatch):
    points, target = runs(120, seed=3)
    fit = laws.fit(LAW, points, target, delta=np.inf, bootstrap=laws.Bootstrap(count=0))
    exact = fit.influence()
    monkeypatch.setattr(large, "LARGE", 100)
    quick = fit.influence()
    assert quick.strongest(3) == exact.strongest(3)
    assert quick.shift == pytest.approx(exact.shift, abs=0.15 * np.abs(exact.shift).max())


def test_the_profile_of_a_large_table_agrees_with_its_bootstrap(low_limit):
    points, target = runs(900)
    fit = laws.fit(LAW, points, target)
    found = fit.profile("alpha")
    low, high = fit.interval("alpha", 0.9)
    assert found.low < fit.params["alpha"] < found.high
    assert found.high - found.low == pytest.approx(high - low, rel=0.3)


def test_rows_of_a_large_table_are_always_the_same(low_limit):
    points, target = runs(600)
    data = Points.checked(LAW, points, target, np.arange(600) % 2)
    first, again = large.thinned(data), large.thinned(data)
    assert len(first.target) == 200 and np.array_equal(first.target, again.target)
    assert (first.weights > 0).all() and set(first.target) <= set(target)


def test_charts_draw_a_sample_of_a_large_table_and_say_so(monkeypatch):
    monkeypatch.setattr(series, "MOST_DRAWN", 60)
    points, target = runs(300)
    fit = laws.fit(LAW, points, target, bootstrap=laws.Bootstrap(count=0))
    for spec in (fit_chart(fit), residual_chart(fit)):
        words = str(spec["title"])
        assert "of 300 points drawn" in words
        rows = {
            row["row"]
            for name, rows in spec["datasets"].items()
            for row in rows
            if "measured" in row
        }
        assert 60 <= len(rows) <= 60 + 2 * 9 + 50
        assert int(np.abs(fit.residuals).argmax()) + 1 in rows
    few = laws.fit(LAW, {name: column[:50] for name, column in points.items()}, target[:50])
    assert "points drawn" not in str(fit_chart(few)["title"])

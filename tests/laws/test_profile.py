import numpy as np
import pytest
import scipy.optimize

from steelyard import laws
from steelyard.errors import FitError

LAW = laws.chinchilla()
TRUTH = laws.published["besiroglu2024"].params


def runs(count=60, noise=0.003, seed=0, spread=1.0):
    generator = np.random.default_rng(seed)
    points = {
        "parameters": np.exp(generator.uniform(17, 17 + 6 * spread, count)),
        "tokens": np.exp(generator.uniform(21, 26, count)),
    }
    clean = LAW.predict(LAW.coordinates(TRUTH)[None], points)[0]
    return points, np.exp(clean + noise * generator.standard_normal(count))


def test_profile_equals_a_loop_of_constrained_fits():
    points, target = runs()
    fit = laws.fit(LAW, points, target, bootstrap=laws.Bootstrap(count=0))
    found = fit.profile("alpha")
    assert found.low < found.value < found.high and not found.is_flat
    assert found.excess.min() == pytest.approx(0.0, abs=1e-9)
    goal = np.log(target)
    threshold = None
    for pick in (0, len(found.values) // 3, -1):
        pinned = LAW.fix(alpha=float(found.values[pick]))
        start = np.delete(fit.theta, LAW.names.index("alpha"))

        def objective(theta, pinned=pinned):
            log, slopes = pinned.evaluate(theta[None], points)
            residuals = log[0] - goal
            return laws.huber(residuals, 1e-3).sum(), slopes[0] @ np.clip(residuals, -1e-3, 1e-3)

        best = (
            scipy.optimize.minimize(
                objective, start, jac=True, method="BFGS", options={"gtol": 1e-9}
            ).fun
            - fit.objective
        )
        threshold = threshold or best / found.excess[pick]
        assert best / threshold == pytest.approx(found.excess[pick], rel=0.02, abs=0.005)


def test_profile_and_bootstrap_agree_where_the_points_are_many():
    points, target = runs(240, seed=1)
    fit = laws.fit(LAW, points, target, delta=np.inf)
    for name in LAW.names:
        found, (low, high) = fit.profile(name), fit.interval(name, 0.9)
        assert np.log(found.high / found.low) == pytest.approx(np.log(high / low), rel=0.35), name


def test_profile_covers_the_truth():
    inside = []
    for seed in range(16):
        points, target = runs(40, seed=seed)
        found = laws.fit(
            LAW, points, target, bootstrap=laws.Bootstrap(count=0), prior=None
        ).profile("beta")
        inside.append(found.low <= TRUTH["beta"] <= found.high)
    assert np.mean(inside) >= 0.73


def test_a_flat_valley_is_said_to_be_one():
    points, target = runs(60, noise=0.02, seed=2, spread=0.15)
    fit = laws.fit(LAW, points, target, prior=None, bootstrap=laws.Bootstrap(count=0))
    found = fit.profile("A")
    assert found.is_flat and found.high / max(found.low, 1e-300) > 5
    assert "flat" in str(found)


def test_bounds_given_as_whole_numbers_do_not_round_the_pins():
    law = laws.Law(
        name="whole",
        term=laws.Power("A", "alpha", "tokens"),
        parameters=(
            laws.Parameter(name="A", transform="log", low=-20, high=60, starts=(1,)),
            laws.Parameter(name="alpha", transform="identity", low=0, high=2, starts=(1,)),
        ),
    )
    tokens = np.geomspace(1e6, 1e9, 20)
    target = 5 / tokens**0.3 * np.exp(0.01 * np.random.default_rng(0).standard_normal(20))
    found = laws.fit(law, {"tokens": tokens}, target, bootstrap=laws.Bootstrap(count=0)).profile(
        "alpha"
    )
    assert found.low < 0.3 < found.high and found.high - found.low < 0.05


def test_unknown_names_and_published_sets_are_refused():
    points, target = runs()
    fit = laws.fit(LAW, points, target, bootstrap=laws.Bootstrap(count=0))
    with pytest.raises(FitError, match="no profile"):
        fit.profile("gamma")
    with pytest.raises(FitError, match="without its points"):
        laws.published["besiroglu2024"].fit().profile("A")


def test_an_outlier_is_named_and_left_out():
    points, target = runs()
    target[5] *= 1.1
    fit = laws.fit(LAW, points, target, bootstrap=laws.Bootstrap(count=20))
    assert [item.row for item in fit.outliers()] == [5]
    assert "row 6" in str(fit.outliers()[0])
    clean = fit.without([5])
    assert clean.num_points == 59 and not clean.outliers()


def test_influence_is_that_of_leaving_each_point_out():
    points, target = runs(30)
    fit = laws.fit(
        LAW, points, target, bootstrap=laws.Bootstrap(count=50), prior=None, delta=np.inf
    )
    found = fit.influence()
    row = found.strongest(1)[0]
    alone = laws.fit(
        LAW,
        {name: np.delete(column, row) for name, column in points.items()},
        np.delete(target, row),
        bootstrap=laws.Bootstrap(count=0),
        prior=None,
        delta=np.inf,
    )
    assert found.parameters[row] == pytest.approx(list(alone.params.values()), rel=1e-4)
    assert found.size[row] == found.size.max()


def test_far_predictions_need_a_flag():
    points, target = runs()
    fit = laws.fit(LAW, points, target, bootstrap=laws.Bootstrap(count=0))
    far = {"parameters": 300 * points["parameters"].max(), "tokens": 1e11}
    with pytest.raises(FitError, match="two decades"):
        fit.predict(far)
    assert fit.predict(far, extrapolate=True).value[0] > 0

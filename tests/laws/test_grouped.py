import numpy as np
import pytest

from steelyard import laws
from steelyard.errors import FitError

TRUTH = {
    "A": 482.01,
    "B": 2085.43,
    "E[clean]": 1.8,
    "E[noisy]": 2.1,
    "alpha": 0.3478,
    "beta": 0.3658,
}
LAW = laws.chinchilla().grouped(("E",), ("clean", "noisy"))


def runs(count=60, noise=0.003, seed=0):
    generator = np.random.default_rng(seed)
    points = {
        "parameters": np.exp(generator.uniform(17, 23, count)),
        "tokens": np.exp(generator.uniform(21, 26, count)),
        "group": np.array(["clean", "noisy"] * (count // 2)),
    }
    inputs = {**points, "group": np.array([1.0, 2.0] * (count // 2))}
    clean = LAW.predict(LAW.coordinates(TRUTH)[None], inputs)[0]
    return points, np.exp(clean + noise * generator.standard_normal(count))


def test_groups_share_what_does_not_vary():
    points, target = runs()
    fit = laws.fit(LAW, points, target)
    for name, true in TRUTH.items():
        low, high = fit.interval(name, 0.999)
        assert low <= true <= high, name
    assert fit.params["E[noisy]"] / fit.params["E[clean]"] == pytest.approx(2.1 / 1.8, rel=0.005)


def test_predictions_take_the_name_of_a_group():
    points, target = runs()
    fit = laws.fit(LAW, points, target, bootstrap=laws.Bootstrap(count=20))
    one = fit.predict({"parameters": 1e9, "tokens": 1e10, "group": "noisy"})
    assert one.value[0] == fit.predict({"parameters": 1e9, "tokens": 1e10, "group": 2}).value[0]
    assert (
        one.value[0] > fit.predict({"parameters": 1e9, "tokens": 1e10, "group": "clean"}).value[0]
    )
    with pytest.raises(FitError, match="unknown group"):
        fit.predict({"parameters": 1e9, "tokens": 1e10, "group": "other"})
    with pytest.raises(FitError, match=r"1\.\.2"):
        fit.predict({"parameters": 1e9, "tokens": 1e10, "group": 3})


def test_fixed_parameters_stay_and_survive_json():
    points, target = runs()
    law = LAW.fix(beta=0.3658)
    fit = laws.fit(law, points, target, bootstrap=laws.Bootstrap(count=20), delta=np.inf)
    again = laws.Fit.from_json(fit.to_json())
    assert "beta" not in fit.params and again.law.fixed == {"beta": 0.3658}
    assert (
        np.array_equal(again.theta, fit.theta)
        and np.array_equal(again.samples, fit.samples)
        and again.delta == np.inf
    )
    given = {"parameters": 1e9, "tokens": 1e10, "group": "clean"}
    assert again.predict(given).low[0] == fit.predict(given).low[0]
    assert fit.derive(lambda params: params["beta"]).value == 0.3658


def test_gradient_of_a_grouped_law():
    points, _ = runs(8)
    inputs = {**points, "group": np.array([1.0, 2.0] * 4)}
    theta = LAW.coordinates(TRUTH)
    _, slopes = LAW.evaluate(theta[None], inputs)
    for index in range(len(theta)):
        step = np.eye(len(theta))[index] * 1e-6
        numeric = (
            LAW.predict((theta + step)[None], inputs) - LAW.predict((theta - step)[None], inputs)
        )[0] / 2e-6
        assert slopes[0, index] == pytest.approx(numeric, abs=1e-7)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: laws.chinchilla().grouped(("E",), ()),
        lambda: laws.chinchilla().grouped(("E",), ("a", "a")),
        lambda: laws.chinchilla().grouped(("F",), ("a", "b")),
        lambda: LAW.grouped(("A",), ("a", "b")),
        lambda: laws.chinchilla().fix(F=1.0),
        lambda: laws.chinchilla().fix(E=-1.0),
        lambda: laws.chinchilla().fix(A=1.0, B=1.0, E=1.0, alpha=0.3, beta=0.3),
    ],
)
def test_wrong_declarations_are_refused(wrong):
    with pytest.raises(FitError):
        wrong()


def test_clusters_are_drawn_whole():
    points, target = runs(60)
    clusters = np.repeat(np.arange(20), 3)
    shifted = target * np.exp(0.01 * np.random.default_rng(1).standard_normal(20))[clusters]
    law = laws.power_law("tokens", floor=False)
    whole = laws.fit(
        law, points, shifted, groups=clusters, bootstrap=laws.Bootstrap(resampling="pairs")
    )
    single = laws.fit(law, points, shifted, bootstrap=laws.Bootstrap(resampling="pairs"))
    assert whole.objective == single.objective and not np.array_equal(whole.samples, single.samples)
    with pytest.raises(FitError, match="groups must be 60 labels"):
        laws.fit(law, points, target, groups=[1, 2])


def test_each_group_on_its_own():
    points, target = runs(60)
    both = laws.fit_each(
        laws.chinchilla(), points, target, points["group"], bootstrap=laws.Bootstrap(count=0)
    )
    assert list(both) == ["clean", "noisy"]
    rows = points["group"] == "clean"
    alone = laws.fit(
        laws.chinchilla(),
        {name: points[name][rows] for name in ("parameters", "tokens")},
        target[rows],
        bootstrap=laws.Bootstrap(count=0),
    )
    assert np.array_equal(both["clean"].theta, alone.theta)
    with pytest.raises(FitError, match="group few"):
        laws.fit_each(laws.chinchilla(), points, target, ["few"] * 3 + ["many"] * 57)

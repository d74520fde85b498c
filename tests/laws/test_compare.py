import numpy as np
import pytest

from steelyard import laws
from steelyard.errors import FitError


def runs(law, params, count=60, noise=0.002, seed=0):
    generator = np.random.default_rng(seed)
    points = {
        "parameters": np.exp(generator.uniform(14, 21, count)),
        "tokens": np.exp(generator.uniform(18, 25, count)),
    }
    clean = law.predict(law.coordinates(params)[None], points)[0]
    return points, np.exp(clean + noise * generator.standard_normal(count))


@pytest.mark.parametrize("name", ["besiroglu2024", "kaplan2020"])
def test_picks_the_form_the_points_came_from(name):
    truth = laws.published[name]
    points, target = runs(truth.law, truth.params)
    found = laws.compare(points, target, [laws.chinchilla(), laws.kaplan()])
    assert found.best.name == truth.law.name
    assert found.forms[0].extrapolation_error < 0.5 * found.forms[1].extrapolation_error
    assert found.forms[0].noise < found.forms[1].noise and found.forms[0].aic < found.forms[1].aic


def test_errors_are_those_of_fits_that_never_saw_the_held_points():
    truth = laws.published["besiroglu2024"]
    points, target = runs(truth.law, truth.params)
    found = laws.compare(points, target, [laws.chinchilla(), laws.kaplan()])
    cut = 0
    rows = found.held["row"][found.held["cut"] == cut].astype(int)
    spoiled = target.copy()
    spoiled[rows] *= 2.0
    again = laws.compare(points, spoiled, [laws.chinchilla(), laws.kaplan()])
    first, second = (item.held["chinchilla"][item.held["cut"] == cut] for item in (found, again))
    assert second == pytest.approx(first - np.log(2.0), abs=1e-9)
    kept = np.setdiff1d(np.arange(60), rows)
    alone = laws.fit(
        laws.chinchilla(),
        {name: column[kept] for name, column in points.items()},
        target[kept],
        bootstrap=laws.Bootstrap(count=0),
    )
    said = alone.predict(
        {name: column[rows] for name, column in points.items()}, extrapolate=True
    ).value
    assert first == pytest.approx(np.log(said / target[rows]), abs=1e-6)
    assert found.held["size"][found.held["cut"] == cut].min() > found.sizes[cut]


def test_laws_with_different_inputs_are_cut_alike():
    truth = laws.published["besiroglu2024"]
    points, target = runs(truth.law, truth.params)
    found = laws.compare(
        points, target, [laws.chinchilla(), laws.power_law("tokens")], along="tokens"
    )
    assert found.best.name == "chinchilla"


def test_bad_requests_are_refused():
    truth = laws.published["besiroglu2024"]
    points, target = runs(truth.law, truth.params, count=8)
    with pytest.raises(FitError, match="two laws"):
        laws.compare(points, target, [laws.chinchilla()])
    with (
        pytest.warns(Warning, match="fewer than two"),
        pytest.raises(FitError, match="cannot be cut"),
    ):
        laws.compare(points, target, [laws.chinchilla(), laws.kaplan()])
    points, target = runs(truth.law, truth.params)
    with pytest.raises(FitError, match="cannot cut along"):
        laws.compare(points, target, [laws.chinchilla(), laws.kaplan()], along="bytes")

import numpy as np
import pytest

from steelyard import laws
from steelyard.errors import FitError

TRUTH = laws.published["besiroglu2024"]
WANTED = {"parameters": 3e9, "tokens": 6e10}


def measure(points, noise, generator):
    clean = TRUTH.law.predict(TRUTH.fit().theta[None], points)[0]
    return np.exp(clean + noise * generator.standard_normal(len(clean)))


def small_study(seed=0):
    generator = np.random.default_rng(seed)
    sizes, tokens = np.meshgrid(np.geomspace(1e7, 3e8, 5), np.geomspace(3e8, 6e9, 5))
    points = {"parameters": sizes.ravel(), "tokens": tokens.ravel()}
    return points, measure(points, 0.004, generator), generator


def width(points, target):
    fit = laws.fit(
        TRUTH.law,
        points,
        target,
        bootstrap=laws.Bootstrap(count=200, resampling="noise"),
        prior=None,
        delta=np.inf,
    )
    said = fit.law.predict(fit.samples, {name: np.array([value]) for name, value in WANTED.items()})
    return float(said.std())


def test_expected_widths_are_those_that_measuring_brings():
    points, target, generator = small_study()
    fit = laws.fit(
        TRUTH.law,
        points,
        target,
        bootstrap=laws.Bootstrap(count=400, resampling="noise"),
        prior=None,
        delta=np.inf,
    )
    candidates = {"parameters": np.array([1e7, 3e8, 1e9]), "tokens": np.array([3e8, 6e9, 2e10])}
    found = laws.next_cell(fit, candidates, WANTED)
    factor = found.interval_before / width(points, target)
    for row, expected in zip(found.rows, found.interval_after, strict=True):
        widths = []
        for _ in range(4):
            cell = {name: column[row : row + 1] for name, column in candidates.items()}
            grown = {name: np.append(points[name], cell[name]) for name in points}
            widths.append(width(grown, np.append(target, measure(cell, 0.004, generator))))
        assert np.mean(widths) * factor == pytest.approx(expected, rel=0.3)
    largest = found.rows.index(2)
    assert found.interval_after[largest] == found.interval_after.min() < 0.8 * found.interval_before


def test_the_cheapest_gain_comes_first_and_dear_cells_are_left_out():
    points, target, _ = small_study()
    fit = laws.fit(TRUTH.law, points, target)
    candidates = {"parameters": np.array([1e8, 1e8, 1e9]), "tokens": np.array([2e9, 2e9, 2e10])}
    found = laws.next_cell(fit, candidates, WANTED, flops=[1e18, 1e21, 1e20])
    assert (
        found.rows.index(0) < found.rows.index(1)
        and found.best["parameters"] == found.inputs["parameters"][0]
    )
    assert (
        laws.next_cell(fit, candidates, WANTED, max_flops=1e19).rows
        and 2 not in laws.next_cell(fit, candidates, WANTED, max_flops=1e19).rows
    )


def test_bad_requests_are_refused():
    points, target, _ = small_study()
    few = laws.fit(TRUTH.law, points, target, bootstrap=laws.Bootstrap(count=10))
    with pytest.raises(FitError, match="10 bootstraps"):
        laws.next_cell(few, WANTED, WANTED)
    fit = laws.fit(TRUTH.law, points, target, bootstrap=laws.Bootstrap(count=50))
    with pytest.raises(FitError, match="no candidate costs"):
        laws.next_cell(fit, WANTED, WANTED, max_flops=1.0)
    with pytest.raises(FitError, match="one wanted run"):
        laws.next_cell(fit, WANTED, points)
    with pytest.raises(FitError, match="flops must be positive"):
        laws.next_cell(fit, WANTED, WANTED, flops=-1)

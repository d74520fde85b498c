import math
import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import scipy.interpolate

from steelyard.errors import FitError
from steelyard.laws.decisions.optima.isoflop import isoflop
from steelyard.laws.decisions.optima.valley import curve_noise, valleys
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.tables.table import RunTable

ROOT = Path(__file__).resolve().parents[2]
POINTS = (
    Path(os.environ.get("STEELYARD_SHARED", ROOT.parent / "shared"))
    / "data/isoflop-refinedweb/isoflop_points.csv"
)
# Porian et al. 2024 (arXiv 2406.19146), figure 1: exponent of N*(C) as the recipe is corrected step
# by step.
RECIPES = {
    ("base", "long", "kaplan", "kaplan", "train"): 0.834,
    ("base", "long", "kaplan", "standard", "val"): 0.701,
    ("base", "short", "kaplan", "standard", "val"): 0.604,
    ("base", "short", "chinchilla", "standard", "val"): 0.571,
    ("tuned", "short", "const", "standard", "val"): 0.497,
}


def grid(a=0.5, noise=0.0, seed=0, budgets=6, sizes=9, spread=1.5, curvature=0.05):
    """Valleys with a known bottom.

    N* = 1e7 (C / 1e18)^a, and log loss = level + curvature (ln N - ln N*)^2.
    """
    generator = np.random.default_rng(seed)
    flops = np.repeat(np.geomspace(1e17, 1e20, budgets), sizes)
    best = np.log(1e7) + a * np.log(flops / 1e18)
    log_size = best + np.tile(np.linspace(-spread, spread, sizes) + 0.1, budgets)
    log_loss = (
        1.2
        - 0.05 * np.log(flops / 1e18)
        + curvature * (log_size - best) ** 2
        + noise * generator.standard_normal(len(flops))
    )
    size = np.exp(log_size)
    return {
        "parameters": size,
        "tokens": flops / 6 / size,
        "flops": flops,
        "loss": np.exp(log_loss),
    }


@pytest.mark.parametrize("method", ["interpolation", "parabola"])
def test_a_known_exponent_is_found_within_its_interval(method):
    exact = isoflop(grid(), method=method, noise=1e-5)
    assert exact.exponent.value == pytest.approx(0.5, abs=2e-3)
    assert exact.token_exponent.value == pytest.approx(1 - exact.exponent.value, abs=1e-9)
    assert exact.parameters(1e24).value == pytest.approx(1e10, rel=0.03)
    assert exact.tokens(1e24).value == pytest.approx(
        1e24 / 6 / exact.parameters(1e24).value, rel=1e-6
    )
    inside = [
        low.low <= 0.5 <= low.high
        for low in (
            isoflop(grid(noise=0.003, seed=seed), method=method).exponent for seed in range(30)
        )
    ]
    assert 0.6 <= np.mean(inside) <= 0.97


def test_a_parabola_through_all_points_is_the_obvious_fit():
    points = grid(noise=0.002)
    found = isoflop(points, method="parabola", window=9, noise=0.002)
    for index, budget in enumerate(found.budgets):
        rows = slice(index * 9, index * 9 + 9)
        square, linear, _ = np.polyfit(
            np.log(points["parameters"][rows]), np.log(points["loss"][rows]), 2
        )
        assert math.log(budget.parameters.value) == pytest.approx(-linear / 2 / square, rel=1e-9)


def test_the_spline_bottom_is_that_of_a_dense_search():
    generator = np.random.default_rng(1)
    size = np.sort(generator.uniform(10, 16, 9))
    copies = 0.05 * (size - 13) ** 2 + 0.01 * generator.standard_normal((20, 9))
    found = valleys(size, copies, "interpolation", 5)
    for row, copy in enumerate(copies):
        lowest = int(copy.argmin())
        if lowest in (0, 8):
            continue
        dense = np.linspace(size[lowest - 1], size[lowest + 1], 200_001)
        values = scipy.interpolate.Akima1DInterpolator(size, copy)(dense)
        assert found.loss[row] == pytest.approx(values.min(), abs=1e-9)
        assert found.size[row] == pytest.approx(dense[values.argmin()], abs=1e-4)


def test_noise_is_measured_from_the_roughness():
    curves = []
    for seed in range(40):
        points = grid(noise=0.004, seed=seed, budgets=1)
        curves.append((np.log(points["parameters"]), np.log(points["loss"])))
    assert curve_noise(curves) == pytest.approx(0.004, rel=0.35)
    assert curve_noise([(np.arange(3.0), np.arange(3.0))]) is None
    assert isoflop(grid(), noise=0.01).noise_source == "given"
    assert (
        isoflop(
            {name: column[:9] for name, column in grid(budgets=3, sizes=3).items()}, noise=None
        ).noise_source
        == "assumed"
    )


def test_minima_at_the_edge_are_named_and_dropped_or_extended():
    points = grid(budgets=5)
    first = np.arange(45) < 4
    cut = {name: column[~first] for name, column in points.items()}
    found = isoflop(cut, noise=0.001)
    (dropped,) = found.dropped
    assert (
        dropped.edge == "low"
        and "smallest of 5 sizes" in dropped.reason
        and dropped.flops == pytest.approx(1e17)
    )
    extended = isoflop(cut, noise=0.001, edges="extend")
    assert not extended.dropped and extended.budgets[0].state == "extended"
    assert extended.budgets[0].parameters.value == pytest.approx(1e7 * 0.1**0.5, rel=0.02)
    few = {
        name: column[:11] for name, column in points.items()
    }  # one whole budget and two sizes of the next
    with pytest.raises(
        FitError, match=r"1 budgets have a minimum, at least 3 are needed .*2 sizes are too few"
    ):
        isoflop(few)


def test_noise_that_moves_the_minimum_to_the_edge_drops_the_budget():
    points = grid(budgets=5)
    first = np.arange(45) < 3
    found = isoflop({name: column[~first] for name, column in points.items()}, noise=0.01)
    assert any("noise of 1.00%" in item.reason for item in found.dropped)


def test_columns_are_checked_and_derived():
    points = grid()
    without = isoflop(
        {name: points[name] for name in ("parameters", "tokens", "loss")}, noise=0.001
    )
    assert without.exponent == isoflop(points, noise=0.001).exponent
    table = RunTable.read(points, counts="total")
    assert "counts total" in isoflop(table, noise=0.001).source
    seeds = {name: np.concatenate([column, column]) for name, column in points.items()}
    assert isoflop(seeds, noise=0.001).exponent.value == pytest.approx(0.5, abs=2e-3)
    with pytest.raises(FitError, match="missing: loss"):
        isoflop({"parameters": [1.0], "flops": [1.0]})
    with pytest.raises(FitError, match="flops or tokens"):
        isoflop({"parameters": [1.0], "loss": [1.0]})
    with pytest.raises(FitError, match=r"rows 2 \(-1\)"):
        isoflop({"parameters": [1.0, 2.0], "flops": [1.0, 1.0], "loss": [1.0, -1.0]})
    with pytest.raises(FitError, match="shape"):
        isoflop({"parameters": [1.0, 2.0], "flops": [1.0], "loss": [1.0, 1.0]})
    for options in (
        {"window": 2},
        {"bootstrap": Bootstrap(count=3)},
        {"level": 1.0},
        {"noise": -1.0},
    ):
        with pytest.raises(FitError):
            isoflop(points, **options)
    with pytest.raises(FitError, match="no best size"):
        without.parameters(-1.0)


@pytest.mark.skipif(
    not POINTS.exists(), reason="shared data isoflop-refinedweb is not on this machine"
)
@pytest.mark.parametrize("method", ["interpolation", "parabola"])
def test_published_exponents_are_reproduced(method):
    frame = pl.read_csv(POINTS).filter(pl.col("dataset") == "rw")
    found = []
    for recipe, published in RECIPES.items():
        part = frame.filter(
            [
                pl.col(name) == value
                for name, value in zip(
                    ("hparams", "warmup", "decay", "param_count", "eval_split"), recipe, strict=True
                )
            ]
        )
        result = isoflop(RunTable.read(part, parameters="params"), method=method)
        assert result.exponent.value == pytest.approx(published, abs=0.04)
        assert result.exponent.low < result.exponent.value < result.exponent.high
        found.append(result.exponent.value)
    assert found == sorted(found, reverse=True) and 0.47 <= found[-1] <= 0.53

"""Trouble in tables and fits: found where it was put, and seldom where it was not."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard import laws
from steelyard.errors import FitError
from steelyard.laws.decisions.fit_trouble import fit_trouble
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.tables.table import RunTable
from steelyard.laws.tables.table_trouble import table_trouble

DATA = Path(__file__).parents[3] / "shared" / "data"


def _runs(seed=0, count=60, noise=0.003):
    """Draw runs of a known law: sizes and tokens over two decades, apart from one another."""
    generator = np.random.default_rng(seed)
    size = 10 ** generator.uniform(7, 9, count)
    tokens = 10 ** generator.uniform(9, 11, count)
    loss = (1.8 + 480 / size**0.35 + 2000 / tokens**0.37) * np.exp(
        noise * generator.standard_normal(count)
    )
    return {"parameters": size, "tokens": tokens, "loss": loss}


def _kinds(points, **more):
    return [item.kind for item in table_trouble(points, **more)]


@given(st.integers(0, 10_000), st.integers(12, 120), st.sampled_from([0.001, 0.005, 0.01]))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_clean_tables_have_nothing_to_say(seed, count, noise):
    assert _kinds(_runs(seed, count, noise)) == []


def _other(seed, share=0.5):
    """Mark the rows of another recipe; the seed differs from that of the sizes."""
    return np.random.default_rng(seed + 1).random(60) < share


@pytest.mark.parametrize("step", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("share", [0.25, 0.5])
def test_a_column_of_recipes_is_named(step, share):
    named = []
    for seed in range(12):
        points, other = _runs(seed), _other(seed, share)
        points["loss"] = points["loss"] * np.where(other, 1 + step, 1.0)
        points["corpus"] = np.where(other, "web", "books")
        points["machine"] = np.where(_other(seed + 1), "a", "b")
        found = table_trouble(points)
        named.append([(item.kind, item.columns) for item in found] == [("mixed", ("corpus",))])
    assert np.mean(named) >= 0.92
    assert "--where corpus=books" in found[0].advice


@pytest.mark.parametrize("factor", [1 / math.log(2), 1.1, 0.8])
def test_two_levels_that_no_column_tells_apart(factor):
    told, right = [], []
    for seed in range(12):
        points, other = _runs(seed), _other(seed)
        points["loss"] = points["loss"] * np.where(other, factor, 1.0)
        (found,) = table_trouble(points)
        marked = np.isin(np.arange(1, 61), found.rows)
        told.append(found.kind == ("units" if factor > 1.4 else "mixed"))
        right.append(max((marked == other).mean(), (marked != other).mean()) > 0.9)
    assert np.mean(told) >= 0.92 and np.mean(right) >= 0.92


@pytest.mark.parametrize("column", ["parameters", "tokens"])
@pytest.mark.parametrize("unit", [1e3, 1e6, 1e9])
def test_half_a_column_in_other_units(column, unit):
    points = _runs()
    points[column] = points[column] / np.where(np.arange(60) < 30, unit, 1.0)
    found = table_trouble(points)[0]
    assert found.kind == "units" and found.columns == (column,)
    assert found.rows == tuple(range(1, 31)) and f"{unit:.0e}" in found.sentence


def test_flops_counted_in_two_ways():
    points = _runs()
    points["flops"] = 6 * points["parameters"] * points["tokens"]
    assert _kinds(points) == []
    points["flops"] *= np.where(np.arange(60) % 3 == 0, 0.6, 1.0)
    (found,) = table_trouble(points)
    assert found.kind == "units" and found.columns == ("flops",) and len(found.rows) == 20
    # Attention's share falls with size: that is one way of counting.
    points["flops"] = 6 * points["parameters"] * points["tokens"]
    points["flops"] *= 1 + 2e3 / points["parameters"] ** 0.5
    assert _kinds(points) == []


def test_runs_of_one_size_far_apart():
    points = _runs(count=20)
    twice = {name: np.concatenate([values, values[:2]]) for name, values in points.items()}
    twice["loss"][-2:] *= 1.1
    twice["note"] = np.array(["a", "b"] * 10 + ["c", "c"])
    (found,) = table_trouble(twice)
    assert found.kind == "mixed" and "10 %" in found.sentence and found.columns == ("note",)
    del twice["note"]
    (found,) = table_trouble(twice)
    assert "rows 1 and 21 have the same" in found.sentence or "rows 2 and 22" in found.sentence
    assert {1, 2, 21, 22} == set(found.rows)


def test_losses_that_rise_with_size_and_constant_ones():
    points = _runs()
    points["loss"] = 2 + 0.1 * np.log(points["parameters"]) + 50 / points["tokens"] ** 0.2
    (found,) = table_trouble(points)
    assert found.kind == "rising" and "rises with parameters at equal tokens" in found.sentence
    points["loss"] = np.full(60, 2.5)
    (found,) = table_trouble(points)
    assert found.kind == "constant" and "2.5 in every row" in found.sentence
    with pytest.raises(FitError, match=r"loss is 2\.5 in every row"):
        laws.fit(laws.chinchilla(), points, "loss")


def test_sizes_that_follow_tokens_and_a_lonely_ray():
    generator = np.random.default_rng(0)
    points = _runs()
    points["tokens"] = 20 * points["parameters"] * np.exp(0.1 * generator.standard_normal(60))
    (found,) = table_trouble(points)
    assert found.kind == "design" and "can hardly be told apart" in found.sentence
    slices = _runs(count=40)
    ray = np.geomspace(2e9, 5e10, 10)
    points = {
        "parameters": np.concatenate([slices["parameters"], ray]),
        "tokens": np.concatenate([slices["tokens"], 20 * ray]),
    }
    points["loss"] = 1.8 + 480 / points["parameters"] ** 0.35 + 2000 / points["tokens"] ** 0.37
    (found,) = table_trouble(points)
    assert found.kind == "design" and "largest runs all have about 20" in found.sentence


def test_the_largest_runs_on_one_side_and_a_bound():
    points = _runs(count=80, noise=0.004)
    size = points["parameters"] * points["tokens"]
    points["loss"] *= np.where(size > np.quantile(size, 0.85), 1.04, 1.0)
    fitted = laws.fit(laws.chinchilla(), points, "loss", bootstrap=Bootstrap(count=0))
    found = [item for item in fit_trouble(fitted) if item.kind == "one-sided"]
    assert "largest runs lie" in found[0].sentence and "above the law" in found[0].sentence
    clean = laws.fit(laws.chinchilla(), _runs(), "loss", bootstrap=Bootstrap(count=0))
    assert fit_trouble(clean) == ()
    assert fit_trouble(laws.published["besiroglu2024"].fit()) == ()


def test_a_blind_allocation_is_refused():
    points = _runs()
    points["loss"] = 1.8 + 2000 / points["tokens"] ** 0.37
    points["loss"] *= np.exp(0.003 * np.random.default_rng(1).standard_normal(60))
    flat = laws.fit(laws.chinchilla(), points, "loss", bootstrap=Bootstrap(count=0))
    with pytest.raises(FitError, match=r"does not fall with parameters|ended at a bound"):
        laws.allocate(flat, 1e20)


def test_a_law_that_falls_and_rises_again_is_not_blind():
    # Many parameters overfit few unique tokens: the largest run loses more than the smallest.
    generator = np.random.default_rng(2)
    points = {
        "parameters": np.exp(generator.uniform(np.log(1e7), np.log(1e10), 80)),
        "tokens": np.exp(generator.uniform(np.log(2e9), np.log(2e10), 80)),
        "unique_tokens": np.exp(generator.uniform(np.log(1e8), np.log(4e8), 80)),
    }
    size, tokens, unique = points.values()
    passes = tokens / unique - 1
    loss = 1.8 + 480 / size**0.35 + 2000 / tokens**0.37 + 0.004 * passes**0.6 * size / unique
    fit = laws.fit(laws.data.overfitting_penalty(), points, loss, bootstrap=Bootstrap(count=0))
    ends = {name: np.full(2, np.median(column)) for name, column in points.items()}
    ends["parameters"] = np.array([1e7, 1e10])
    assert np.diff(fit.predict(ends, extrapolate=True).value) > 0
    chosen = laws.data.allocate_repeated(fit, 1e19, 2e8, extrapolate=True)
    assert 1e7 < chosen.best.parameters.value < 3e9


def test_an_optimum_beside_the_runs_widens_and_says_so():
    points = _runs(count=80)
    far = points["tokens"] > 100 * points["parameters"]
    beside = {name: values[far] for name, values in points.items()}
    fitted = laws.fit(laws.chinchilla(), beside, "loss", bootstrap=Bootstrap(count=50))
    chosen = laws.allocate(fitted, 1e20)
    (edge,) = [item for item in chosen.trouble if item.kind == "edge"]
    assert "lie beyond those of the runs" in edge.sentence
    least = (beside["tokens"] / beside["parameters"]).min()
    assert chosen.parameters.low <= math.sqrt(1e20 / 6 / least) * 1.01
    whole = laws.allocate(
        laws.fit(laws.chinchilla(), points, "loss", bootstrap=Bootstrap(count=50)), 1e20
    )
    assert whole.trouble == ()


@pytest.mark.skipif(not DATA.exists(), reason="published tables are not here")
def test_published_tables():
    mixed = RunTable.read(
        DATA / "overtrained-lm" / "runs.csv", parameters="params", loss="loss_c4_val"
    )
    (found,) = table_trouble(mixed)
    assert found.kind == "mixed" and found.columns == ("train_set",)
    assert all(table_trouble(part) == () for part in mixed.groups("train_set").values())
    points = RunTable.read(
        DATA / "isoflop-refinedweb" / "isoflop_points.csv",
        parameters="params",
        flops_factor=math.inf,
    )
    (found,) = table_trouble(points)
    assert set(found.columns) == {"hparams", "warmup", "decay"}
    repeated = RunTable.read(
        DATA / "datablations-losses" / "runs.csv", parameters="params", loss="val_loss"
    )
    assert "unique_tokens" in table_trouble(repeated)[0].columns


@pytest.mark.skipif(not DATA.exists(), reason="published tables are not here")
def test_groups_of_one_recipe_have_nothing_to_say():
    said = {}
    for file in sorted((DATA / "scaling-runs").glob("*.csv")):
        # Shapes of one size differ in gemstones, and olmo-ladder mixes finished and running ones.
        if file.stem not in ("gemstones", "olmo-ladder"):
            for group, part in RunTable.read(file).groups("group").items():
                said[file.stem, group] = table_trouble(part)
    assert len(said) > 90 and {key: found for key, found in said.items() if found} == {}

"""Boosted trees on codes: against slow searches, on odd columns, killed and begun again."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

from steelyard.data.learning import (
    BoostConfig,
    FitOptions,
    TableModel,
    TreeLimits,
    auc,
    fit_table,
)
from steelyard.data.learning.bins import FeatureBins
from steelyard.data.learning.kernels import best_splits, fill_histograms, part_rows
from steelyard.data.learning.packing import BLOCK, PackScale, pack_rows, pack_slopes
from steelyard.data.learning.trees import Grower
from steelyard.data.table import DataTable
from steelyard.errors import ConfigError, DataError

RNG = np.random.default_rng(1)
COUNT = 3000


def frame(count: int = COUNT, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    x, z = rng.normal(size=count), rng.normal(size=count)
    color = rng.choice(["red", "green", "blue"], count)
    logit = 2 * x * (z > 0) + np.where(color == "red", 1.5, -0.5)
    y = rng.random(count) < 1 / (1 + np.exp(-logit))
    x = np.where(rng.random(count) < 0.1, np.nan, x)
    return pl.DataFrame(
        {"x": x, "z": z, "color": color, "bought": np.where(y, "yes", "no")}, nan_to_null=True
    )


def fitted(data: pl.DataFrame, target: str, folder: Path, **more):
    boosting = BoostConfig(**{"rounds": 40, "threads": 1} | more.pop("boosting", {}))
    options = FitOptions(target=target, boosting=boosting, **more)
    return fit_table(DataTable.scan(data), options, folder / "work")


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(30, 120), st.booleans())
def test_splits_and_parts_are_those_of_trying_everything(
    seed: int, count: int, is_number: bool
) -> None:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 6, (3, count)).astype(np.uint8)
    g = np.clip(rng.normal(size=count) / 3, -1, 1).astype(np.float32)
    h = (rng.random(count) / 4).astype(np.float32)
    packed = np.empty(count, np.int64)
    if is_number:
        h[:] = 1
        scale = PackScale.of_numbers(float(np.abs(g).max()))
        pack_slopes(g, 1 / scale.gradient, packed)
    else:
        scale = PackScale.of_classes()
        pack_rows(g, h, 1 / scale.gradient, 1 / scale.hessian, seed % 1000, packed)
    rows = np.arange(count, dtype=np.uint32)
    made, found = np.empty((3, 3, 256), np.int64), np.zeros((3, 3))
    fill_histograms(codes, rows, packed, not is_number, 0, 3, made)
    steps = scale.gradient, scale.hessian or 1.0
    best_splits(made, np.full(3, 6), *steps, 1.0, 5.0, 0, 3, found)
    assert made[:, 2].sum(axis=1).tolist() == [count] * 3

    def worth(mask: np.ndarray) -> float:
        return float(g[mask].sum(dtype=float)) ** 2 / (float(h[mask].sum(dtype=float)) + 1.0)

    for feature in range(3):
        best = 0.0
        for code, missing_left in itertools.product(range(1, 5), (False, True)):
            left = (codes[feature] <= code) & (codes[feature] > 0)
            left |= (codes[feature] == 0) & missing_left
            if min(left.sum(), (~left).sum()) >= 5:
                gain = worth(left) + worth(~left) - worth(np.ones(count, bool))
                best = max(best, gain)
        # Classes: a row's numbers are rounded to 1 in 16,383.
        assert found[feature, 0] == pytest.approx(best, abs=1e-5 if is_number else 2e-3)
    code, missing_left = 2, bool(seed % 2)
    is_left = ((codes[1] <= code) & (codes[1] > 0)) | ((codes[1] == 0) & missing_left)
    moved = rows.copy()
    total = part_rows(codes[1], moved, code, missing_left, np.empty(count, np.uint32))
    assert total == is_left.sum()
    assert moved.tolist() == [*rows[is_left].tolist(), *rows[~is_left].tolist()]


def test_packed_sums_have_no_bias_and_do_not_run_over() -> None:
    count = 3 * BLOCK + 5
    rng = np.random.default_rng(4)
    # Extremes of both signs, of which the sums are the largest that can be.
    for g, h in ((1.0, 0.25), (-1.0, 0.25), (1e-5, 1e-6)):
        gradients, hessians = np.full(count, g, np.float32), np.full(count, h, np.float32)
        scale, packed = PackScale.of_classes(), np.empty(count, np.int64)
        pack_rows(gradients, hessians, 1 / scale.gradient, 1 / scale.hessian, 3, packed)
        made = np.empty((1, 3, 256), np.int64)
        codes, rows = np.zeros((1, count), np.uint8), np.arange(count, dtype=np.uint32)
        fill_histograms(codes, rows, packed, True, 0, 1, made)
        slope, curve, held = made[0, :, 0].tolist()
        assert held == count
        # A step is rounded up or down by chance: the error of a sum grows with its root.
        assert slope * scale.gradient == pytest.approx(g * count, abs=4 * count**0.5 / 16383)
        assert curve * scale.hessian == pytest.approx(h * count, abs=4 * count**0.5 / 131068)
    slopes = rng.standard_cauchy(count).astype(np.float32)
    scale, packed = PackScale.of_numbers(float(np.abs(slopes).max())), np.empty(count, np.int64)
    pack_slopes(slopes, 1 / scale.gradient, packed)
    fill_histograms(codes, rows, packed, False, 0, 1, made)
    slope, curve, held = made[0, :, 0].tolist()
    assert curve == held == count
    assert slope * scale.gradient == pytest.approx(float(slopes.sum(dtype=float)), rel=1e-6)


def test_trees_do_not_depend_on_threads() -> None:
    count = 30_000
    codes = RNG.integers(0, 200, (7, count)).astype(np.uint8)
    g = np.clip(RNG.normal(size=count) / 4 + (codes[3] > 90) / 3, -1, 1).astype(np.float32)
    scale, packed = PackScale.of_classes(), np.empty(count, np.int64)
    pack_rows(g, np.full(count, 0.2, np.float32), 1 / scale.gradient, 1 / scale.hessian, 0, packed)
    found = []
    with ThreadPoolExecutor(2) as pool:
        for given in ((None, 1), (pool, 2)):
            grower = Grower(codes, np.full(7, 200), TreeLimits(), *given)
            rows = np.arange(count, dtype=np.uint32)
            found.append(
                grower.grow(rows, packed, scale, rows.copy(), 0.1, lambda rows, value: None)
            )
    for name in ("features", "splits", "children", "values"):
        assert np.array_equal(getattr(found[0], name), getattr(found[1], name))
    assert found[0].features[0] == 3


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(0, 253))
def test_codes_are_those_of_a_plain_search(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    cuts = np.unique(rng.integers(-50, 50, count) / 4)
    values = np.concatenate([rng.normal(size=50) * 9, cuts, [np.nan, np.inf, -np.inf, 1e308]])
    none = np.empty(0, np.uint64), np.empty(0, np.uint8)
    bins = FeatureBins(name="x", cuts=cuts, hashes=none[0], codes=none[1])
    import pyarrow as pa

    found = bins.encode(pa.record_batch({"x": values}))
    slow = np.searchsorted(cuts, values, side="left") + 1
    assert np.array_equal(found, np.where(np.isnan(values), 0, slow))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=2, max_size=40))
def test_auc_counts_pairs(pairs: list[tuple[bool, int]]) -> None:
    targets = np.array([float(one) for one, _ in pairs])
    scores = np.array([float(score) for _, score in pairs])
    won = [
        1.0 if a > b else 0.5 if a == b else 0.0
        for a in scores[targets > 0]
        for b in scores[targets == 0]
    ]
    assert auc(targets, scores) == pytest.approx(np.mean(won) if won else np.nan, nan_ok=True)


def test_classes_are_learned_from_numbers_gaps_and_texts(tmp_path: Path) -> None:
    found = fitted(frame(), "bought", tmp_path)
    measured = {item.name: item for item in found.scores}
    assert measured["AUC"].value > 0.75
    assert measured["AUC"].low < measured["AUC"].value < measured["AUC"].high
    assert measured["log loss"].value < measured["log loss"].baseline - 0.05
    assert found.model.target.classes == ("no", "yes")
    assert [name for name, _ in found.model.importances()][-1] in {"x", "z", "color"}
    assert not (tmp_path / "work").exists()
    found.model.save(tmp_path / "a.model")
    again = TableModel.open(tmp_path / "a.model")
    new = frame(500, seed=9).with_columns(pl.lit("violet").alias("color"))
    one, two = (
        list(model.predict(DataTable.scan(new.drop("bought")))) for model in (found.model, again)
    )
    assert one == two
    assert one[0].schema.names == ["prediction", "share of yes"]
    without = list(again.predict(DataTable.scan(new.select("z"))))
    assert sum(len(batch) for batch in without) == 500


def test_numbers_and_several_classes_are_learned(tmp_path: Path) -> None:
    data = frame().with_columns(
        (pl.col("z") * 3 + pl.col("x").fill_null(0)).alias("price"),
    )
    measured = {item.name: item for item in fitted(data, "price", tmp_path).scores}
    assert measured["R2"].value > 0.9
    three = fitted(data, "color", tmp_path, leave_out=["bought"])
    assert {item.name for item in three.scores} == {"log loss", "accuracy"}
    assert three.model.learner.start.shape == (3,)
    kinds = fitted(
        data.with_columns((pl.col("z") > 1).cast(pl.Int8).alias("flag")), "flag", tmp_path
    )
    assert kinds.model.target.classes == ("0", "1")
    assert any("column z alone tells flag" in line for line in kinds.warnings)


def test_odd_columns_are_told_and_do_no_harm(tmp_path: Path) -> None:
    data = frame().with_columns(
        pl.lit(3.0).alias("same"),
        pl.lit(None, pl.Float64).alias("nothing"),
        pl.Series("wild", [np.inf, -np.inf, np.nan] * (COUNT // 3)),
        pl.Series("bought", ["yes", "no", None] * (COUNT // 3)),
    )
    found = fitted(data, "bought", tmp_path)
    assert found.left_out == COUNT // 3
    assert found.rows == COUNT - COUNT // 3
    told = " ".join(found.warnings)
    assert "column same is constant" in told
    assert "column nothing is empty" in told


@pytest.mark.parametrize(
    ("change", "options", "told"),
    [
        ({"bought": "yes"}, {}, "1 classes"),
        ({}, {"target": "nobody"}, "no column 'nobody'"),
        ({}, {"held_share": 1.0}, "kept aside"),
        ({}, {"task": "regress"}, "not numbers"),
        ({}, {"leave_out": ["x", "z", "color"]}, "no column is left"),
    ],
)
def test_what_cannot_be_learned_is_refused(tmp_path: Path, change, options, told: str) -> None:
    data = frame(300).with_columns(**{name: pl.lit(value) for name, value in change.items()})
    given = {"target": "bought"} | options
    with pytest.raises((ConfigError, DataError), match=told):
        fitted(data, given.pop("target"), tmp_path, **given)


def test_a_class_of_one_row_is_refused_by_name(tmp_path: Path) -> None:
    data = frame(300).with_columns(pl.Series("bought", ["maybe", *(["yes", "no"] * 150)][:300]))
    with pytest.raises(DataError, match="'maybe'"):
        fitted(data, "bought", tmp_path)


def test_mapped_rows_change_nothing(tmp_path: Path) -> None:
    one, two = (
        fitted(frame(), "bought", tmp_path / name, memory=memory)
        for name, memory in (("a", ""), ("b", "200MB"))
    )
    assert one.scores == two.scores
    numbers = [
        fitted(frame(), "z", tmp_path / name, memory=memory).scores
        for name, memory in (("c", ""), ("d", "200MB"))
    ]
    assert numbers[0] == numbers[1]


def test_equal_keys_stay_on_one_side(tmp_path: Path) -> None:
    keys = [f"customer {number}" for number in RNG.integers(0, 40, COUNT)]
    data = frame().with_columns(pl.Series("who", keys))
    found = fitted(data, "bought", tmp_path, by="who", leave_out=["who"])
    assert 0 < found.held < COUNT
    # 40 keys: were rows parted by themselves, a share of .2 would hold 600 of 3,000 rows ± 22.
    sizes = data.group_by("who").len()["len"].to_numpy()
    sums = {0}
    for size in sizes.tolist():
        sums |= {total + size for total in sums}
    assert found.held in sums


def test_rounds_end_when_rows_kept_aside_gain_no_more(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    noise = pl.DataFrame({"x": rng.normal(size=800), "y": rng.choice(["a", "b"], 800)})
    found = fitted(noise, "y", tmp_path, boosting={"rounds": 300, "patience": 5})
    assert len(found.model.learner.trees) < 100
    assert found.model.learner.best_rounds <= len(found.model.learner.trees) - 5


class _KilledError(Exception):
    pass


@pytest.mark.parametrize("at", [("bins", 0.0), ("codes", 0.0), ("trees", 0.3), ("trees", 0.8)])
def test_a_fit_that_was_killed_ends_with_the_same_trees(
    tmp_path: Path, at: tuple[str, float]
) -> None:
    frame().write_parquet(tmp_path / "t.parquet")
    table = DataTable.scan(str(tmp_path / "t.parquet"))
    options = FitOptions(target="bought", boosting=BoostConfig(rounds=40, threads=1))
    whole = fit_table(table, options, tmp_path / "one")

    def stop(what: str, share: float) -> None:
        if what == at[0] and share > at[1]:
            raise _KilledError

    with pytest.raises(_KilledError):
        fit_table(table, options, tmp_path / "two", done=stop)
    again = fit_table(table, options, tmp_path / "two")
    whole.model.save(tmp_path / "one.model")
    again.model.save(tmp_path / "two.model")
    assert (tmp_path / "one.model").read_bytes() == (tmp_path / "two.model").read_bytes()
    # Other settings begin anew in the same folder.
    with pytest.raises(_KilledError):
        fit_table(table, options, tmp_path / "two", done=stop)
    other = FitOptions(target="bought", seed=5, boosting=BoostConfig(rounds=5, threads=1))
    assert fit_table(table, other, tmp_path / "two").held != whole.held


def test_models_of_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "no.model").write_bytes(b"nothing of the kind")
    with pytest.raises(DataError):
        TableModel.open(tmp_path / "no.model")

"""Rows as features: standardized, flagged, and in fewer columns."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

from steelyard.data.features import (
    FeatureEncoder,
    OddNumbersFold,
    PrincipalComponents,
    RandomProjection,
    find_features,
    nearest_rows,
    parse_reduction,
    randomized_components,
    write_reduced,
)
from steelyard.data.sketch import Covariance
from steelyard.data.table import DataTable
from steelyard.errors import ConfigError, DataError

_spec = importlib.util.spec_from_file_location(
    "check_fold", Path(__file__).parent / "table" / "check_fold.py"
)
_suite = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_suite)
RNG = np.random.default_rng(0)


def frame(count: int = 1000) -> pl.DataFrame:
    rng = np.random.default_rng(1)
    x = np.where(rng.random(count) < 0.2, np.nan, rng.normal(5, 3, count))
    color = pl.Series(rng.choice(["red", "green", ""], count)).replace({"": None})
    wild = np.where(np.arange(count) % 10 == 0, np.inf, rng.random(count))
    columns = {"x": x, "color": color, "wild": wild, "same": np.ones(count)}
    return pl.DataFrame(columns | {"nothing": [None] * count}, nan_to_null=True).with_columns(
        pl.col("nothing").cast(pl.Float64)
    )


def test_features_have_no_mean_and_the_variance_of_one_column() -> None:
    table = DataTable.scan(frame())
    found = find_features(table, table.schema.names)
    assert found.encoder.names == ["x", "color", "wild"]
    # x and wild have a number and a flag for gaps, color a flag for each of two values.
    assert found.encoder.owners.tolist() == [0, 0, 1, 1, 2, 2]
    told = " ".join(found.warnings)
    for part in ("same is constant", "nothing is empty", "wild has 100 infinite values"):
        assert part in told
    rows = np.concatenate([found.encoder.encode(batch) for batch in table.batches])
    assert np.abs(rows.mean(axis=0)).max() < 1e-5
    assert np.allclose(rows[:, [1, 5]].var(axis=0), 1, atol=1e-4)
    assert rows[:, 2:4].var(axis=0).sum() == pytest.approx(1, abs=1e-4)
    again = FeatureEncoder.restored(found.encoder.about(), found.encoder.sections())
    assert np.array_equal(again.encode(next(iter(table.batches))), rows)
    x = frame()["x"].to_numpy()
    back = found.encoder.raw_means(rows)
    assert np.allclose(back[~np.isnan(x), 0], x[~np.isnan(x)], atol=1e-5)
    assert np.isnan(back[:, 1]).all()
    sums = found.encoder.by_column(np.arange(6.0))
    assert sums.tolist() == [1, 5, 9]
    bare = find_features(table, table.schema.names, flags_missing=False)
    assert bare.encoder.width == 4


def test_what_lacks_a_column_counts_as_missing() -> None:
    table = DataTable.scan(frame())
    found = find_features(table, ["x", "color"])
    row = found.encoder.encode(next(DataTable.scan(pl.DataFrame({"other": [1.0]})).batches))
    assert row[0, 0] == 0
    assert row[0, 1] > 0
    assert (row[0, 2:] < 0).all()


def test_a_table_of_equal_rows_has_no_features() -> None:
    table = DataTable.scan(pl.DataFrame({"a": [1.0, 1.0], "b": ["x", "x"]}))
    with pytest.raises(DataError, match="no column varies"):
        find_features(table, ["a", "b"])


def test_odd_numbers_are_a_fold(tmp_path: Path) -> None:
    for at in range(3):
        frame(300 + at).write_parquet(tmp_path / f"{at}.parquet")
    table = DataTable.scan(tmp_path)
    _suite.check_fold(OddNumbersFold(("x", "wild")), table)
    found = table.fold(OddNumbersFold(("wild",))).results
    assert next(iter(found.values())) == {"wild": (0, 92)}


def rotated(count: int, width: int) -> np.ndarray:
    scales = 2.0 ** -np.arange(width)
    turn = np.linalg.qr(RNG.normal(size=(width, width)))[0]
    return RNG.normal(size=(count, width)) * scales @ turn + 3


def test_components_are_those_of_the_decomposition_and_of_merged_parts() -> None:
    rows = rotated(500, 6)
    whole, first, later = Covariance(6), Covariance(6), Covariance(6)
    whole.update(rows)
    first.update(rows[:123])
    later.update(rows[123:])
    first.merge(later)
    _, singular, directions = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    for spread in (whole, first):
        found = PrincipalComponents.of(spread, 3)
        assert np.allclose(np.abs((found.directions * directions[:3]).sum(axis=1)), 1, atol=1e-9)
        assert np.allclose(found.variances, singular[:3] ** 2 / 499)
        assert found.explained == pytest.approx((singular[:3] ** 2).sum() / (singular**2).sum())
        left = found.residuals(rows)
        assert np.allclose(left @ found.directions.T, 0, atol=1e-9)
    again = PrincipalComponents.restored(found.sections())
    assert np.array_equal(again.apply(rows), found.apply(rows))


def test_random_directions_come_close_in_four_passes() -> None:
    rows, calls = rotated(400, 30), []

    def blocks():
        calls.append(1)
        return (rows[first : first + 90] for first in range(0, 400, 90))

    found = randomized_components(blocks, 30, 5)
    spread = Covariance(30)
    spread.update(rows)
    exact = PrincipalComponents.of(spread, 5)
    cosines = np.linalg.svd(found.directions @ exact.directions.T)[1]
    assert np.arccos(np.clip(cosines.min(), -1, 1)) < 1e-3
    assert np.allclose(found.variances, exact.variances, rtol=1e-6)
    assert found.explained == pytest.approx(exact.explained)
    assert len(calls) == 4


def test_projections_keep_squared_distances() -> None:
    rows = RNG.normal(size=(40, 500))
    # So many columns keep all of them within a half: 4 ln(rows) / (d^2 / 2 - d^3 / 3).
    count = math.ceil(4 * math.log(40) / (0.5**2 / 2 - 0.5**3 / 3))
    small = RandomProjection.drawn(500, count, seed=3).apply(rows)
    pairs = np.triu_indices(40, 1)
    before, after = (((r[pairs[0]] - r[pairs[1]]) ** 2).sum(axis=1) for r in (rows, small))
    assert np.abs(after / before - 1).max() < 0.5


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.integers(2, 30), st.integers(1, 4))
def test_nearest_rows_are_those_of_sorting_all(seed: int, count: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    kept = rng.integers(0, 4, (count, width)).astype(np.float32)
    asked = rng.integers(0, 4, (5, width)).astype(np.float32)
    places, squares = nearest_rows(kept, asked, min(3, count))
    apart = ((asked[:, None] - kept) ** 2).sum(axis=2)
    order = np.argsort(apart, axis=1, kind="stable")[:, : min(3, count)]
    assert np.array_equal(places, order)
    assert np.allclose(squares, np.take_along_axis(apart, order, axis=1), atol=1e-4)


def test_fewer_columns_are_written(tmp_path: Path) -> None:
    data = pl.DataFrame({f"c{at}": column for at, column in enumerate(rotated(300, 6).T)})
    found = write_reduced(DataTable.scan(data), "pca:2", tmp_path / "out.parquet")
    written = pl.read_parquet(tmp_path / "out.parquet")
    assert written.columns == ["c0", "c1"]
    assert (found.rows, found.width, found.count) == (300, 6, 2)
    assert abs(float(np.corrcoef(written.to_numpy().T)[0, 1])) < 1e-4
    assert not list(tmp_path.glob("*.work"))


@pytest.mark.parametrize("text", ["pca", "pca:", "pca:0", "svd:3", "pca:x"])
def test_reductions_of_other_forms_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="reduce is"):
        parse_reduction(text)

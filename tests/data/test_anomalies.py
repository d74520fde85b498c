"""Odd rows: detectors against slow versions, and tables with rows planted in them."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

pytest.importorskip("pyarrow")

from steelyard.data.anomalies import (
    DetectOptions,
    HalfSpaceTrees,
    IsolationForest,
    LocalOutliers,
    MahalanobisDetector,
    ResidualDetector,
    detect_table,
    drops,
    shrunk_covariance,
)
from steelyard.data.learning import auc
from steelyard.data.sketch import Covariance
from steelyard.data.table import DataTable
from steelyard.errors import ConfigError, DataError

RNG = np.random.default_rng(0)
METHODS = ["forest", "distance", "components", "neighbours", "stream"]


def rows_with_odd(count: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    base = rng.normal(size=(count, 2))
    rows = np.column_stack([base, base @ [1, 1] / 2**0.5 + rng.normal(size=count) / 5])
    is_odd = np.arange(count) % 100 == 57
    # The sum no longer fits, and is far out as well.
    rows[is_odd, 2] += 6.0
    return rows, is_odd


def detectors(rows: np.ndarray) -> dict:
    spread = Covariance(rows.shape[1])
    spread.update(rows)
    stream = HalfSpaceTrees(width=rows.shape[1])
    stream.update(rows)
    return {
        "forest": IsolationForest.fit(rows),
        "distance": MahalanobisDetector.fit(lambda: [rows]),
        "components": ResidualDetector.fit(spread),
        "neighbours": LocalOutliers.fit(rows),
        "stream": stream,
    }


def test_all_detectors_find_planted_rows_and_blame_a_column() -> None:
    rows, is_odd = rows_with_odd()
    for name, detector in detectors(rows).items():
        assert auc(is_odd.astype(float), detector.score(rows)) > 0.9, name
        blame = detector.blame(rows[is_odd])
        assert blame.shape == (10, 3)
        assert (blame >= 0).all()
        # The residual of one direction is shared by what makes that up.
        if name != "components":
            assert (blame.argmax(axis=1) == 2).mean() >= 0.8, name


def test_distances_are_those_of_the_formula() -> None:
    rows, _ = rows_with_odd(300)
    spread = Covariance(3)
    spread.update(rows)
    shrunk = shrunk_covariance(spread)
    given = np.cov(rows.T)
    trace, squares = np.trace(given), (given**2).sum()
    share = ((1 - 2 / 3) * squares + trace**2) / ((301 - 2 / 3) * (squares - trace**2 / 3))
    assert np.allclose(shrunk, (1 - share) * given + share * trace / 3 * np.eye(3))
    detector = MahalanobisDetector(mean=rows.mean(axis=0), precision=np.linalg.inv(shrunk))
    apart = rows[0] - rows.mean(axis=0)
    assert detector.score(rows)[0] == pytest.approx(apart @ np.linalg.solve(shrunk, apart))
    # The blame of a column is what its best value would save.
    best = min(
        detector.score(np.array([[rows[0, 0], rows[0, 1], value]]))[0]
        for value in np.linspace(-10, 10, 20_001)
    )
    assert detector.blame(rows)[0, 2] == pytest.approx(detector.score(rows)[0] - best, abs=1e-4)
    parts = MahalanobisDetector.fit(lambda: [rows[:100], rows[100:]])
    assert np.allclose(parts.precision, MahalanobisDetector.fit(lambda: [rows]).precision)


def test_equal_columns_leave_distances_finite() -> None:
    rows = np.repeat(RNG.normal(size=(50, 1)), 3, axis=1)
    detector = MahalanobisDetector.fit(lambda: [rows])
    assert np.isfinite(detector.score(rows)).all()


def test_local_outliers_are_those_of_the_definition() -> None:
    rows = RNG.normal(size=(60, 2)).astype(np.float32)
    count = 5
    found = LocalOutliers.fit(rows, count).score(rows)
    apart = np.sqrt(((rows[:, None] - rows).astype(float) ** 2).sum(axis=2))
    np.fill_diagonal(apart, np.inf)
    near = np.argsort(apart, axis=1)[:, :count]
    reach = np.sort(apart, axis=1)[:, count - 1]
    density = np.array(
        [1 / np.mean([max(reach[o], apart[p, o]) for o in near[p]]) for p in range(60)]
    )
    slow = [density[near[p]].mean() / density[p] for p in range(60)]
    assert np.allclose(found, slow, rtol=1e-3)


def test_an_isolation_forest_follows_its_trees() -> None:
    rows = RNG.normal(size=(300, 3))
    forest = IsolationForest.fit(rows, trees=7, sample=64, flagged=0.1)
    lengths = []
    for root in forest.roots:
        node = root
        while forest.columns[node] >= 0:
            is_left = rows[5, forest.columns[node]] < forest.cuts[node]
            node = forest.left[node] if is_left else forest.right[node]
        lengths.append(forest.lengths[node])
    mean = 2 * (np.log(63) + 0.5772156649015329) - 2 * 63 / 64
    assert forest.score(rows)[5] == pytest.approx(2 ** (-np.mean(lengths) / mean))
    assert (forest.score(rows) > forest.threshold).mean() == pytest.approx(0.1, abs=0.01)
    saved = drops(forest, rows[:2], np.median(rows, axis=0))
    assert np.array_equal(saved, forest.blame(rows[:2]))


def test_half_spaces_do_not_depend_on_how_the_stream_is_cut() -> None:
    rows = RNG.normal(size=(2000, 2))
    rows[1500] = [3.9, -3.9]
    whole = HalfSpaceTrees(width=2, window=200)
    found = whole.update(rows)
    parts = HalfSpaceTrees(width=2, window=200)
    cut = np.concatenate([parts.update(rows[:900]), parts.update(rows[900:])])
    assert np.array_equal(found, cut)
    assert found.argmax() == 1500
    with pytest.raises(DataError, match="no rows were seen"):
        HalfSpaceTrees(width=2).score(rows)
    with pytest.raises(ConfigError, match="depth"):
        HalfSpaceTrees(width=2, depth=40)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("reduce", ["", "pca:3"])
def test_tables_tell_their_odd_rows(tmp_path: Path, method, reduce: str) -> None:
    rows, is_odd = rows_with_odd()
    columns = {"a": rows[:, 0], "b": rows[:, 1] * 1000, "sum": rows[:, 2]}
    data = pl.DataFrame({"id": np.arange(1000), "same": np.ones(1000)} | columns)
    options = DetectOptions(method=method, share=0.01, leave_out=["id"], reduce=reduce)
    found = detect_table(DataTable.scan(data), options, tmp_path / "work")
    assert auc(is_odd.astype(float), found.scores) > 0.85
    assert found.count == pytest.approx(10, abs=2)
    assert "column same is constant: left out" in found.warnings
    assert [row.score for row in found.odd] == sorted((r.score for r in found.odd), reverse=True)
    if method in {"distance", "neighbours"} and not reduce:
        assert {row.place for row in found.odd} == set(np.flatnonzero(is_odd).tolist())
    if method == "distance" and not reduce:
        assert found.columns[0][0] == "sum"
        name, share, value = found.odd[0].reasons[0]
        assert name == "sum"
        assert 0.3 < share <= 1
        assert value == pytest.approx(rows[found.odd[0].place, 2], abs=1e-3)
        assert "sum = " in found.odd[0].told
    batch = next(found.batches())
    assert batch.schema.names == ["score", "odd", "why"]
    assert sum(batch.column("odd").to_pylist()) == found.count
    assert not (tmp_path / "work").exists()


def test_what_cannot_be_detected_is_refused(tmp_path: Path) -> None:
    table = DataTable.scan(pl.DataFrame({"x": [1.0, 2.0], "same": [1.0, 1.0]}))
    with pytest.raises(ConfigError, match="odd rows"):
        DetectOptions(share=0.0)
    with pytest.raises(ConfigError, match="trees"):
        DetectOptions(trees=0)
    with pytest.raises(DataError, match="no column varies"):
        detect_table(table, DetectOptions(leave_out=["x"]), tmp_path / "work")
    for detector in (IsolationForest.fit, LocalOutliers.fit):
        with pytest.raises(DataError, match="two rows"):
            detector(np.zeros((1, 2)))

"""Clusters and detectors in files: the same answers later, and other columns refused."""

import numpy as np
import polars as pl
import pytest

pytest.importorskip("pyarrow")

from steelyard.data.anomalies import DetectOptions, DetectorModel, detect_table
from steelyard.data.clustering import ClusterModel, ClusterOptions, cluster_table
from steelyard.data.table import DataTable
from steelyard.errors import DataError


def frame(count: int = 600, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    part = rng.integers(0, 3, count)
    middles = np.array([[0, 0], [9, 0], [0, 9]])
    rows = middles[part] + rng.normal(size=(count, 2))
    shop = np.array(["north", "south", "east"])[part]
    rows[7] = 40
    gaps = np.where(rng.random(count) < 0.02, np.nan, rows[:, 1])
    return pl.DataFrame({"x": rows[:, 0], "y": gaps, "shop": shop}, nan_to_null=True)


def columns(batches, *names):
    held = list(batches)
    return [[value for batch in held for value in batch[name].to_pylist()] for name in names]


@pytest.mark.parametrize("method", ["kmeans", "mixture", "density", "birch"])
@pytest.mark.parametrize("reduce", ["", "pca:2"])
def test_rows_come_into_their_clusters_again(tmp_path, method: str, reduce: str) -> None:
    table = DataTable.scan(frame())
    options = ClusterOptions(method=method, clusters=4, reduce=reduce)
    found = cluster_table(table, options, tmp_path / "work")
    found.model.save(tmp_path / "a.model")
    again = ClusterModel.open(tmp_path / "a.model")
    fresh = DataTable.scan(frame(200, seed=5))
    assert list(again.predict(fresh)) == list(found.model.predict(fresh))
    labels, strengths = columns(again.predict(table), "cluster", "strength")
    assert labels == found.labels.tolist()
    assert np.allclose(strengths, found.strengths, rtol=1e-4, atol=1e-4)
    assert set(columns(again.predict(fresh), "cluster")[0]) <= {-1, *range(len(found.sizes))}


@pytest.mark.parametrize("method", ["forest", "distance", "components", "neighbours", "stream"])
def test_rows_are_as_odd_again(tmp_path, method: str) -> None:
    table = DataTable.scan(frame())
    found = detect_table(table, DetectOptions(method=method), tmp_path / "work")
    found.model.save(tmp_path / "a.model")
    again = DetectorModel.open(tmp_path / "a.model")
    fresh = DataTable.scan(frame(200, seed=5))
    said = list(again.predict(fresh))
    assert said == list(found.model.predict(fresh))
    scores, odd, why = columns(again.predict(table), "score", "odd", "why")
    assert all((reason is not None) == is_odd for is_odd, reason in zip(odd, why, strict=True))
    if method != "stream":  # its scores are of the rows before
        assert np.array_equal(np.array(scores, np.float32), found.scores)
        assert sum(odd) == found.count
        assert odd[7]
        assert why[7] == next(row.told for row in found.odd if row.place == 7)


def test_streamed_trees_go_on_learning(tmp_path) -> None:
    rows = np.random.default_rng(0).normal(size=(900, 3))
    table = DataTable.scan(pl.DataFrame(rows[:600], schema=["a", "b", "c"]))
    found = detect_table(table, DetectOptions(method="stream"), tmp_path / "work")
    found.model.save(tmp_path / "a.model")
    again = DetectorModel.open(tmp_path / "a.model").fitted.detector
    assert np.array_equal(again.update(rows[600:]), found.model.fitted.detector.update(rows[600:]))


def test_other_columns_and_other_files_are_refused(tmp_path) -> None:
    found = cluster_table(DataTable.scan(frame()), ClusterOptions(), tmp_path / "work")
    frame(20).drop("y").write_csv(tmp_path / "narrow.csv")
    with pytest.raises(DataError, match=r"narrow\.csv has no column 'y'"):
        found.model.predict(DataTable.scan(str(tmp_path / "narrow.csv")))
    frame(20).with_columns(pl.lit("much").alias("x")).write_csv(tmp_path / "text.csv")
    with pytest.raises(DataError, match=r"column 'x' of .*text\.csv is text"):
        found.model.predict(DataTable.scan(str(tmp_path / "text.csv")))
    found.model.save(tmp_path / "a.model")
    with pytest.raises(DataError, match="is no model of detector"):
        DetectorModel.open(tmp_path / "a.model")
    damaged = bytearray((tmp_path / "a.model").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "b.model").write_bytes(damaged)
    with pytest.raises(DataError, match=r"b\.model"):
        ClusterModel.open(tmp_path / "b.model")

"""Numbers far out: columns are scaled by the others, and nothing changes where there are none."""

import numpy as np
import polars as pl
import pytest

pytest.importorskip("pyarrow")

from steelyard.data.anomalies import DetectOptions, detect_table
from steelyard.data.features.far_out import trimmed_scale
from steelyard.data.learning import (
    FitOptions,
    LinearConfig,
    NeighbourConfig,
    RidgeConfig,
    TableModel,
    fit_table,
)
from steelyard.data.sketch import KllQuantiles, Moments
from steelyard.data.table import DataTable

LEARNERS = {
    "linear": LinearConfig(epochs=6),
    "neighbours": NeighbourConfig(),
    "ridge": RidgeConfig(),
}


def scale_of(values: np.ndarray):
    sketch, spread = KllQuantiles(1024), Moments()
    sketch.update(values)
    spread.update(values)
    return trimmed_scale(sketch, spread)


@pytest.mark.parametrize("far", [1e6, -1e12, 1e200])
@pytest.mark.parametrize("count", [60, 5000])
def test_a_number_far_out_does_not_make_the_scale(far: float, count: int) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(5, 2, count)
    values[3] = far
    found = scale_of(values)
    assert found is not None
    assert found.mean == pytest.approx(5, abs=0.8)
    assert found.scale == pytest.approx(2, rel=0.25)
    assert found.low < np.delete(values, 3).min()
    assert np.delete(values, 3).max() < found.high < 100


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(1).normal(size=3000),
        np.random.default_rng(1).standard_t(4, 3000),
        np.random.default_rng(1).lognormal(size=3000),
        np.random.default_rng(1).exponential(size=50),
        (np.arange(3000) < 6) * 1.0,  # a flag of few rows is no number far out
        np.array([1.0, 1e9]),
        np.empty(0),
    ],
)
def test_other_columns_stay_as_they_are(values: np.ndarray) -> None:
    assert scale_of(values) is None


def frame(far: bool) -> pl.DataFrame:
    rng = np.random.default_rng(2)
    x, z = rng.normal(size=(2, 1500))
    y = np.where(x + z + rng.normal(size=1500) > 0, "yes", "no")
    price = x - 2 * z + rng.normal(size=1500) / 3
    if far:
        x[7], z[11] = 1e12, -1e9
    return pl.DataFrame({"x": x, "z": z, "y": y, "price": price})


@pytest.mark.parametrize("learner", list(LEARNERS))
def test_learners_bear_a_number_far_out(tmp_path, learner: str) -> None:
    target, other = ("price", "y") if learner == "ridge" else ("y", "price")
    options = FitOptions(target=target, learner=LEARNERS[learner], leave_out=[other])
    plain, found = (
        fit_table(DataTable.scan(frame(far)), options, tmp_path / "work") for far in (False, True)
    )
    scores = [
        next(score.value for score in item.scores if score.name in {"AUC", "R2"})
        for item in (plain, found)
    ]
    assert scores[0] > 0.8
    assert scores[1] == pytest.approx(scores[0], abs=0.01)
    assert "column x has values far out" in " ".join(found.warnings)
    assert not plain.warnings
    found.model.save(tmp_path / "a.model")
    again = TableModel.open(tmp_path / "a.model")
    table = DataTable.scan(frame(True))
    assert list(again.predict(table)) == list(found.model.predict(table))


def test_detectors_still_find_it(tmp_path) -> None:
    table = DataTable.scan(frame(True).select("x", "z"))
    found = detect_table(table, DetectOptions(method="distance", share=0.002), tmp_path / "work")
    assert {row.place for row in found.odd} >= {7, 11}

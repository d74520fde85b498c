"""Columns that alone tell a target: planted ones are named, those of real tables are not."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

pytest.importorskip("pyarrow")

from steelyard.data.learning import BoostConfig, FitOptions, LinearConfig, fit_table
from steelyard.data.table import DataTable

LEARNERS = {"boosted": BoostConfig(rounds=2, threads=1), "linear": LinearConfig(epochs=2)}
SHARED = next(
    (at / "shared/data" for at in Path(__file__).parents if (at / "shared/data").is_dir()), None
)
REAL = {
    "molecules/delaney-processed.csv": "measured log solubility in mols per litre",
    "epoch-training-costs/models.csv": "domain",
    "lr-batch-sweep/dense.csv": "loss",
    "lr-schedule-curves/curves_100m.csv": "schedule",
}


def warnings_of(frame: pl.DataFrame, target: str, learner: str, folder: Path, **more) -> str:
    options = FitOptions(target=target, learner=LEARNERS[learner], **more)
    return " ".join(fit_table(DataTable.scan(frame), options, folder / "work").warnings)


@pytest.mark.parametrize("learner", list(LEARNERS))
def test_columns_that_hold_classes_are_named(tmp_path, learner: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=1200)
    kind = np.digitize(x + rng.normal(size=1200) / 2, [-1, 0.5])
    is_low = kind == 0
    columns = {
        "usual": x,
        "one class": is_low * 1.0 + rng.normal(size=1200) / 1e3,
        "code": np.array([7.0, -2.0, 30.0])[kind],
        "spread": kind * 10 + rng.random(1200),
        "word": np.array(["a", "b", "c"])[kind],
        "row": [f"row {at}" for at in range(1200)],
        "kind": np.array(["low", "mid", "top"])[kind],
    }
    told = warnings_of(pl.DataFrame(columns), "kind", learner, tmp_path)
    for name in ("code", "spread", "word"):
        assert f"column {name} alone tells kind (AUC of each class 1.0000)" in told
    for name in ("usual", "one class", "row"):
        assert f"column {name} alone" not in told


@pytest.mark.parametrize("learner", list(LEARNERS))
def test_columns_that_hold_numbers_are_named(tmp_path, learner: str) -> None:
    rng = np.random.default_rng(1)
    price = rng.lognormal(3, 1, 1500)
    level = rng.integers(0, 9, 1500)
    gaps = np.where(rng.random(1500) < 0.7, np.nan, price)
    columns = {
        "usual": price * rng.lognormal(0, 0.3, 1500),
        "with tax": np.round(price * 1.19, 2),
        "down": -np.log(price),
        "folded": np.abs(price),
        "mostly missing": gaps,
        "level": level,
        "price": price,
    }
    frame = pl.DataFrame(columns, nan_to_null=True)
    told = warnings_of(frame, "price", learner, tmp_path)
    for name in ("with tax", "down", "folded"):
        assert f"column {name} alone tells price (rank correlation 1.0000)" in told
    for name in ("usual", "mostly missing", "level"):
        assert f"column {name} alone" not in told
    names = pl.DataFrame({"level": level, "word": [f"step {at}" for at in level], "x": price})
    told = warnings_of(names, "level", learner, tmp_path, task="regress")
    assert "column word alone tells level (rank correlation 1.0000)" in told
    assert "column x alone" not in told


@pytest.mark.skipif(SHARED is None, reason="shared/data is not there")
@pytest.mark.parametrize("path", list(REAL))
def test_real_tables_raise_no_alarm(tmp_path, path: str) -> None:
    assert SHARED is not None
    target = REAL[path]
    frame = pl.read_csv(SHARED / path, infer_schema_length=None).drop_nulls(target)
    if path.endswith("models.csv"):
        frame = frame.filter(pl.len().over(target) >= 20)
    if target == "loss":
        frame = frame.drop("smooth_loss")  # a real one, see below
    for learner in LEARNERS:
        assert "alone tells" not in warnings_of(frame, target, learner, tmp_path)


@pytest.mark.skipif(SHARED is None, reason="shared/data is not there")
def test_a_real_leak_is_named(tmp_path) -> None:
    assert SHARED is not None
    frame = pl.read_csv(SHARED / "scaling-runs/olmo-ladder.csv", infer_schema_length=None)
    told = warnings_of(frame.drop_nulls("loss"), "loss", "boosted", tmp_path)
    assert "column loss_pile alone tells loss" in told

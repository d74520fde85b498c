"""Perceptrons of tables: learned from rows that lie on disk, handed in as an object."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import polars as pl
import pytest
import torch

pytest.importorskip("pyarrow")

from steelyard.data.features import FeatureStore
from steelyard.data.learning import (
    CompareOptions,
    FitJob,
    FitOptions,
    Perceptron,
    TableModel,
    compare_table,
    fit_table,
)
from steelyard.data.learning.targets import TargetColumn
from steelyard.data.table import DataTable
from steelyard.errors import ConfigError, DataError
from steelyard.train.tabular import NeuralConfig

SMALL = NeuralConfig(
    hidden=(16,), rate=0.02, epochs=6, least_steps=0, patience=2, dropout=0.0, weight_decay=0
)


def frame(count: int = 900, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    x, z = rng.normal(size=count), rng.normal(size=count)
    color = rng.choice(["red", "green", "blue"], count)
    # No linear model sees this.
    logit = 3 * x * z + np.where(color == "red", 2.0, -1.0)
    bought = np.where(rng.random(count) < 1 / (1 + np.exp(-logit)), "yes", "no")
    kind = np.array(["low", "mid", "top"])[np.digitize(np.abs(x), [0.4, 1.0])]
    price = 100 + 20 * np.abs(x) + rng.normal(size=count)
    x = np.where(rng.random(count) < 0.1, np.nan, x)
    columns = {"x": x, "z": z, "color": color, "bought": bought, "kind": kind, "price": price}
    return pl.DataFrame(columns, nan_to_null=True)


def options(target: str, learner=SMALL) -> FitOptions:
    others = [name for name in ("bought", "kind", "price") if name != target]
    return FitOptions(target=target, learner=learner, leave_out=others)


@pytest.mark.parametrize(
    ("target", "measure"), [("bought", "AUC"), ("kind", "log loss"), ("price", "R2")]
)
def test_perceptrons_learn_and_come_back_from_files(tmp_path, target, measure) -> None:
    found = fit_table(DataTable.scan(frame()), options(target), tmp_path / "work")
    score = {item.name: item for item in found.scores}[measure]
    if measure == "log loss":
        assert score.high < 0.8 * score.baseline
    else:
        assert score.value > score.baseline + 0.25
    shares = dict(found.model.importances())
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["x"] > (0.2 if target == "bought" else 0.5)
    found.model.save(tmp_path / "a.model")
    # Values that no row had, gaps, and a column that is not there.
    new = frame(200, seed=5).with_columns(pl.lit("violet").alias("color")).drop("z")
    table = DataTable.scan(new)
    again = TableModel.open(tmp_path / "a.model")
    assert list(again.predict(table)) == list(found.model.predict(table))
    assert not (tmp_path / "work").exists()


def test_scores_are_those_of_the_module() -> None:
    rng = np.random.default_rng(1)
    module = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))
    parts = (torch.cat([item.weight, item.bias[:, None]], dim=1) for item in (module[0], module[2]))
    own = Perceptron(layers=tuple(part.detach().numpy() for part in parts))
    rows = torch.from_numpy(rng.normal(size=(9000, 3)).astype(np.float32)).requires_grad_()
    scores = module(rows)
    assert np.allclose(own.scores(rows.detach().numpy()), scores.detach().numpy().T, atol=1e-5)
    effects = np.zeros(3)
    for k in range(2):
        slopes = torch.autograd.grad(scores[:, k].sum(), rows, retain_graph=True)[0]
        effects += np.abs((slopes * rows).detach().numpy()).mean(axis=0)
    found = own.with_effects(rows.detach().numpy()).effects
    assert np.allclose(found, effects, rtol=1e-4)
    assert own.weights(3).tolist() == [0, 0, 0]


def test_rows_come_in_another_order_each_epoch_and_no_class_is_left_out() -> None:
    x = np.linspace(-1, 1, 700)[:, None].astype(np.float32)
    target = TargetColumn(name="y", task="classify", classes=("a", "b"), hashes=(1, 2))
    # Rows lie in the order of their class: parts that were not mixed would hold one.
    store = FeatureStore(
        features=x, targets=(x[:, 0] > 0).astype(np.float32), is_held=np.zeros(700, bool)
    )
    found = SMALL.fit(FitJob(store=store, target=target))
    assert ((found.scores(x)[0] > 0) == (x[:, 0] > 0)).mean() > 0.98
    one = FeatureStore(features=x, targets=np.zeros(700, np.float32), is_held=np.zeros(700, bool))
    with pytest.raises(DataError, match="no row of class 'b'"):
        SMALL.fit(FitJob(store=one, target=target))


class _KilledError(Exception):
    pass


def test_a_run_that_was_stopped_ends_with_the_same_model(tmp_path) -> None:
    frame().write_parquet(tmp_path / "t.parquet")
    table = DataTable.scan(str(tmp_path / "t.parquet"))
    fit_table(table, options("bought"), tmp_path / "one").model.save(tmp_path / "one.model")

    def stop(what: str, share: float) -> None:
        if what == "trees" and share > 0.45:
            raise _KilledError

    with pytest.raises(_KilledError):
        fit_table(table, options("bought"), tmp_path / "two", done=stop)
    steps: list[float] = []
    found = fit_table(
        table, options("bought"), tmp_path / "two", done=lambda _, share: steps.append(share)
    )
    assert steps[0] > 0.3  # it went on, and did not begin again
    found.model.save(tmp_path / "two.model")
    assert (tmp_path / "one.model").read_bytes() == (tmp_path / "two.model").read_bytes()


@pytest.mark.slow
def test_kills_at_any_moment_leave_the_same_model(tmp_path) -> None:
    frame(4000).write_parquet(tmp_path / "t.parquet")
    words = ["data", "table", "fit", tmp_path / "t.parquet", "--target", "bought", "--learner"]
    words += ["neural", "--leave-out", "kind,price", "--out"]
    line = [sys.executable, "-m", "steelyard", *map(str, words)]
    subprocess.run([*line, str(tmp_path / "one.model")], check=True, capture_output=True)
    rng = np.random.default_rng(0)
    for _ in range(6):
        process = subprocess.Popen(
            [*line, str(tmp_path / "two.model")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            process.wait(timeout=rng.uniform(1, 8))
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
    subprocess.run([*line, str(tmp_path / "two.model")], check=True, capture_output=True)
    assert (tmp_path / "one.model").read_bytes() == (tmp_path / "two.model").read_bytes()


def test_a_perceptron_is_compared_with_the_family(tmp_path) -> None:
    choice = CompareOptions(
        fit=options("bought", None), time_s=60, learners=["linear", "mlp"], more={"mlp": SMALL}
    )
    found = compare_table(DataTable.scan(frame(1500)), choice, tmp_path / "work")
    assert [item.name for item in found.learners] == ["mlp", "linear"]
    with pytest.raises(ConfigError, match="no learner 'mlp'"):
        CompareOptions(fit=options("bought"), learners=["mlp"])


@dataclass(frozen=True)
class Halves:
    """A learner of one's own: the mean of each half of the first feature."""

    kind = "halves"
    needs = "features"
    means: tuple[float, float] = (0.0, 0.0)

    def fit(self, job: FitJob) -> "Halves":
        is_low = job.features[job.rows, 0] < 0
        known = job.store.targets[job.rows]
        return Halves((float(known[is_low].mean()), float(known[~is_low].mean())))

    def scores(self, given) -> np.ndarray:
        return np.where(given[:, 0] < 0, *self.means)[None].astype(np.float32)

    def weights(self, count: int) -> np.ndarray:
        return np.eye(1, count)[0]

    def about(self) -> dict:
        return {"means": list(self.means)}

    def sections(self) -> dict:
        return {}

    @classmethod
    def restored(cls, about: dict, _sections: dict) -> "Halves":
        return cls(tuple(about["means"]))


def test_an_object_of_ones_own_is_fitted_saved_and_read(tmp_path) -> None:
    table = DataTable.scan(frame())
    found = fit_table(table, options("price", Halves()), tmp_path / "work")
    found.model.save(tmp_path / "a.model")
    with pytest.raises(DataError, match="'halves'"):
        TableModel.open(tmp_path / "a.model")
    again = TableModel.open(tmp_path / "a.model", learners=[Halves])
    assert list(again.predict(table)) == list(found.model.predict(table))


@pytest.mark.parametrize(
    "words", [{"hidden": (0,)}, {"rate": 0.0}, {"dropout": 1.0}, {"epochs": 0}, {"least_steps": -1}]
)
def test_settings_out_of_range_are_refused(words) -> None:
    with pytest.raises(ConfigError, match=next(iter(words))):
        NeuralConfig(**words)

"""Learners and clusters where tables are as people have them, and models that are kept.

8 fits a perceptron to tables that others measured, beside scikit-learn's on the same rows: a
quarter is kept aside, which neither sees; ours ends by a fifth of the others. 9 clusters rows by a
tree of cluster features, scikit-learn's with the limit that ours ended with. 10 puts two values far
out into a table. 11 counts answers of kept models that differ from those before. 12 counts columns
that were planted, and false alarms on tables of shared/data.
"""

from pathlib import Path

import numpy as np
import polars as pl
from benchmarks.common import Check
from benchmarks.serve._json_process import JsonProcess
from numpy.typing import NDArray

from steelyard.data.anomalies import DetectOptions, DetectorModel, detect_table
from steelyard.data.clustering import (
    ClusterFeatureTree,
    ClusterModel,
    ClusterOptions,
    cluster_table,
)
from steelyard.data.kmeans import nearest
from steelyard.data.learning import (
    BoostConfig,
    FitOptions,
    LearnerConfig,
    LinearConfig,
    NeighbourConfig,
    TableModel,
    auc,
    fit_table,
)
from steelyard.data.table import DataTable
from steelyard.train.tabular import NeuralConfig

__all__ = ["alone_checks", "peer_checks", "shared_data"]

_FAR = {(5, 0): 1e12, (9, 4): -1e6, (77, 2): 1e9}
_QUIET = {
    "molecules/delaney-processed.csv": "measured log solubility in mols per litre",
    "lr-schedule-curves/curves_100m.csv": "schedule",
    "scaling-runs/vision-curves.csv": "loss",
    "isoflop-refinedweb/isoflop_points.csv": "loss",
    "fanns-measurements/recall_nprobe.csv": "min_nprobe",
}
"""Tables of which no column holds what is measured, and what that is."""


def shared_data() -> Path | None:
    """Return the folder of tables that others measured, beside the project; None without it."""
    for folder in Path(__file__).parents:
        if (folder / "shared" / "data").is_dir():
            return folder / "shared" / "data"
    return None


def peer_checks(peer: JsonProcess, folder: Path, quick: bool) -> list[Check]:
    """Return the checks beside scikit-learn.

    Args:
        peer: scikit-learn's process.
        folder: takes files.
        quick: fewer rows, tables and splits.

    Returns:
        Checks; without those of tables where they are not there.
    """
    found = _birch(peer, folder, quick)
    data = shared_data()
    if data is None:
        print("left out: shared/data is not there")
        return found
    below = []
    for name, frame in real_tables(data).items():
        if quick and name != "solubility":
            continue
        count = 1 if quick else 3
        areas = [_areas(peer, folder, frame, seed, count) for seed in range(count)]
        ours, theirs = np.mean(areas, axis=0)
        print(f"perceptron on {name}: AUC {ours:.4f}, scikit-learn {theirs:.4f}")
        below.append(theirs - ours)
    check = Check("8 neural AUC below scikit-learn's", float(max(below)), 0.02, "lower")
    return [*found, check]


def alone_checks(folder: Path, quick: bool) -> list[Check]:
    """Return the checks without a peer.

    Args:
        folder: takes files.
        quick: fewer rows.

    Returns:
        Checks.
    """
    return [*_far_out(folder, quick), *_kept(folder), *_alarms(folder)]


def _birch(peer: JsonProcess, folder: Path, quick: bool) -> list[Check]:
    """Compare clusters by trees of cluster features."""
    ratios = []
    for seed, (width, parts) in enumerate(((2, 12), (8, 30), (16, 20))):
        rng = np.random.default_rng([9, seed])
        middles = rng.normal(size=(parts, width)) * 3
        own = rng.choice(parts, 3000 if quick else 20_000, p=rng.dirichlet(np.full(parts, 2.0)))
        rows = middles[own] + rng.normal(size=(len(own), width)) * rng.uniform(0.4, 1.3)
        tree = ClusterFeatureTree(width, 1000)
        tree.update(rows)
        inertia = float(nearest(rows, tree.centers(parts))[1].sum())
        np.savez(folder / "points.npz", x=rows)
        asked = {"birch": str(folder / "points.npz"), "count": parts, "limit": tree.limit}
        told = peer.ask(asked)
        ratios.append(inertia / told["inertia"])
        print(
            f"birch, {width} columns: inertia {ratios[-1]:.4f} of scikit-learn's; "
            f"{len(tree.entries()[0])} and {told['entries']} entries"
        )
    return [Check("9 birch inertia over scikit-learn's", max(ratios), 1.05, "lower")]


def _numbers(rows: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return rows with gaps, and a class that depends on them."""
    rng = np.random.default_rng(10)
    x = rng.normal(size=(rows, 8))
    logit = x[:, 0] + x[:, 1] * x[:, 2] + np.sin(3 * x[:, 3]) + (x[:, 4] > 0) / 2
    y = rng.random(rows) < 1 / (1 + np.exp(-logit))
    x[rng.random(x.shape) < 0.05] = np.nan
    return x, y


def _far_out(folder: Path, quick: bool) -> list[Check]:
    """Compare learners with and without values far out."""
    x, y = _numbers(4000 if quick else 40_000)
    wild = x.copy()
    for place, value in _FAR.items():
        wild[place] = value
    lost = []
    neural = NeuralConfig(epochs=6, least_steps=0)
    for learner in (LinearConfig(), NeighbourConfig(), neural):
        areas = []
        for rows in (x, wild):
            columns = {f"x{at}": rows[:, at] for at in range(rows.shape[1])}
            frame = pl.DataFrame(columns | {"y": y}, nan_to_null=True)
            options = FitOptions(target="y", learner=learner)
            areas.append(fit_table(_scan(frame), options, folder / "work").scores[0].value)
        print(f"{type(learner).__name__}: AUC {areas[0]:.4f}, with values far out {areas[1]:.4f}")
        lost.append(areas[0] - areas[1])
    return [Check("10 AUC lost by values far out", max(lost), 0.002, "lower")]


def _kept(folder: Path) -> list[Check]:
    """Count answers of kept clusters and detectors that differ."""
    x, _ = _numbers(2000)
    table, fresh = (
        _scan(pl.DataFrame(rows, schema=[f"x{at}" for at in range(8)], nan_to_null=True))
        for rows in (x[:1500], x[1500:])
    )
    path, wrong = folder / "kept.model", 0
    for method in ("kmeans", "mixture", "density", "birch"):
        found = cluster_table(table, ClusterOptions(method=method), folder / "work")
        found.model.save(path)
        again = ClusterModel.open(path)
        wrong += list(again.predict(fresh)) != list(found.model.predict(fresh))
        labels = np.concatenate([part["cluster"].to_numpy() for part in again.predict(table)])
        wrong += not np.array_equal(labels, found.labels)
    for method in ("forest", "distance", "components", "neighbours", "stream"):
        detected = detect_table(table, DetectOptions(method=method), folder / "work")
        detected.model.save(path)
        again = DetectorModel.open(path)
        wrong += list(again.predict(fresh)) != list(detected.model.predict(fresh))
    return [Check("11 answers of kept models that differ", wrong, 0, "lower")]


def _alarms(folder: Path) -> list[Check]:
    """Count planted columns that are not named, and alarms of tables that have none."""
    rng = np.random.default_rng(12)
    level = rng.lognormal(size=3000)
    kind = np.digitize(level, [0.5, 1.0, 2.0])
    planted = pl.DataFrame(
        {
            "usual": level * rng.lognormal(0, 0.4, 3000),
            "held": np.round(level * 1.19, 3),
            "level": level,
            "word": np.array(["a", "b", "c", "d"])[kind],
            "kind": np.array(["low", "mid", "high", "top"])[kind],
        }
    )
    missed, alarms = 0, 0
    learners = (BoostConfig(rounds=2, threads=1), LinearConfig(epochs=2))
    for learner in learners:
        told = _warnings(planted.drop("word", "kind"), "level", learner, folder)
        missed += "column held alone tells level" not in told
        alarms += "column usual alone" in told
        told = _warnings(planted.drop("level", "held"), "kind", learner, folder)
        missed += "column word alone tells kind" not in told
        alarms += "column usual alone" in told
    data = shared_data()
    for path, target in _QUIET.items():
        if data is None:
            break
        frame = pl.read_csv(data / path, infer_schema_length=None).drop_nulls(target)
        alarms += sum(
            _warnings(frame, target, learner, folder).count("alone tells") for learner in learners
        )
    return [
        Check("12 planted columns that were not named", missed, 0, "lower"),
        Check("12 false alarms", alarms, 0, "lower"),
    ]


def _warnings(frame: pl.DataFrame, target: str, learner: LearnerConfig, folder: Path) -> str:
    """Return what is odd about the columns of a table."""
    options = FitOptions(target=target, learner=learner)
    return " ".join(fit_table(_scan(frame), options, folder / "work").warnings)


def real_tables(data: Path) -> dict[str, pl.DataFrame]:
    """Return tables of shared/data whose column "y" is yes or no."""
    models = pl.read_csv(data / "epoch-training-costs/models.csv", infer_schema_length=None)
    soluble = pl.read_csv(data / "molecules/delaney-processed.csv")
    layouts = pl.read_csv(data / "parallel-layout-sweep/layout-sweep.csv", infer_schema_length=None)
    logs = pl.col("measured log solubility in mols per litre")
    return {
        "models of language": models.with_columns(_yes(pl.col("domain") == "Language")).drop(
            "domain", "model", "base_model"
        ),
        "solubility": soluble.with_columns(_yes(logs > -2.9)).drop(
            "measured log solubility in mols per litre",
            "ESOL predicted log solubility in mols per litre",
            "Compound ID",
            "smiles",
        ),
        # Times and rates are known of layouts that ran.
        "layouts": layouts.with_columns(_yes(pl.col("status") == "ok")).select(
            *layouts.columns[1 : layouts.columns.index("status")], "y"
        ),
    }


def _yes(is_so: pl.Expr) -> pl.Expr:
    """Return a column of yes and no."""
    return pl.when(is_so).then(pl.lit("yes")).otherwise(pl.lit("no")).alias("y")


def fresh_area(
    frame: pl.DataFrame, held: NDArray[np.bool_], learner: LearnerConfig, folder: Path
) -> tuple[float, TableModel]:
    """Fit a learner to some rows and return its AUC of others, and the model."""
    options = FitOptions(target="y", task="classify", learner=learner)
    model = fit_table(DataTable.scan(frame.filter(~held)), options, folder / "work").model
    new = frame.filter(held)
    shares = np.concatenate([part.column(1).to_numpy() for part in model.predict(_scan(new))])
    return auc((new["y"].cast(str) == model.target.classes[1]).to_numpy(), shares), model


def _scan(frame: pl.DataFrame) -> DataTable:
    """Return rows as a table."""
    return DataTable.scan(frame)


def _areas(
    peer: JsonProcess, folder: Path, frame: pl.DataFrame, seed: int, count: int
) -> tuple[float, float]:
    """Return the AUC of ours and of the peer's, of rows that neither saw."""
    held = np.random.default_rng([8, seed]).random(len(frame)) < 0.25
    ours, _ = fresh_area(frame, held, NeuralConfig(), folder)
    rows = frame.drop("y")
    is_number = [kind.is_numeric() or kind == pl.Boolean for kind in rows.dtypes]
    numbers = [name for name, own in zip(rows.columns, is_number, strict=True) if own]
    known = [name for name in numbers if rows.filter(~held)[name].null_count() < (~held).sum()]
    texts = rows.drop(numbers).fill_null("")
    np.savez(
        folder / "table.npz",
        numbers=rows.select(pl.col(known).cast(pl.Float64)).to_numpy(),
        texts=texts.to_numpy().astype(str) if texts.width else np.empty((len(rows), 0), str),
        y=(frame["y"] == "yes").to_numpy(),
        held=held,
    )
    asked = {"perceptron": str(folder / "table.npz"), "seeds": count}
    return ours, float(peer.ask(asked)["auc"])

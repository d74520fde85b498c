"""A perceptron of tables that others measured, beside scikit-learn's on the same rows.

8 keeps a quarter of the rows of each table aside, which neither sees: ours ends by a fifth of the
others. Three splits of each table, three seeds of scikit-learn's.
"""

from pathlib import Path

import numpy as np
import polars as pl
from benchmarks.common import Check
from benchmarks.serve._json_process import JsonProcess
from numpy.typing import NDArray

from steelyard.data.learning import FitOptions, LearnerConfig, TableModel, auc, fit_table
from steelyard.data.table import DataTable
from steelyard.train.tabular import NeuralConfig

__all__ = ["shared_data", "table_checks"]


def shared_data() -> Path | None:
    """Return the folder of tables that others measured, beside the project; None without it."""
    for folder in Path(__file__).parents:
        if (folder / "shared" / "data").is_dir():
            return folder / "shared" / "data"
    return None


def table_checks(peer: JsonProcess, folder: Path, quick: bool) -> list[Check]:
    """Return the checks beside scikit-learn.

    Args:
        peer: scikit-learn's process.
        folder: takes files.
        quick: one split of each table.

    Returns:
        Checks; none where the tables are not there.
    """
    data = shared_data()
    if data is None:
        print("left out: shared/data is not there")
        return []
    below = []
    for name, frame in real_tables(data).items():
        areas = [_areas(peer, folder, frame, seed) for seed in range(1 if quick else 3)]
        ours, theirs = np.mean(areas, axis=0)
        print(f"perceptron on {name}: AUC {ours:.4f}, scikit-learn {theirs:.4f}")
        below.append(theirs - ours)
    return [Check("8 neural AUC below scikit-learn's", float(max(below)), 0.02, "lower")]


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


def _areas(peer: JsonProcess, folder: Path, frame: pl.DataFrame, seed: int) -> tuple[float, float]:
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
    return ours, float(peer.ask({"perceptron": str(folder / "table.npz")})["auc"])

"""`steelyard data table fit` and `predict`: learn a column from the others."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import cyclopts

from steelyard.cli.data.scanned import Sources, kinds_of, names_of, scanned
from steelyard.cli.following import say_next
from steelyard.cli.output import Switch, print_report
from steelyard.errors import ConfigError
from steelyard.runs.progress import progress
from steelyard.runs.report import Block, Cell, Column, Facts, Report, Section, Table, Text

if TYPE_CHECKING:
    from steelyard.data.features.row_model import RowModel
    from steelyard.data.learning import FitOptions, FittedTable, LearnerConfig, TableModel

__all__ = ["fit", "predict"]

_SHOWN = 20
_SHARES = {
    "boosted": "share of what all splits gained",
    "forest": "share of what all splits gained",
    "linear": "share of the sizes of all weights of standardized features",
    "bayes": "share of how far apart values put the classes",
    "neighbours": "all features count alike",
    "kernel": "all features count alike",
    "neural": "share of what features do to the score, by slope times size",
}
"""What the share of a column is, by learner."""


@cyclopts.Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LearnOptions:
    """What is learned from which rows.

    Args:
        learner: boosted trees, a random forest, a linear model by stochastic descent (log, hinge or
            squared loss), ridge regression from sums of products, naive Bayes, neighbours in a
            sample of the rows, a kernel machine on random waves (kernel; for classes a support
            vector machine), or a perceptron of two inner layers (neural).
        task: classify or regress; by what the column looks like when left out.
        leave_out: columns that are not learned from, such as keys, separated by commas.
        held: share of rows that are kept aside to end in time and to measure.
        by: column whose equal values stay on one side, such as a customer.
        rounds: most rounds of boosted trees.
        rate: factor of each boosted tree.
        leaves: most leaves of a boosted tree.
        least_rows: rows of a leaf at least; 20 of boosted trees and 5 of a forest when left out.
        l2: weight that keeps leaves of few rows small, of boosted trees.
        patience: rounds without gain on the rows kept aside after which it ends; 0 never ends.
        trees: trees of a forest.
        loss: loss of the learners linear and kernel: log, hinge or squared; by the target when left
            out.
        penalty: weight of the squared weights of ridge; chosen by cross-validation when left out.
        neighbours: rows whose targets are averaged, of the learner neighbours.
        reduce: fewer features for linear, ridge, neighbours, kernel and neural, such as pca:16.
        threads: threads.
        memory: most bytes that the first pass may take, such as 200MB; what is kept for each row
            then lies in mapped files.
        seed: changes which rows are kept aside, and what is drawn.
    """

    learner: Literal[
        "boosted", "forest", "linear", "ridge", "bayes", "neighbours", "kernel", "neural"
    ] = "boosted"
    task: Literal["classify", "regress"] | None = None
    leave_out: str = ""
    held: float = 0.2
    by: str = ""
    rounds: int = 200
    rate: float = 0.1
    leaves: int = 31
    least_rows: int | None = None
    l2: float = 1.0
    patience: int = 20
    trees: int = 100
    loss: Literal["log", "hinge", "squared"] | None = None
    penalty: float | None = None
    neighbours: int = 20
    reduce: str = ""
    threads: int = 2
    memory: str = ""
    seed: int = 0

    def given(self, target: str) -> "FitOptions":
        """Return the options as the library takes them."""
        from steelyard.data.learning import BoostConfig, FitOptions, TreeLimits

        if not 0 <= self.held < 1:
            raise ConfigError(f"--held is {self.held:g}, but must be 0 to below 1")
        least_rows = 20 if self.least_rows is None else self.least_rows
        limits = TreeLimits(leaves=self.leaves, least_rows=least_rows, l2=self.l2)
        return FitOptions(
            target=target,
            task=self.task,
            leave_out=names_of(self.leave_out),
            held_share=self.held,
            by=self.by,
            memory=self.memory,
            seed=self.seed,
            reduce=self.reduce,
            learner=self._learner(),
            boosting=BoostConfig(
                rounds=self.rounds,
                rate=self.rate,
                limits=limits,
                patience=self.patience,
                threads=self.threads,
            ),
        )

    def _learner(self) -> "LearnerConfig | None":
        """Return the settings of a learner; None for boosted trees."""
        from steelyard.data import learning

        if self.learner == "forest":
            least_rows = 5 if self.least_rows is None else self.least_rows
            return learning.ForestConfig(
                trees=self.trees, least_rows=least_rows, threads=self.threads
            )
        if self.learner == "linear":
            return learning.LinearConfig(loss=self.loss)
        if self.learner == "ridge":
            return learning.RidgeConfig(penalty=self.penalty)
        if self.learner == "neighbours":
            return learning.NeighbourConfig(neighbours=self.neighbours)
        if self.learner == "kernel":
            return learning.KernelConfig(loss=self.loss)
        if self.learner == "neural":
            from steelyard.train.tabular import NeuralConfig

            return NeuralConfig()
        return learning.BayesConfig() if self.learner == "bayes" else None


def fit(
    *sources: Sources,
    target: str,
    out: Path,
    options: LearnOptions | None = None,
    recipe: Path | None = None,
    types: str = "",
    json: Switch = False,
    report: Path | None = None,
) -> None:
    """Fit a learner that predicts a column; run it again to continue after a kill.

    The table is read twice and may be larger than memory: a byte or a float per value is kept on
    disk beside the model meanwhile.

    Example: steelyard data table fit 'sales/*.csv' --target returned --out returned.model

    Args:
        *sources: files, patterns such as 'sales/*.csv', folders, and addresses.
        target: column to predict.
        out: file for the model.
        options: what is learned from which rows.
        recipe: TOML file of these options, such as recipes/data-fit.toml; what is given here as
            well, and is not the default, counts instead.
        types: kinds of columns of text files, such as "id=text, price=number".
        json: print JSON instead of tables.
        report: HTML file for the page.
    """
    given = _merged(recipe, options or LearnOptions()).given(target)
    table = scanned(sources, kinds_of(types))
    from steelyard.data.learning import fit_table

    with progress("fit", total=3.0, quiet=json) as advance:
        stages = {"bins": 0.0, "codes": 1.0, "trees": 2.0}

        def done(what: str, share: float) -> None:
            advance(stages[what] + min(share, 1.0), what)

        fitted = fit_table(table, given, out.with_name(out.name + ".work"), done=done)
    fitted.model.save(out)
    page = Report(
        f"Model of {target}", f"from {len(fitted.model.inputs.names)} columns", _sections(fitted)
    )
    print_report(page, json=json, html=report, values=_values(fitted))
    if not json:
        say_next("data", "table", "predict", out, *sources, "--out", "predicted.parquet")


def _merged(recipe: Path | None, options: LearnOptions) -> LearnOptions:
    """Return the options of a file, with those that were given besides."""
    if recipe is None:
        return options
    from dataclasses import fields, replace

    from steelyard.config import load

    usual = LearnOptions()
    names = [item.name for item in fields(options)]
    said = {name: getattr(options, name) for name in names}
    differ = {name: value for name, value in said.items() if value != getattr(usual, name)}
    return replace(load(recipe, LearnOptions), **differ)


def predict(
    model: Path,
    *sources: Sources,
    out: Path,
    types: str = "",
    json: Switch = False,
) -> None:
    """Apply a model to each row: a prediction, a cluster, or how odd it is.

    Example: steelyard data table predict returned.model new.csv --out predicted.parquet

    A learner takes a column that is missing for missing values; clusters and detectors refuse it.

    Args:
        model: file that `steelyard data table fit`, or `cluster` or `detect` with --model, wrote.
        *sources: files, patterns such as 'sales/*.csv', folders, and addresses.
        out: file for what the model says, in the order of the rows: .parquet, .csv, .jsonl or
            .arrow.
        types: kinds of columns of text files, such as "id=text, price=number".
        json: print JSON instead of a table.
    """
    table = scanned(sources, kinds_of(types))
    from steelyard.data.table.writing import checked_format, write_file

    checked_format(out)
    fitted, names = _opened(model)
    missing = [name for name in names if name not in table.schema.names]
    batches = fitted.predict(table)
    schema = fitted.schema()
    rows = write_file(out, schema, batches)
    facts = Facts([("rows", f"{rows:,}", ""), ("columns", ", ".join(schema.names), "")])
    blocks: list[Block] = [facts]
    blocks += [Text(f"column {name} is not there: it counts as missing") for name in missing]
    page = Report(f"What {model.name} says", str(out), [Section("Written", blocks)])
    print_report(page, json=json, values={"rows": rows, "missing_columns": missing})


def _opened(model: Path) -> "tuple[TableModel | RowModel, list[str]]":
    """Return a model of any kind, and the columns that it wants."""
    from steelyard.data.features.row_model import RowModel, kind_of_model

    if not model.exists():
        raise ConfigError(f"there is no {model}", hint="fit a model: steelyard data table fit")
    if kind_of_model(model) != "row-model":
        from steelyard.data.learning import TableModel

        found = TableModel.open(model)
        return found, found.inputs.names
    from steelyard.data.anomalies import DetectorModel
    from steelyard.data.clustering import ClusterModel

    rows = RowModel.open(model, {**ClusterModel.known, **DetectorModel.known})
    return rows, rows.inputs.names


def _sections(fitted: "FittedTable") -> list[Section]:
    """Return the page of a model."""
    from steelyard.data.learning import Boosted

    learner = fitted.model.learner
    facts = [
        ("learner", learner.kind, ""),
        ("rows", f"{fitted.rows:,}", f"{fitted.held:,} of them kept aside"),
        ("rows without a target", f"{fitted.left_out:,}", "left out"),
    ]
    if isinstance(learner, Boosted):
        facts.append(("rounds", f"{learner.best_rounds:,}", f"of {len(learner.trees):,} tried"))
    rows: list[list[Cell]] = [
        [item.name, item.value, item.low, item.high, item.baseline] for item in fitted.scores
    ]
    columns = [
        Column("measure"),
        Column("kept aside"),
        Column("low"),
        Column("high"),
        Column("constant prediction"),
    ]
    gains: list[list[Cell]] = [
        [name, share] for name, share in fitted.model.importances()[:_SHOWN] if share > 0
    ]
    model: list[Block] = [Facts(facts), *(Text(line) for line in fitted.warnings)]
    return [
        Section("Fit", model),
        Section("Measured", [Table(columns, rows, "80 % intervals")]),
        Section(
            "Columns", [Table([Column("column"), Column("share")], gains, _SHARES[learner.kind])]
        ),
    ]


def _values(fitted: "FittedTable") -> dict[str, Any]:
    """Return the figures, for programs."""
    return {
        "rows": fitted.rows,
        "left_out": fitted.left_out,
        "held": fitted.held,
        "classes": list(fitted.model.target.classes),
        "learner": fitted.model.learner.kind,
        "rounds": getattr(fitted.model.learner, "best_rounds", None),
        "scores": {
            item.name: {
                "value": item.value,
                "low": item.low,
                "high": item.high,
                "baseline": item.baseline,
            }
            for item in fitted.scores
        },
        "importances": dict(fitted.model.importances()),
        "warnings": fitted.warnings,
    }

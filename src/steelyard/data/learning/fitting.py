"""A table's model from its files: one pass for bins, one for codes, then trees on the codes."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.data.learning.bins import FeatureBins, column_bins, feature_names
from steelyard.data.learning.boosting import BoostConfig, Boosted, boost
from steelyard.data.learning.codes import CodeStore, write_codes
from steelyard.data.learning.model import TableModel
from steelyard.data.learning.scores import Scored, auc, score_classes, score_numbers
from steelyard.data.learning.targets import Task, find_target
from steelyard.data.stages import hash_of
from steelyard.data.table.budget import FoldBudget
from steelyard.data.table.columns import is_text
from steelyard.data.table.folds import frequent, quantiles
from steelyard.data.table.row_folds import RowCountFold
from steelyard.errors import ConfigError, DataError
from steelyard.files import exclusive, read_json, write_json
from steelyard.units import parse

if TYPE_CHECKING:
    from steelyard.data.table import DataTable

__all__ = ["FitOptions", "FittedTable", "fit_table"]

_SAVE_EVERY, _FREQUENT, _QUANTILES = 10, 1024, 1024
_SUSPECT = 0.999
_MOST_CHECKED = 200_000


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """What is learned from which rows.

    Attributes:
        target: column that is predicted.
        task: "classify" or "regress"; None for what the column looks like.
        leave_out: columns that are not learned from, such as keys.
        held_share: share of rows that are kept aside to end in time and to measure.
        by: column whose equal values stay on one side, such as a customer; rows by themselves when
            empty.
        memory: most bytes that the first pass may take, such as "200MB"; what is kept for each row
            then lies in mapped files of the folder. Empty for no bound.
        seed: changes which rows are kept aside.
        boosting: how trees are fitted.
    """

    target: str
    task: Task | None = None
    leave_out: Sequence[str] = ()
    held_share: float = 0.2
    by: str = ""
    memory: str = ""
    seed: int = 0
    boosting: BoostConfig = field(default_factory=BoostConfig)


@dataclass(frozen=True, kw_only=True)
class FittedTable:
    """A model with what was measured.

    Attributes:
        model: the model.
        scores: measures of the rows kept aside.
        rows: rows that have a target.
        left_out: rows without one.
        held: rows kept aside.
        warnings: constant and empty columns, and those that may tell the target themselves.
    """

    model: TableModel
    scores: list[Scored]
    rows: int
    left_out: int
    held: int
    warnings: list[str]


def fit_table(
    table: "DataTable",
    options: FitOptions,
    folder: Path,
    *,
    done: Callable[[str, float], None] = lambda _what, _share: None,
) -> FittedTable:
    """Fit boosted trees to a table of any length.

    The first pass finds bins, the second writes a byte per value to the folder, and trees are
    grown on that file. A call that was killed goes on where it was, and ends with the same trees.

    Args:
        table: the table.
        options: what is learned.
        folder: takes the codes and what is known so far; removed when the model is whole.
        done: is told what is worked on, and the share of it that is done.

    Returns:
        The model and its measures.

    Raises:
        ConfigError: no such column, or an option is out of range.
        DataError: a column cannot be predicted, or no column is left to learn from.
        StoreError: another process works in the folder.
        CapacityError: the disk is full.
    """
    _check(table, options)
    with exclusive(folder):
        model, rows, total, held = _prepared(table, options, folder, done)
        store = CodeStore.open(folder, len(model.bins), rows)
        num_codes = np.array([item.num_codes for item in model.bins], np.int64)
        partly = folder / "trees.pack"
        begun = TableModel.open(partly).trees if partly.exists() else None

        def keep(trees: Boosted) -> None:
            done("trees", len(trees.trees) / options.boosting.rounds)
            if len(trees.trees) % _SAVE_EVERY == 0:
                TableModel(bins=model.bins, target=model.target, trees=trees).save(partly)

        trees = boost(
            store,
            num_codes,
            model.target,
            options.boosting,
            begun=begun,
            folder=folder if options.memory else None,
            done=keep,
        )
        whole = TableModel(bins=model.bins, target=model.target, trees=trees, about=model.about)
        found = FittedTable(
            model=whole,
            scores=_measured(whole, store),
            rows=rows,
            left_out=total - rows,
            held=held,
            warnings=_warnings(whole, store),
        )
        del store
    shutil.rmtree(folder)
    return found


def _check(table: "DataTable", options: FitOptions) -> None:
    """Refuse columns that there are not."""
    names = table.schema.names
    for name in (options.target, *options.leave_out, *filter(None, [options.by])):
        if name not in names:
            raise ConfigError(f"no column {name!r}", hint=f"columns are {', '.join(names)}")
    if not 0 <= options.held_share < 1:
        raise ConfigError(f"a share of {options.held_share:g} kept aside", hint="give 0 to below 1")


def _prepared(
    table: "DataTable",
    options: FitOptions,
    folder: Path,
    done: Callable[[str, float], None],
) -> tuple[TableModel, int, int, int]:
    """Return a model without trees, rows with a target, all rows, and rows kept aside."""
    settings = asdict(options) | {"leave_out": list(options.leave_out)}
    files = [[item.path, item.num_bytes] for item in table.files]
    key = hash_of([settings, files, str(table.schema)])
    about, empty = folder / "about.json", folder / "bins.pack"
    if about.exists() and read_json(about)["key"] == key:
        told = read_json(about)
        return TableModel.open(empty), told["rows"], told["total"], told["held"]
    for path in folder.iterdir():
        if path.name != ".lock":
            path.unlink()
    model, total = _binned(table, options, done)
    rows = write_codes(
        folder,
        _bounded(table, options.memory),
        model.bins,
        model.target,
        total,
        held_share=options.held_share,
        by=options.by,
        seed=options.seed,
        done=lambda read: done("codes", read / max(total, 1)),
    )
    if not rows:
        raise DataError(f"no row has a {options.target!r}", hint="choose another target")
    held = int(CodeStore.open(folder, len(model.bins), rows).is_held.sum())
    model.save(empty)
    # Last: what stands before it is whole.
    write_json(about, {"key": key, "rows": rows, "total": total, "held": held})
    return model, rows, total, held


def _bounded(table: "DataTable", memory: str) -> "DataTable":
    """Return the table in batches that a budget allows."""
    if not memory:
        return table
    budget = FoldBudget.of(table, [RowCountFold()], parse(memory, "byte"))
    return table.with_limits(budget.limits)


def _binned(
    table: "DataTable", options: FitOptions, done: Callable[[str, float], None]
) -> tuple[TableModel, int]:
    """Return a model without trees, and the rows of the table."""
    names = feature_names(table, [options.target, *options.leave_out])
    if not names:
        raise DataError("no column is left to learn from", hint="leave fewer out")
    texts = [name for name in names if is_text(table.schema.field(name).type)]
    numbers = [name for name in names if name not in texts]
    counted = frequent(*texts, options.target, size=_FREQUENT)
    folds: list[Any] = [RowCountFold(), counted]
    spread = quantiles(*numbers, k=_QUANTILES, whole=1 << 16)
    if numbers:
        folds.append(spread)
    read = [0]

    def count(num_bytes: int) -> None:
        read[0] += num_bytes
        done("bins", read[0] / max(table.num_bytes, 1))

    folded = table.fold(*folds, memory=options.memory or None, done=count)
    found = folded.results
    target = find_target(table, options.target, options.task, found[counted.name][options.target])
    sketches = found[spread.name] if numbers else {}
    bins = column_bins(table, names, sketches, found[counted.name])
    start = np.zeros(target.width, np.float32)
    about = {"rows": int(found["rows"])}
    return TableModel(bins=bins, target=target, trees=Boosted(start=start), about=about), about[
        "rows"
    ]


def _measured(model: TableModel, store: CodeStore) -> list[Scored]:
    """Return measures of the rows kept aside."""
    rows = np.flatnonzero(store.is_held)[:_MOST_CHECKED]
    if not len(rows):
        return []
    codes = np.ascontiguousarray(store.codes[:, rows])
    scores = model.trees.score(codes, np.arange(len(rows)))
    truth = np.asarray(store.targets[rows])
    if model.target.task == "regress":
        return score_numbers(truth, scores[0])
    return score_classes(truth, model.shares(scores))


def _warnings(model: TableModel, store: CodeStore) -> list[str]:
    """Return what is odd about columns."""
    begin = np.asarray(store.is_held[: 2 * _MOST_CHECKED])
    rows = np.flatnonzero(~begin)[:_MOST_CHECKED]
    targets = np.asarray(store.targets[rows])
    found = []
    for place, column in enumerate(model.bins):
        codes = np.asarray(store.codes[place][rows])
        if not codes.any():
            found.append(f"column {column.name} is empty")
        elif (codes == codes[0]).all():
            found.append(f"column {column.name} is constant")
        elif model.target.task == "classify" and model.target.width == 1:
            alone = _alone(column, codes, targets)
            if alone > _SUSPECT:
                found.append(
                    f"column {column.name} alone tells {model.target.name} (AUC {alone:.4f}): it "
                    "may hold what is to be predicted"
                )
    return found


def _alone(column: FeatureBins, codes: np.ndarray, targets: np.ndarray) -> float:
    """Return the AUC of one column."""
    if column.is_text:
        sums = np.bincount(codes, targets, 256)
        shares = sums / np.maximum(np.bincount(codes, minlength=256), 1)
        # Values of one row tell that row and no other.
        if (np.bincount(codes, minlength=256) < 2).sum() > len(codes) / 2:
            return 0.0
        return auc(targets, shares[codes])
    value = auc(targets, codes.astype(np.float64))
    return max(value, 1 - value)

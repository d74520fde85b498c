"""A table's model from its files: one pass to look, one to write rows as codes, then learning."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.data.features.preparing import work_folder
from steelyard.data.features.reducing import parse_reduction
from steelyard.data.learning.learners import FittedLearner
from steelyard.data.learning.measuring import column_warnings, measured
from steelyard.data.learning.model import FITTED, TableModel
from steelyard.data.learning.options import FitOptions
from steelyard.data.learning.preparing import WORK, PreparedRows, prepare_rows
from steelyard.data.learning.scores import Scored
from steelyard.errors import ConfigError

if TYPE_CHECKING:
    from steelyard.data.table import DataTable

__all__ = ["FittedTable", "check_options", "fit_table"]

_SAVE_EVERY = 0.05
"""Share of the work after which what is fitted is kept."""


@dataclass(frozen=True, kw_only=True)
class FittedTable:
    """A model with what was measured.

    Attributes:
        model: the model.
        scores: measures of the rows kept aside.
        rows: rows that have a target.
        left_out: rows without one.
        held: rows kept aside.
        warnings: constant and empty columns, infinite values, and columns that may tell the target
            themselves.
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
    """Fit a learner to a table of any length.

    The first pass looks at columns, the second writes a byte or a float per value to the folder,
    and the learner reads that file. A call that was killed goes on where it was, and ends with the
    same model.

    Args:
        table: the table.
        options: what is learned.
        folder: takes the rows and what is known so far; removed when the model is whole.
        done: is told what is worked on, and the share of it that is done.

    Returns:
        The model and its measures.

    Raises:
        ConfigError: no such column, or an option is out of range.
        DataError: a column cannot be predicted, or no column is left to learn from.
        StoreError: another process works in the folder.
        CapacityError: the disk is full.
    """
    check_options(table, options)
    with work_folder(folder):
        rows = prepare_rows(table, options, options.config.needs, folder, done)
        learner = _learned(rows, options, folder, done)
        about = {"rows": rows.total}
        model = TableModel(inputs=rows.inputs, target=rows.target, learner=learner, about=about)
        count = len(rows.store.targets)
        found = FittedTable(
            model=model,
            scores=measured(model, rows.store),
            rows=count,
            left_out=rows.total - count,
            held=int(rows.store.is_held.sum()),
            warnings=rows.warnings + column_warnings(rows),
        )
        del rows
    return found


def _learned(
    rows: PreparedRows,
    options: FitOptions,
    folder: Path,
    done: Callable[[str, float], None],
) -> FittedLearner:
    """Fit the learner; what it tells meanwhile is kept, to go on with after a kill."""
    partly, kept = folder / "partly.pack", [0.0]

    def keep(learner: FittedLearner | None, share: float) -> None:
        done("trees", share)
        is_due = share - kept[0] >= _SAVE_EVERY and share < 1
        # What the file would hold of others, a later call could not read.
        if learner is not None and learner.kind in FITTED and is_due:
            kept[0] = share
            TableModel(inputs=rows.inputs, target=rows.target, learner=learner).save(partly)

    begun = TableModel.open(partly).learner if partly.exists() else None
    mapped = folder if options.memory else None
    given = {"begun": begun, "done": keep, "work": folder / WORK}
    return options.config.fit(rows.job(options, mapped, **given))


def check_options(table: "DataTable", options: FitOptions) -> None:
    """Refuse columns that there are not.

    Args:
        table: the table.
        options: what is learned.

    Raises:
        ConfigError: no such column, or an option is out of range.
    """
    names = table.schema.names
    for name in (options.target, *options.leave_out, *filter(None, [options.by])):
        if name not in names:
            raise ConfigError(f"no column {name!r}", hint=f"columns are {', '.join(names)}")
    if not 0 <= options.held_share < 1:
        raise ConfigError(f"a share of {options.held_share:g} kept aside", hint="give 0 to below 1")
    if parse_reduction(options.reduce) and options.config.needs == "codes":
        raise ConfigError(
            f"reduce is {options.reduce!r}, but this learner takes every column by itself",
            hint="take the learner linear, ridge, neighbours, kernel or neural",
        )

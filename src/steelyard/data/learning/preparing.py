"""Rows of a table as learners take them, in files: one pass to look, one to write."""

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.data.features.finding import find_features
from steelyard.data.features.odd_numbers import OddNumbersFold
from steelyard.data.features.preparing import bounded
from steelyard.data.features.reducing import fit_reduction, parse_reduction, reduced
from steelyard.data.features.store import FeatureStore, open_features, write_features
from steelyard.data.learning.bins import column_bins, feature_names
from steelyard.data.learning.codes import CodeStore, write_codes
from steelyard.data.learning.inputs import CodeInputs, FeatureInputs, TableInputs
from steelyard.data.learning.learners import FitJob, Needs
from steelyard.data.learning.model import TableModel
from steelyard.data.learning.neighbours import Neighbours
from steelyard.data.learning.options import FitOptions
from steelyard.data.learning.sides import RowSides, open_sides
from steelyard.data.learning.targets import TargetColumn, find_target
from steelyard.data.stages import hash_of
from steelyard.data.table.columns import is_text
from steelyard.data.table.folds import frequent, quantiles
from steelyard.data.table.row_folds import RowCountFold
from steelyard.errors import DataError
from steelyard.files import read_json, write_json

if TYPE_CHECKING:
    from steelyard.data.table import DataTable

__all__ = ["WORK", "PreparedRows", "prepare_rows"]

WORK = "learner"
"""Folder of what a learner keeps itself to go on with after a kill."""
_FREQUENT, _QUANTILES = 1024, 1024


@dataclass(frozen=True, kw_only=True)
class PreparedRows:
    """Rows in files.

    Attributes:
        inputs: what columns became.
        target: what is predicted.
        store: codes or features, targets, and sides.
        total: rows of the table, those without a target among them.
        warnings: what is odd about columns, as far as the first pass tells.
    """

    inputs: TableInputs
    target: TargetColumn
    store: CodeStore | FeatureStore
    total: int
    warnings: list[str]

    def job(self, options: FitOptions, folder: Path | None = None, **more: Any) -> FitJob:
        """Return the job of a learner on these rows.

        Args:
            options: what is learned.
            folder: where what is kept for each row lies; in memory when None.
            **more: further fields of the job.

        Returns:
            The job.
        """
        if isinstance(self.inputs, CodeInputs):
            bins = self.inputs.bins
            more["num_codes"] = np.array([item.num_codes for item in bins], np.int64)
            more["is_text"] = np.array([item.is_text for item in bins], bool)
        given = {"store": self.store, "target": self.target, "seed": options.seed}
        return FitJob(**given, folder=folder, **more)


def prepare_rows(
    table: "DataTable",
    options: FitOptions,
    needs: Needs,
    folder: Path,
    done: Callable[[str, float], None] = lambda _what, _share: None,
) -> PreparedRows:
    """Write the rows of a table as a learner takes them; what stands of an earlier call is used.

    Args:
        table: the table.
        options: what is learned from which rows.
        needs: "codes" or "features".
        folder: takes the files; what another table or other options left there goes.
        done: is told what is worked on, "bins" and "codes", and the share of it that is done.

    Returns:
        The rows.

    Raises:
        DataError: a column cannot be predicted, or no column or row is left to learn from.
        ConfigError: text is to be predicted as a number.
        CapacityError: the disk is full.
    """
    settings = _plain(options)
    files = [[item.path, item.num_bytes] for item in table.files]
    kind = type(options.config).__name__
    key = hash_of([settings, files, str(table.schema), kind, needs])
    told, empty = folder / "about.json", folder / "inputs.pack"
    if told.exists() and read_json(told)["key"] == key:
        about = read_json(told)
        model = TableModel.open(empty)
        inputs, target = model.inputs, model.target
        store = _opened(folder, inputs, about["rows"], about["features"])
        given = {"total": about["total"], "warnings": about["warnings"]}
        return PreparedRows(inputs=inputs, target=target, store=store, **given)
    for path in folder.iterdir():
        if path.name == WORK:
            shutil.rmtree(path)
        elif path.name != ".lock":
            path.unlink()
    write = _write_coded if needs == "codes" else _write_featured
    found = write(table, options, folder, done)
    # A model needs a learner; one of no rows stands for that which is not fitted yet.
    nobody = Neighbours(
        target=found.target,
        count=1,
        features=np.empty((0, 0), np.float32),
        targets=np.empty(0, np.float32),
    )
    TableModel(inputs=found.inputs, target=found.target, learner=nobody).save(empty)
    width = found.inputs.count
    about = {"key": key, "rows": len(found.store.targets), "total": found.total, "features": width}
    # Last: what stands before it is whole.
    write_json(told, about | {"warnings": found.warnings})
    return found


def _plain(options: FitOptions) -> dict[str, Any]:
    """Return options as plain values: a learner of one's own need not be a dataclass."""
    learner = options.config
    told = asdict(learner) if is_dataclass(learner) else vars(learner)
    own = asdict(replace(options, learner=None))
    return own | {"leave_out": list(options.leave_out), "learner": repr(sorted(told.items()))}


def _opened(folder: Path, inputs: TableInputs, rows: int, width: int) -> CodeStore | FeatureStore:
    """Map the files of an earlier call."""
    if isinstance(inputs, CodeInputs):
        return CodeStore.open(folder, width, rows)
    assert isinstance(inputs, FeatureInputs), "one of the inputs"
    targets, is_held = open_sides(folder, rows)
    name = "" if inputs.reducer is None else "reduced.f32"
    features = open_features(folder, width, rows, name)
    return FeatureStore(features=features, targets=targets, is_held=is_held)


def _sides(folder: Path, options: FitOptions, target: TargetColumn, rows: int) -> RowSides:
    """Return what parts rows."""
    given = {"held_share": options.held_share, "by": options.by, "seed": options.seed}
    return RowSides(folder, target, rows, **given)


def _checked(sides: RowSides, options: FitOptions) -> int:
    """Return the rows that were written."""
    if not sides.count:
        raise DataError(f"no row has a {options.target!r}", hint="choose another target")
    return sides.count


def _write_coded(
    table: "DataTable",
    options: FitOptions,
    folder: Path,
    done: Callable[[str, float], None],
) -> PreparedRows:
    """Write codes."""
    inputs, target, total, warnings = _binned(table, options, done)
    sides = _sides(folder, options, target, total)
    read = bounded(table, options.memory)
    write_codes(
        folder,
        read,
        inputs.bins,
        sides,
        total,
        done=lambda rows: done("codes", rows / max(total, 1)),
    )
    store = CodeStore.open(folder, len(inputs.bins), _checked(sides, options))
    return PreparedRows(inputs=inputs, target=target, store=store, total=total, warnings=warnings)


def _write_featured(
    table: "DataTable",
    options: FitOptions,
    folder: Path,
    done: Callable[[str, float], None],
) -> PreparedRows:
    """Write features, narrower ones if wanted."""
    names = _names(table, options)
    found = find_features(
        table,
        names,
        also=[options.target],
        trims=True,
        memory=options.memory,
        done=lambda share: done("bins", share),
    )
    target = find_target(table, options.target, options.task, found.frequent[options.target])
    sides = _sides(folder, options, target, found.rows)
    features = write_features(
        folder,
        bounded(table, options.memory),
        found.encoder,
        found.rows,
        keep=sides.take,
        done=lambda rows: done("codes", rows / max(found.rows, 1)),
    )
    sides.flush()
    targets, is_held = open_sides(folder, _checked(sides, options))
    wanted, reducer = parse_reduction(options.reduce), None
    if wanted is not None:
        rows = np.flatnonzero(~np.asarray(is_held))
        reducer = fit_reduction(wanted, features, rows, options.seed)
        features = reduced(reducer, features, folder)
    store = FeatureStore(features=features, targets=targets, is_held=is_held)
    return PreparedRows(
        inputs=FeatureInputs(encoder=found.encoder, reducer=reducer),
        target=target,
        store=store,
        total=found.rows,
        warnings=found.warnings,
    )


def _names(table: "DataTable", options: FitOptions) -> list[str]:
    """Return the columns that are learned from."""
    names = feature_names(table, [options.target, *options.leave_out])
    if not names:
        raise DataError("no column is left to learn from", hint="leave fewer out")
    return names


def _binned(
    table: "DataTable", options: FitOptions, done: Callable[[str, float], None]
) -> tuple[CodeInputs, TargetColumn, int, list[str]]:
    """Return the bins of columns, the target, the rows of the table, and what is odd."""
    names = _names(table, options)
    texts = [name for name in names if is_text(table.schema.field(name).type)]
    numbers = [name for name in names if name not in texts]
    counted = frequent(*texts, options.target, size=_FREQUENT)
    folds: list[Any] = [RowCountFold(), counted]
    spread = quantiles(*numbers, k=_QUANTILES, whole=1 << 16)
    odd = OddNumbersFold(tuple(numbers))
    if numbers:
        folds += [spread, odd]
    read = [0]

    def count(num_bytes: int) -> None:
        read[0] += num_bytes
        done("bins", read[0] / max(table.num_bytes, 1))

    found = table.fold(*folds, memory=options.memory or None, done=count).results
    target = find_target(table, options.target, options.task, found[counted.name][options.target])
    sketches = found[spread.name] if numbers else {}
    bins = column_bins(table, names, sketches, found[counted.name])
    held = found[odd.name] if numbers else {}
    warnings = [
        f"column {name} has {infinite:,} infinite values: they count as the least or the largest"
        for name, (_, infinite) in held.items()
        if infinite
    ]
    return CodeInputs(bins=bins), target, int(found["rows"]), warnings

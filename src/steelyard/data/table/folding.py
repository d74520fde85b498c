"""Runs folds over the parts of a table, keeps finished parts, and merges them in a fixed tree."""

import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.cost.scan import READ_AHEAD_COLUMNS
from steelyard.data.arrow import release_unused
from steelyard.data.table.budget import FoldBudget
from steelyard.data.table.columns import forget_columns
from steelyard.data.table.fold import Fold
from steelyard.data.table.foldable import FoldableTable
from steelyard.data.table.journal import FoldJournal
from steelyard.data.table.partitions import TablePart
from steelyard.data.table.parts import FoldedPart, merge_parts, packed_part, unpacked_part
from steelyard.data.table.quarantine import Quarantine
from steelyard.data.table.read_ahead import read_ahead
from steelyard.errors import ConfigError
from steelyard.files import exclusive
from steelyard.parallel import stream_map

__all__ = ["Folded", "run_folds"]


@dataclass(frozen=True, slots=True)
class Folded:
    """What one pass found.

    Attributes:
        results: result of each fold, by its name.
        rows: rows that were folded.
        quarantine: rows that were set aside; with those they are all rows of the files.
    """

    results: Mapping[str, Any]
    rows: int
    quarantine: Quarantine


def run_folds(
    table: FoldableTable,
    folds: Sequence[Fold[Any]],
    *,
    workers: int = 1,
    cluster: str = "",
    journal: Path | None = None,
    budget: FoldBudget | None = None,
    done: Callable[[int], None] = lambda _: None,
) -> Folded:
    """Fold a table; see `DataTable.fold`."""
    names = [fold.name for fold in folds]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"two folds are named {twice[0]!r}", hint="give each a name of its own")
    with ExitStack() as opened:
        keeper = shelf = None
        if journal:
            # Two runs on one journal would each take the other's parts away at the end.
            opened.enter_context(exclusive(journal, wait_s=0.0))
            keeper = FoldJournal(journal, table, names)
        if budget:
            shelf = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="folded-")))
            workers = min(workers, budget.workers)
        parts = _parts(table, folds, _Where(workers, cluster, bool(budget)), keeper, done)
        whole = merge_parts(parts, table.schema, folds, shelf=shelf)
        if keeper:
            keeper.clear()
    results = {
        fold.name: fold.finish(state) for fold, state in zip(folds, whole.states, strict=True)
    }
    return Folded(results, whole.rows, whole.quarantine)


@dataclass(frozen=True, slots=True)
class _Where:
    """Who folds parts, and whether no more of them may wait than there are workers."""

    workers: int
    cluster: str
    is_bounded: bool


def _parts(
    table: FoldableTable,
    folds: Sequence[Fold[Any]],
    where: _Where,
    journal: FoldJournal | None,
    done: Callable[[int], None],
) -> Iterator[FoldedPart]:
    """Return the folded parts in their order; those in the journal are not read again."""
    numbers = range(len(table.partitions))
    is_kept = [journal is not None and journal.read(number) is not None for number in numbers]
    missing = [table.partitions[number] for number in numbers if not is_kept[number]]
    made = _folded(table, folds, missing, where)
    for number in numbers:
        packed = journal.read(number) if journal and is_kept[number] else next(made)
        if packed is None:
            raise ConfigError("another program took parts from the journal", hint="run it again")
        if journal and not is_kept[number]:
            journal.write(number, packed)
        yield unpacked_part(packed, table.schema, folds)
        done(table.partitions[number].num_bytes)


def _folded(
    table: FoldableTable, folds: Sequence[Fold[Any]], missing: Sequence[TablePart], where: _Where
) -> Iterator[dict[str, np.ndarray]]:
    """Fold parts where they are folded; their states alone come back."""
    workers = min(where.workers, max(len(missing), 1))
    # Reading a batch while the one before is folded takes a second core, which workers have. Of
    # many columns each is short, and threads would wait for one another's turn at Python.
    is_narrow = len(table.schema) <= READ_AHEAD_COLUMNS
    is_alone = workers == 1 and not where.cluster and is_narrow
    try:
        yield from stream_map(
            partial(_fold_part, table, folds, is_alone),
            missing,
            workers=workers,
            cluster=where.cluster,
            in_flight=workers if where.is_bounded else None,
            name=lambda part: f"the part of {part.path} from row {part.first_row}",
        )
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        if "pickle" not in str(error):
            raise
        raise ConfigError(
            f"a step or fold cannot be sent to another process: {error}", hint="use workers=1"
        ) from error


def _fold_part(
    table: FoldableTable, folds: Sequence[Fold[Any]], is_alone: bool, partition: TablePart
) -> dict[str, np.ndarray]:
    """Fold one part of a table and return its states as arrays."""
    part = FoldedPart.empty(table.schema, folds)
    batches = table.read(partition, part.quarantine)
    for batch in read_ahead(batches) if is_alone else batches:
        part.rows += len(batch)
        for fold, state in zip(folds, part.states, strict=True):
            fold.update(state, batch)
    forget_columns()
    release_unused()
    return packed_part(part, folds)

"""Runs folds over the parts of a table, keeps finished parts, and merges them in a fixed tree."""

import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from steelyard.data.pack import Pack, write_pack
from steelyard.data.stages import hash_of
from steelyard.data.table.counts import ReadCounts
from steelyard.data.table.fold import Fold
from steelyard.data.table.partitions import TableFile, TablePart
from steelyard.data.table.quarantine import BadRow, Quarantine
from steelyard.data.table.sources import stamp_of
from steelyard.errors import ConfigError, DataError
from steelyard.files import exclusive
from steelyard.parallel import parallel_map

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Folded", "run_folds"]

_STATE, _BAD = "state", "quarantine"


class FoldableTable(Protocol):
    """What folding needs of a table: its files, its parts, and their rows."""

    @property
    def schema(self) -> "pa.Schema":
        """Columns with their types."""
        ...

    @property
    def files(self) -> Sequence[TableFile]:
        """The files."""
        ...

    @property
    def partitions(self) -> Sequence[TablePart]:
        """Parts that are read at once."""
        ...

    @property
    def steps(self) -> Sequence[Any]:
        """What is done to each batch."""
        ...

    def read(self, partition: TablePart, quarantine: Quarantine) -> "Iterator[pa.RecordBatch]":
        """Read a part."""
        ...


@dataclass(frozen=True, slots=True)
class Folded:
    """What one pass found.

    Attributes:
        results: by name of the fold.
        rows: rows that were folded.
        quarantine: rows that were set aside; with those they are all rows of the files.
    """

    results: Mapping[str, Any]
    rows: int
    quarantine: Quarantine


@dataclass(slots=True)
class _Part:
    """States of some parts of a table, in the order of the folds."""

    states: list[Any]
    rows: int
    quarantine: Quarantine


def run_folds(
    table: FoldableTable,
    folds: Sequence[Fold[Any]],
    *,
    workers: int = 1,
    journal: Path | None = None,
    done: Callable[[int], None] = lambda _: None,
) -> Folded:
    """Fold a table; see `DataTable.fold`."""
    names = [fold.name for fold in folds]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"two folds are named {twice[0]!r}", hint="give each a name of its own")
    # Two runs on one journal would each take the other's parts away at the end.
    with exclusive(journal, wait_s=0.0) if journal else nullcontext():
        keeper = _Journal(journal, table, names) if journal else None
        parts = _parts(table, folds, workers, keeper, done)
        whole = _merged(parts, folds) or _empty(table, folds)
        if keeper:
            keeper.clear()
    results = {
        fold.name: fold.finish(state) for fold, state in zip(folds, whole.states, strict=True)
    }
    return Folded(results, whole.rows, whole.quarantine)


def _parts(
    table: FoldableTable,
    folds: Sequence[Fold[Any]],
    workers: int,
    journal: "_Journal | None",
    done: Callable[[int], None],
) -> Iterator[_Part]:
    """Return the folded parts in their order; those in the journal are not read again."""
    # Some parts at a time: a table of thousands of parts must not keep all their states.
    at_once = 4 * workers if workers > 1 else 1
    for start in range(0, len(table.partitions), at_once):
        numbers = range(start, min(start + at_once, len(table.partitions)))
        kept = {number: journal.read(number) if journal else None for number in numbers}
        missing = [table.partitions[number] for number in numbers if kept[number] is None]
        made = iter(_folded(table, folds, missing, workers))
        for number in numbers:
            packed = kept[number]
            if packed is None:
                packed = next(made)
                if journal:
                    journal.write(number, packed)
            yield _unpacked(packed, table, folds)
            done(table.partitions[number].num_bytes)


def _folded(
    table: FoldableTable, folds: Sequence[Fold[Any]], missing: Sequence[TablePart], workers: int
) -> list[dict[str, np.ndarray]]:
    """Fold parts in processes."""
    try:
        return parallel_map(partial(_fold_part, table, folds), missing, workers=workers)
    except pickle.PicklingError as error:
        raise ConfigError(
            f"a step or fold cannot be sent to another process: {error}", hint="use workers=1"
        ) from error


def _fold_part(
    table: FoldableTable, folds: Sequence[Fold[Any]], partition: TablePart
) -> dict[str, np.ndarray]:
    """Fold one part of a table and return its states as arrays."""
    states = [fold.init(table.schema) for fold in folds]
    quarantine, rows = Quarantine(), 0
    for batch in table.read(partition, quarantine):
        rows += len(batch)
        for fold, state in zip(folds, states, strict=True):
            fold.update(state, batch)
    return _packed(_Part(states, rows, quarantine), folds)


def _packed(part: _Part, folds: Sequence[Fold[Any]]) -> dict[str, np.ndarray]:
    bad = {
        "rows": [list(row) for row in part.quarantine.rows],
        "counts": [[*key, count] for key, count in part.quarantine.counts.items()],
        "reads": [part.quarantine.reads.num_bytes, part.quarantine.reads.requests],
    }
    found = {
        "rows": np.array([part.rows]),
        _BAD: np.frombuffer(json.dumps(bad).encode(), np.uint8),
    }
    for place, (fold, state) in enumerate(zip(folds, part.states, strict=True)):
        for name, values in fold.sections(state).items():
            found[f"{_STATE}/{place}/{name}"] = values
    return found


def _unpacked(
    sections: Mapping[str, np.ndarray], table: FoldableTable, folds: Sequence[Fold[Any]]
) -> _Part:
    quarantine = Quarantine()
    bad = json.loads(sections[_BAD].tobytes())
    quarantine.rows = [BadRow(*row) for row in bad["rows"]]
    quarantine.counts.update({(file, field, why): n for file, field, why, n in bad["counts"]})
    quarantine.reads = ReadCounts(*bad["reads"])
    states = []
    for place, fold in enumerate(folds):
        begins = f"{_STATE}/{place}/"
        own = {
            name.removeprefix(begins): values
            for name, values in sections.items()
            if name.startswith(begins)
        }
        states.append(fold.of(table.schema, own))
    return _Part(states, int(sections["rows"][0]), quarantine)


def _merged(parts: Iterator[_Part], folds: Sequence[Fold[Any]]) -> _Part | None:
    """Merge parts as a binary counter adds: equal runs of neighbours, few of them kept at once."""
    runs: list[tuple[int, _Part]] = []
    for part in parts:
        runs.append((1, part))
        while len(runs) > 1 and runs[-1][0] == runs[-2][0]:
            length, later = runs.pop()
            _merge(runs[-1][1], later, folds)
            runs[-1] = (2 * length, runs[-1][1])
    while len(runs) > 1:
        _, later = runs.pop()
        _merge(runs[-1][1], later, folds)
    return runs[0][1] if runs else None


def _merge(part: _Part, later: _Part, folds: Sequence[Fold[Any]]) -> None:
    for fold, state, other in zip(folds, part.states, later.states, strict=True):
        fold.merge(state, other)
    part.rows += later.rows
    part.quarantine.merge(later.quarantine)


def _empty(table: FoldableTable, folds: Sequence[Fold[Any]]) -> _Part:
    return _Part([fold.init(table.schema) for fold in folds], 0, Quarantine())


class _Journal:
    """Finished parts in a folder, each a pack; they count for the same files and folds alone."""

    def __init__(self, folder: Path, table: FoldableTable, names: Sequence[str]) -> None:
        if table.steps:
            raise ConfigError(
                "a journal cannot tell whether steps are the same as before",
                hint="leave the journal out, or write the table with its steps first",
            )
        self._key = hash_of(
            [[item.path, stamp_of(item.path)] for item in table.files],
            [[part.path, part.first, part.last] for part in table.partitions],
            str(table.schema),
            list(names),
        )
        self._folder = folder

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._key[:16]}-{number:06d}.pack"

    def read(self, number: int) -> dict[str, np.ndarray] | None:
        """Return a finished part, None where it is not there or damaged."""
        path = self._path(number)
        if not path.is_file():
            return None
        try:
            return Pack.open(path).sections()
        except DataError:
            return None

    def write(self, number: int, sections: Mapping[str, np.ndarray]) -> None:
        """Keep a finished part."""
        write_pack(self._path(number), sections)

    def clear(self) -> None:
        """Remove all parts, those of other runs that were never finished too."""
        for path in self._folder.glob("*.pack"):
            path.unlink(missing_ok=True)

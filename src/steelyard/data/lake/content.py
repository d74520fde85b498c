"""Check pairs of tables by rows: a sample of the child's rows must all be in the parent."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.data.lake.bounds import order_codes
from steelyard.data.lake.hashing import RowReader, row_hashes
from steelyard.data.lake.tables import LakePart, LakeTable, leaf_values
from steelyard.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RowCheck", "check_pairs", "lower_bound", "sample_size"]

_MOST_CODED = 2048
"""Rows of a sample up to which parts of the parent are chosen by their values."""


class RowCheck(NamedTuple):
    """What rows say of a pair.

    Attributes:
        rows: different rows of the child that were looked for.
        missing: how many of them the parent lacks.
        is_whole: whether these are all rows of the child.
        example: number of a row of the child, from 1, that the parent lacks; 0 for none.
    """

    rows: int
    missing: int
    is_whole: bool
    example: int


def sample_size(epsilon: float, delta: float) -> int:
    """Return how many rows to look for.

    Args:
        epsilon: share of the child's rows that a wrong parent lacks at least, 0 to 1 exclusive.
        delta: chance that such a parent is kept all the same, 0 to 1 exclusive.

    Returns:
        Rows, ln(delta) / ln(1 - epsilon) rounded up.

    Source: R2D2 (arXiv 2312.13427), content-level pruning: P(kept) = (1 - epsilon)^rows.
    """
    return math.ceil(math.log(delta) / math.log1p(-epsilon))


def lower_bound(check: RowCheck, delta: float) -> float:
    """Return the share of the child's rows that the parent holds, at least.

    Args:
        check: without a missing row.
        delta: chance that the share is smaller.

    Returns:
        1 where all rows were found, else delta^(1 / rows).
    """
    return 1.0 if check.is_whole else delta ** (1 / check.rows)


@dataclass(slots=True)
class _WantedRows:
    """Rows of a child that its parents are asked for.

    Attributes:
        hashes: hashes of each column, [rows].
        numbers: numbers of the rows in the table, from 1, [rows].
        codes: order codes of the values, [rows, columns]; None where there are too many.
        is_whole: whether these are all rows.
    """

    hashes: Mapping[str, NDArray[np.uint64]]
    numbers: NDArray[np.int64]
    codes: NDArray[np.float64] | None
    is_whole: bool


def check_pairs(
    pairs: Sequence[tuple[LakeTable, LakeTable]],
    reader: RowReader,
    *,
    sample: int | None,
    rng: np.random.Generator,
    bag: bool = False,
) -> Iterator[tuple[int, RowCheck]]:
    """Check pairs by rows; a parent is read once for all its children.

    Args:
        pairs: child and parent; a child may be a part of a table.
        reader: reads and counts; tables that cannot be read are named there.
        sample: rows of a child to look for, drawn uniformly without replacement; None for all.
        rng: draws them.
        bag: ask that the parent has each row as often as the child; needs all rows.

    Yields:
        Place of the pair, and what the rows say; nothing for a pair that cannot be read.
    """
    by_parent: dict[str, list[int]] = {}
    wanted: dict[tuple[str, int], _WantedRows] = {}
    for place, (child, parent) in enumerate(pairs):
        by_parent.setdefault(parent.name, []).append(place)
        key = (child.name, len(child.parts))
        if key not in wanted and child.name not in reader.problems:
            try:
                wanted[key] = _wanted(child, reader, sample, rng)
            except DataError as error:
                reader.problems[child.name] = str(error)
    for name, places in by_parent.items():
        searches = {
            place: _ChildSearch(child, wanted[child.name, len(child.parts)], bag=bag)
            for place in places
            if ((child := pairs[place][0]).name, len(child.parts)) in wanted
        }
        try:
            _search(pairs[places[0]][1], list(searches.values()), reader)
        except DataError as error:
            reader.problems[name] = str(error)
            continue
        yield from ((place, search.result()) for place, search in searches.items())


def _wanted(
    table: LakeTable, reader: RowReader, sample: int | None, rng: np.random.Generator
) -> _WantedRows:
    """Read the rows of a child that are looked for."""
    names = [column.name for column in table.columns]
    rows = table.rows
    if sample is None or rows < 0 or rows <= sample:
        pieces = [piece for part in table.parts for piece in reader.hashes(table, part, names)]
        whole = {
            name: np.concatenate([np.zeros(0, np.uint64), *(piece[name] for piece in pieces)])
            for name in names
        }
        count = len(whole[names[0]])
        return _WantedRows(whole, np.arange(1, count + 1), None, is_whole=True)
    drawn = np.sort(rng.choice(rows, sample, replace=False))
    starts = np.cumsum([0, *(part.rows for part in table.parts)])
    places = np.searchsorted(starts, drawn, side="right") - 1
    made = [
        _taken(table, reader, table.parts[part], drawn[places == part] - starts[part], names)
        for part in np.unique(places)
    ]
    hashes = {name: np.concatenate([own[name] for own, _ in made]) for name in names}
    codes = np.concatenate([codes for _, codes in made]) if sample <= _MOST_CODED else None
    return _WantedRows(hashes, drawn + 1, codes, is_whole=False)


def _taken(
    table: LakeTable,
    reader: RowReader,
    part: LakePart,
    drawn: NDArray[np.int64],
    names: Sequence[str],
) -> tuple[dict[str, NDArray[np.uint64]], NDArray[np.float64]]:
    """Return hashes and codes of the rows of a part that were drawn."""
    import pyarrow as pa

    codes: list[NDArray[np.float64]] = []
    first = 0

    def see(batch: "pa.RecordBatch") -> None:
        nonlocal first
        inside = drawn[(drawn >= first) & (drawn < first + len(batch))] - first
        rows = batch.take(pa.array(inside))
        codes.append(np.stack([order_codes(leaf_values(rows, name)) for name in names], axis=1))
        first += len(batch)

    pieces = list(reader.hashes(table, part, names, see))
    hashes = {name: np.concatenate([piece[name] for piece in pieces])[drawn] for name in names}
    return hashes, np.concatenate(codes)


class _ChildSearch:
    """Rows of one child, and how often a parent has been seen to hold each."""

    def __init__(self, child: LakeTable, wanted: _WantedRows, *, bag: bool) -> None:
        self.columns = [column.name for column in child.columns]
        self.codes, self._is_whole, self._bag = wanted.codes, wanted.is_whole, bag
        hashes = row_hashes(wanted.hashes, self.columns)
        self._hashes, firsts, self._places, self._counts = np.unique(
            hashes, return_index=True, return_inverse=True, return_counts=True
        )
        self._numbers = wanted.numbers[firsts]
        self._found = np.zeros(len(self._hashes), np.int64)

    def look(self, hashes: Mapping[str, NDArray[np.uint64]]) -> None:
        """Count rows of the parent."""
        if not len(self._hashes):
            return
        rows = row_hashes(hashes, self.columns)
        places = np.minimum(np.searchsorted(self._hashes, rows), len(self._hashes) - 1)
        hits = places[self._hashes[places] == rows]
        self._found += np.bincount(hits, minlength=len(self._hashes))

    def can_be_in(self, part: LakePart, columns: Sequence[int]) -> bool:
        """Whether a part of the parent may hold a row that has not been found."""
        if self.codes is None:
            return bool((self._found == 0).any()) or self._bag
        open_rows = self.codes[(self._found == 0)[self._places]]
        low, high = part.low[list(columns)], part.high[list(columns)]
        # Where a part holds no value of a column, only rows that miss it pass.
        outside = (open_rows < low) | (open_rows > high)
        return bool((~outside.any(axis=1)).any())

    def result(self) -> RowCheck:
        """Return what was found."""
        lacking = self._found < (self._counts if self._bag else 1)
        example = int(self._numbers[lacking].min()) if lacking.any() else 0
        return RowCheck(len(self._hashes), int(lacking.sum()), self._is_whole, example)


def _search(parent: LakeTable, searches: Sequence[_ChildSearch], reader: RowReader) -> None:
    """Look for the rows of all children in one pass over a parent."""
    place_of = {column.name: place for place, column in enumerate(parent.columns)}
    places = [[place_of[name] for name in search.columns] for search in searches]
    columns = list(dict.fromkeys(name for search in searches for name in search.columns))
    for part in parent.parts:
        asking = [
            search
            for search, own in zip(searches, places, strict=True)
            if search.can_be_in(part, own)
        ]
        if not asking:
            continue
        for hashes in reader.hashes(parent, part, columns):
            for search in asking:
                search.look(hashes)

"""Rows that are there twice: equal ones by their hashes, and texts that are nearly alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from steelyard.data.pipeline.step import ColumnStep, RejectedRows
from steelyard.data.sketch import MinHasher
from steelyard.data.sketch.hashing import add_to_rows, scramble
from steelyard.data.sketch.minhash import EMPTY
from steelyard.data.sketch.near_duplicates import duplicate_roots, text_signatures
from steelyard.data.table.columns import columns_of, is_text
from steelyard.data.table.fitting import ROW, row_of
from steelyard.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table.fold import Fold

__all__ = ["Duplicates", "NearDuplicates", "RepeatedRows", "RowCodes", "RowCodesFold"]


def _keys(batch: "pa.RecordBatch", names: Sequence[str]) -> NDArray[np.uint64]:
    """Return a hash of some columns of each row [rows]."""
    columns = columns_of(batch)
    whole = np.zeros(len(batch), np.uint64)
    for at, name in enumerate(names):
        add_to_rows(whole, columns.hashes(batch.schema.get_field_index(name)), at)
    scramble(whole)
    return whole


@dataclass(slots=True)
class RowCodes:
    """What is kept of each row.

    Attributes:
        rows: numbers of rows, batch by batch [batches][rows].
        codes: hashes, or signatures, of the same [batches][rows, ...].
    """

    rows: list[NDArray[np.int64]]
    codes: list[NDArray[Any]]


@dataclass(frozen=True, slots=True)
class RowCodesFold:
    """A `Fold` of a hash of each row, 16 bytes a row, or of a text's signature, 456 bytes.

    Attributes:
        columns: columns that are hashed; of signatures the one column of text.
        is_near: whether signatures are kept.
    """

    columns: tuple[str, ...]
    is_near: bool = False

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in a state."""
        return 456 if self.is_near else 16

    @property
    def name(self) -> str:
        """What it is called in results."""
        return f"{'signatures' if self.is_near else 'row codes'} of {', '.join(self.columns)}"

    def init(self, schema: "pa.Schema") -> RowCodes:
        """Return the state before any row."""
        return RowCodes([], [])

    def update(self, state: RowCodes, batch: "pa.RecordBatch") -> None:
        """Take rows in."""
        import pyarrow as pa

        state.rows.append(np.asarray(batch[ROW]).copy())
        if self.is_near:
            texts = batch[self.columns[0]].cast(pa.binary()).to_pylist()
            signed = text_signatures((text or b"" for text in texts), MinHasher())
            state.codes.append(signed)
        else:
            state.codes.append(_keys(batch, self.columns))

    def merge(self, state: RowCodes, later: RowCodes) -> None:
        """Take in the state of rows that come later."""
        state.rows += later.rows
        state.codes += later.codes

    def finish(self, state: RowCodes) -> RowCodes:
        """Return what is kept."""
        return state

    def sections(self, state: RowCodes) -> dict[str, NDArray[Any]]:
        """Return a state as arrays by name."""
        if not state.rows:
            return {"rows": np.zeros(0, np.int64), "codes": np.zeros(0, np.uint64)}
        return {"rows": np.concatenate(state.rows), "codes": np.concatenate(state.codes)}

    def of(self, schema: "pa.Schema", sections: dict[str, NDArray[Any]]) -> RowCodes:
        """Return the state of such arrays."""
        if not len(sections["rows"]):
            return RowCodes([], [])
        return RowCodes([np.array(sections["rows"])], [np.array(sections["codes"])])


@dataclass(frozen=True, eq=False, kw_only=True)
class RepeatedRows:
    """Rows of the training table that are there a second time.

    Attributes:
        columns: columns by which they were compared.
        rows: their numbers, ascending [R].
        firsts: number of the first row that each is like [R].
        reason: how they were compared, in words.
    """

    columns: tuple[str, ...]
    rows: NDArray[np.int64]
    firsts: NDArray[np.int64]
    reason: str
    is_for_training: ClassVar[bool] = True

    def schema(self, schema: "pa.Schema") -> "pa.Schema":
        """Return the columns after the step: the same."""
        return schema

    def transform(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return the batch after the step: the same."""
        return batch

    def reject(self, batch: "pa.RecordBatch") -> list[RejectedRows]:
        """Return the rows that are set aside, each with the row that it is like."""
        if not len(self.rows):
            return []
        numbers = np.asarray(batch[ROW])
        at = np.minimum(np.searchsorted(self.rows, numbers), len(self.rows) - 1)
        places = np.flatnonzero(self.rows[at] == numbers)
        told = [f"row {row}" for row in row_of(self.firsts[at[places]]).tolist()]
        return [RejectedRows(places, "", told, self.reason)] if len(places) else []


def _repeated(
    columns: Sequence[str], rows: NDArray[np.int64], firsts: NDArray[np.int64], reason: str
) -> RepeatedRows:
    """Return the step that sets some rows aside."""
    order = np.argsort(rows)
    return RepeatedRows(
        columns=tuple(columns), rows=rows[order], firsts=firsts[order], reason=reason
    )


@dataclass(frozen=True, kw_only=True)
class Duplicates(ColumnStep):
    """Sets training rows aside that equal an earlier one, by a hash of 64 bits.

    Rows that a fitted pipeline is applied to later are left alone.

    Attributes:
        columns: names of a key; empty for all columns.
    """

    _rejects: ClassVar[bool] = True
    _needs_rows: ClassVar[bool] = True
    wants: ClassVar[str] = "any kind"

    def fits(self, kind: "pa.DataType") -> bool:
        """Return true: every column can be compared."""
        return True

    def folds(self, columns: Sequence[str]) -> "Sequence[Fold[Any]]":
        """Return a hash of each row."""
        return (RowCodesFold(tuple(columns)),)

    def fitted(
        self, columns: Sequence[str], schema: "pa.Schema", results: Mapping[str, Any]
    ) -> RepeatedRows:
        """Return the rows that are there a second time."""
        found = results[self.folds(columns)[0].name]
        if not found.rows:
            none = np.zeros(0, np.int64)
            return _repeated(columns, none, none, "there twice")
        rows, codes = np.concatenate(found.rows), np.concatenate(found.codes)
        order = np.lexsort((rows, codes))
        rows, codes = rows[order], codes[order]
        is_first = np.ones(len(rows), bool)
        is_first[1:] = codes[1:] != codes[:-1]
        at = np.maximum.accumulate(np.where(is_first, np.arange(len(rows)), 0))
        again = ~is_first
        words = "equal to an earlier row" if not self.columns else "of a key that is there before"
        return _repeated(columns, rows[again], rows[at[again]], words)


@dataclass(frozen=True, kw_only=True)
class NearDuplicates(ColumnStep):
    """Sets training rows aside whose text is nearly that of another: by MinHash of runs of words.

    Attributes:
        columns: the one column of text.
        threshold: least estimated Jaccard similarity of runs of five words.
    """

    threshold: float = 0.8
    _rejects: ClassVar[bool] = True
    _needs_rows: ClassVar[bool] = True
    wants: ClassVar[str] = "text"

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            ConfigError: not one column, or a threshold outside of (0, 1].
        """
        if len(self.columns) != 1 or not 0 < self.threshold <= 1:
            raise ConfigError("NearDuplicates is for one column, and a threshold in (0, 1]")

    def fits(self, kind: "pa.DataType") -> bool:
        """Return whether a column is text."""
        return is_text(kind)

    def folds(self, columns: Sequence[str]) -> "Sequence[Fold[Any]]":
        """Return the signature of each text."""
        return (RowCodesFold(tuple(columns), True),)

    def fitted(
        self, columns: Sequence[str], schema: "pa.Schema", results: Mapping[str, Any]
    ) -> RepeatedRows:
        """Return the rows that are like another."""
        found = results[self.folds(columns)[0].name]
        none = np.zeros(0, np.int64)
        words = f"text at least {self.threshold:g} like another"
        if not found.rows:
            return _repeated(columns, none, none, words)
        rows, signed = np.concatenate(found.rows), np.concatenate(found.codes)
        # Texts without words are alike and tell nothing.
        known = np.flatnonzero((signed != EMPTY).any(axis=1))
        roots = np.arange(len(rows))
        roots[known] = known[duplicate_roots(signed[known], self.threshold)]
        again = roots != np.arange(len(rows))
        return _repeated(columns, rows[again], rows[roots[again]], words)

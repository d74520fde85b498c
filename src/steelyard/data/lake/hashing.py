"""Hashes of rows over chosen columns: those of columns are added, so that any choice is a sum."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from steelyard.data.lake.tables import LakePart, LakeTable, leaf_values
from steelyard.data.sketch import hash_column
from steelyard.data.sketch.hashing import mix64
from steelyard.data.table.partitions import TablePart

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ColumnHashes", "RowReader", "column_hashes", "row_hashes"]

ColumnHashes = Mapping[str, NDArray[np.uint64]]
"""Hashes by column, [rows] each."""


def column_hashes(batch: "pa.RecordBatch", columns: Iterable[str]) -> dict[str, NDArray[np.uint64]]:
    """Return hashes of values, mixed with the name of their column.

    Args:
        batch: rows.
        columns: leaves.

    Returns:
        Hashes by column, [rows] each.
    """
    return {name: mix64(hash_column(leaf_values(batch, name)) + _seed(name)) for name in columns}


def _seed(name: str) -> np.uint64:
    """Return a number of a column's name, so that values that change columns change the row."""
    return np.uint64(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big"))


def row_hashes(hashes: ColumnHashes, columns: Sequence[str]) -> NDArray[np.uint64]:
    """Return hashes of rows over some columns.

    The order of the columns does not matter. Two different rows of 10^6 and 10^8 collide with a
    chance of about 5e-6.

    Args:
        hashes: hashes that `column_hashes` returns.
        columns: one or more of its columns.

    Returns:
        Hashes, [rows].
    """
    total = hashes[columns[0]].copy()
    for name in columns[1:]:
        total += hashes[name]
    return total


@dataclass(slots=True)
class RowReader:
    """Reads hashes of rows, counts what it reads, and keeps hashes for later while there is room.

    Attributes:
        keep_bytes: memory that is left for hashes that are kept.
        rows_read: rows that were decoded so far.
        bytes_read: bytes of the parts that were read, before compression.
        problems: why a table could not be read, by name.
    """

    keep_bytes: int = 256 << 20
    rows_read: int = 0
    bytes_read: int = 0
    problems: dict[str, str] = field(default_factory=dict)
    _kept: dict[TablePart, dict[str, NDArray[np.uint64]]] = field(default_factory=dict)

    def hashes(
        self,
        table: LakeTable,
        part: LakePart,
        columns: Sequence[str],
        see: "Callable[[pa.RecordBatch], None] | None" = None,
    ) -> Iterator[ColumnHashes]:
        """Return hashes of columns of a part in pieces, in the order of the rows.

        Args:
            table: the table.
            part: one of its parts.
            columns: leaves.
            see: is shown each batch before its hashes; the part is read even if hashes are kept.

        Yields:
            Hashes by column.

        Raises:
            DataError: the file has changed or cannot be read.
        """
        kept = self._kept.get(part.source, {})
        if see is None and set(columns) <= set(kept):
            yield kept
            return
        size = 8 * len(columns) * max(part.rows, 0)
        keeps, pieces = 0 < size <= self.keep_bytes, []
        for batch in table.read(columns, [part]):
            self.rows_read += len(batch)
            if see:
                see(batch)
            made = column_hashes(batch, columns)
            if keeps:
                pieces.append(made)
            yield made
        self.bytes_read += part.source.num_bytes
        if keeps:
            self.keep_bytes -= size
            joined = {name: np.concatenate([piece[name] for piece in pieces]) for name in columns}
            self._kept[part.source] = kept | joined

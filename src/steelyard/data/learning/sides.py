"""Which rows of a table are learned from, which are kept aside, and what is predicted of each."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from steelyard.data.learning.targets import TargetColumn
from steelyard.data.mapped_rows import new_map
from steelyard.data.sketch.hashing import hash_integers
from steelyard.data.table.columns import columns_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RowSides", "open_sides"]

_TARGETS, _HELD = "targets.f32", "held.u8"


class RowSides:
    """Writes targets and sides of rows to files, batch after batch.

    Attributes:
        count: rows that were written.
    """

    def __init__(
        self,
        folder: Path,
        target: TargetColumn,
        rows: int,
        *,
        held_share: float,
        by: str = "",
        seed: int = 0,
    ) -> None:
        """Make the files.

        Args:
            folder: where they go.
            target: what is predicted.
            rows: rows of the table.
            held_share: share of rows that are kept aside.
            by: column whose equal values stay on one side; the number of the row when empty.
            seed: changes which rows are kept aside.
        """
        self._target, self._by, self._seed = target, by, seed
        self._limit = np.uint64(int(held_share * (2.0**64 - 2**12)))
        self._targets = new_map(folder / _TARGETS, np.float32, (rows,))
        self._held = new_map(folder / _HELD, np.bool_, (rows,))
        self.count = self._read = 0

    def take(self, batch: "pa.RecordBatch") -> NDArray[np.int64]:
        """Write the rows of a batch that have a target.

        Args:
            batch: rows.

        Returns:
            Their places in the batch.
        """
        values = self._target.values(batch)
        kept = np.flatnonzero(~np.isnan(values))
        part = slice(self.count, self.count + len(kept))
        self._targets[part] = values[kept]
        keys = _keys(batch, self._by, self._read)[kept]
        # The hash of a hash: rows in a row and seeds in a row must not be alike.
        salted = hash_integers(keys.view(np.int64)) ^ hash_integers(
            np.array([self._seed], np.int64)
        )
        self._held[part] = hash_integers(salted.view(np.int64)) < self._limit
        self.count, self._read = part.stop, self._read + len(batch)
        return kept

    def flush(self) -> None:
        """Write what is still in memory."""
        self._targets.flush()
        self._held.flush()


def open_sides(folder: Path, rows: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Map the files of `RowSides`: targets and which rows are kept aside, both [rows]."""
    targets = np.memmap(folder / _TARGETS, np.float32, "r", shape=(rows,))
    return targets, np.memmap(folder / _HELD, np.bool_, "r", shape=(rows,))


def _keys(batch: "pa.RecordBatch", by: str, first: int) -> NDArray[np.uint64]:
    """Return what says on which side rows go."""
    if by:
        return columns_of(batch).hashes(batch.schema.get_field_index(by))
    return np.arange(first, first + len(batch), dtype=np.uint64)

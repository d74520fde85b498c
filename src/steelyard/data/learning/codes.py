"""Codes of a whole table in a file, a column behind the other, mapped and not held in memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from steelyard.data.learning.bins import FeatureBins
from steelyard.data.learning.targets import TargetColumn
from steelyard.data.sketch.hashing import hash_integers
from steelyard.data.table.columns import columns_of

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table import DataTable

__all__ = ["CodeStore", "write_codes"]

_CODES, _TARGETS, _HELD = "codes.u8", "targets.f32", "held.u8"


@dataclass(frozen=True, kw_only=True)
class CodeStore:
    """Codes, targets and which rows are held out, mapped from files.

    Attributes:
        codes: uint8 [F, N].
        targets: float32 [N].
        is_held: rows that are kept aside [N].
    """

    codes: NDArray[np.uint8]
    targets: NDArray[np.float32]
    is_held: NDArray[np.bool_]

    @classmethod
    def open(cls, folder: Path, features: int, rows: int) -> "CodeStore":
        """Map the files of `write_codes`."""
        return cls(
            codes=np.memmap(folder / _CODES, np.uint8, "r", shape=(features, rows)),
            targets=np.memmap(folder / _TARGETS, np.float32, "r", shape=(rows,)),
            is_held=np.memmap(folder / _HELD, np.bool_, "r", shape=(rows,)),
        )


def write_codes(
    folder: Path,
    table: "DataTable",
    bins: Sequence[FeatureBins],
    target: TargetColumn,
    rows: int,
    *,
    held_share: float,
    by: str = "",
    seed: int = 0,
    done: Callable[[int], None] = lambda _: None,
) -> int:
    """Write the codes of all rows that have a target.

    Args:
        folder: where the files go.
        table: the table.
        bins: bins of its columns.
        target: what is predicted.
        rows: rows of the table.
        held_share: share of rows that are kept aside.
        by: column whose equal values stay on one side; the number of the row when empty.
        seed: changes which rows are kept aside.
        done: is told how many rows were read.

    Returns:
        Rows that were written; those without a target are left out.
    """
    shape = (len(bins), rows)
    codes = np.memmap(folder / _CODES, np.uint8, "w+", shape=shape)
    targets = np.memmap(folder / _TARGETS, np.float32, "w+", shape=(rows,))
    held = np.memmap(folder / _HELD, np.bool_, "w+", shape=(rows,))
    first = read = 0
    for batch in table.batches:
        values = target.values(batch)
        kept = np.flatnonzero(~np.isnan(values))
        last = first + len(kept)
        for place, column in enumerate(bins):
            codes[place, first:last] = column.encode(batch)[kept]
        targets[first:last] = values[kept]
        keys = _keys(batch, by, read)[kept]
        limit = np.uint64(int(held_share * (2.0**64 - 2**12)))
        # The hash of a hash: rows in a row and seeds in a row must not be alike.
        salted = hash_integers(keys.view(np.int64)) ^ hash_integers(np.array([seed], np.int64))
        held[first:last] = hash_integers(salted.view(np.int64)) < limit
        first, read = last, read + len(batch)
        done(read)
    for part in (codes, targets, held):
        part.flush()
    if first < rows:
        # Columns stand behind each other: without the empty ends they move together.
        for place in range(1, len(bins)):
            codes.reshape(-1)[place * first : (place + 1) * first] = codes[place, :first].copy()
        codes.flush()
    return first


def _keys(batch: "pa.RecordBatch", by: str, first: int) -> NDArray[np.uint64]:
    """Return what says on which side rows go."""
    if by:
        return columns_of(batch).hashes(batch.schema.get_field_index(by))
    return np.arange(first, first + len(batch), dtype=np.uint64)

"""Codes of a whole table in a file, a column behind the other, mapped and not held in memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from steelyard.data.learning.bins import FeatureBins
from steelyard.data.learning.sides import RowSides, open_sides
from steelyard.data.mapped_rows import new_map

if TYPE_CHECKING:
    from steelyard.data.table import DataTable

__all__ = ["CodeStore", "write_codes"]

_CODES = "codes.u8"


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
        targets, is_held = open_sides(folder, rows)
        codes = np.memmap(folder / _CODES, np.uint8, "r", shape=(features, rows))
        return cls(codes=codes, targets=targets, is_held=is_held)


def write_codes(
    folder: Path,
    table: "DataTable",
    bins: Sequence[FeatureBins],
    sides: RowSides,
    rows: int,
    *,
    done: Callable[[int], None] = lambda _: None,
) -> None:
    """Write the codes of all rows that have a target.

    Args:
        folder: where the file goes.
        table: the table.
        bins: bins of its columns.
        sides: says which rows are written, and writes their targets.
        rows: rows of the table.
        done: is told how many rows were read.
    """
    codes = new_map(folder / _CODES, np.uint8, (len(bins), rows))
    read = 0
    for batch in table.batches:
        first = sides.count
        kept = sides.take(batch)
        for place, column in enumerate(bins):
            codes[place, first : sides.count] = column.encode(batch)[kept]
        read += len(batch)
        done(read)
    codes.flush()
    sides.flush()
    count = sides.count
    if count < rows:
        # Columns stand behind each other: without the empty ends they move together.
        for place in range(1, len(bins)):
            codes.reshape(-1)[place * count : (place + 1) * count] = codes[place, :count].copy()
        codes.flush()

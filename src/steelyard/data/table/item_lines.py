"""Files of baskets: a line each, its items as whole numbers that blanks or commas part."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.data.table.partitions import TablePart
from steelyard.data.table.quarantine import BadRow, Quarantine
from steelyard.jit import njit

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ITEMS", "read_item_lines"]

ITEMS = "items"
"""Name of the one column of such a file, lists of whole numbers."""
_BLOCK_BYTES = 4 << 20
_REASONS = ("", "no whole number", "a negative item", "an item above 9e17")


def read_item_lines(
    partition: TablePart, file: Any, quarantine: Quarantine
) -> Iterator["pa.RecordBatch"]:
    """Read baskets.

    Args:
        partition: what is read.
        file: its bytes.
        quarantine: takes lines with something that is no item.

    Yields:
        Batches with the column `items`; an empty line is an empty basket.
    """
    import pyarrow as pa

    left, row = b"", partition.first_row
    while block := file.read(_BLOCK_BYTES):
        whole, is_broken, left = (left + block).rpartition(b"\n")
        if is_broken:
            yield from _batches(whole + b"\n", row, partition.path, quarantine, pa)
            row += whole.count(b"\n") + 1
    if left:
        yield from _batches(left + b"\n", row, partition.path, quarantine, pa)


def _batches(
    raw: bytes, row: int, path: str, quarantine: Quarantine, pa: Any
) -> Iterator["pa.RecordBatch"]:
    """Turn whole lines into a batch."""
    begins, items, reasons = _parsed(np.frombuffer(raw, np.uint8), raw.count(b"\n"))
    bad = np.flatnonzero(reasons)
    lines = raw.split(b"\n") if len(bad) else []
    for place in bad.tolist():
        text = lines[place].decode(errors="replace")
        quarantine.add(BadRow(path, row + place, ITEMS, text, _REASONS[reasons[place]]))
    lists = pa.ListArray.from_arrays(pa.array(begins.astype(np.int32)), pa.array(items))
    batch = pa.RecordBatch.from_arrays([lists], [ITEMS])
    yield batch.filter(pa.array(reasons == 0)) if len(bad) else batch


@njit()
def _parsed(raw: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the begin of each basket, the items, and what is wrong with each line."""
    begins, items = np.zeros(rows + 1, np.int64), np.empty(len(raw) // 2 + 1, np.int64)
    reasons = np.zeros(rows, np.uint8)
    row, used, value, digits, is_negative = 0, 0, 0, 0, False
    for byte in raw:
        if 48 <= byte <= 57:
            value = value * 10 + (byte - 48)
            digits += 1
            if digits > 17:
                reasons[row], value = 3, 0
            continue
        if byte == 45 and digits == 0 and not is_negative:
            is_negative = True
            continue
        is_break = byte in (10, 13, 32, 9, 44)
        if not is_break or (is_negative and digits == 0):
            reasons[row] = 1
        elif digits and is_negative:
            reasons[row] = reasons[row] or 2
        elif digits:
            items[used] = value
            used += 1
        value, digits, is_negative = 0, 0, False
        if byte == 10:
            row += 1
            begins[row] = used
    return begins, items[:used], reasons

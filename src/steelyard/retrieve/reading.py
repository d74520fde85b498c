"""Vectors from files: .npy, .fvecs, .bvecs and .ivecs, and from columns of tables."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import DataError
from steelyard.retrieve.vector_tables import TABLE_SUFFIXES, read_vector_table

__all__ = ["read_vectors"]

_RECORDS = {".fvecs": np.dtype("<f4"), ".bvecs": np.dtype("u1"), ".ivecs": np.dtype("<i4")}
"""Files of records: a length of four bytes, then as many numbers."""
_KNOWN = ", ".join((".npy", *_RECORDS, *sorted(TABLE_SUFFIXES)))


def read_vectors(path: Path, column: str = "") -> NDArray[np.generic]:
    """Map the vectors of a file, or read those of a table.

    Args:
        path: .npy with numbers [N, D], .fvecs, .bvecs or .ivecs; .parquet, .jsonl or .ndjson with a
            list of numbers in each row.
        column: name of the column of a table; not needed where one alone holds such lists.

    Returns:
        [N, D]; it stays in the file until it is looked at, but for a table.

    Raises:
        DataError: another kind of file, one that cannot be read, or a record that is cut short or
            of another length (the row is named).
    """
    if path.suffix in TABLE_SUFFIXES:
        return read_vector_table(path, column)
    if path.suffix != ".npy" and path.suffix not in _RECORDS:
        raise DataError(f"{path} is of no known kind", hint=f"give {_KNOWN}")
    try:
        if path.suffix == ".npy":
            found = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            found = _records(path, _RECORDS[path.suffix])
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read vectors from {path}: {error}") from error
    if found.ndim != 2 or not len(found):
        raise DataError(f"{path} holds {list(found.shape)}", hint="give rows of vectors [N, D]")
    return found


def _records(path: Path, kind: np.dtype) -> NDArray[np.generic]:
    """Map records of one length."""
    raw = np.memmap(path, np.uint8, mode="r")
    dim = int(raw[:4].view("<i4")[0]) if len(raw) >= 4 else 0
    size = 4 + dim * kind.itemsize
    if dim < 1 or dim > 1 << 20:
        raise DataError(f"{path}: the first record has {dim} numbers", hint="give a whole file")
    whole, left = divmod(len(raw), size)
    rows = raw[: whole * size].reshape(whole, size)
    lengths = np.ascontiguousarray(rows[:, :4]).view("<i4").ravel()
    if (other := lengths != dim).any():
        row = int(other.argmax())
        raise DataError(f"{path}: row {row} has {int(lengths[row])} numbers, the first has {dim}")
    if left:
        raise DataError(f"{path}: row {whole} is cut short", hint="fetch the file again")
    # A view of records keeps the file mapped; four bytes of length lie between rows.
    return rows[:, 4:].view(kind)

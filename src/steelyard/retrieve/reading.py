"""Vectors from files: .npy, .fvecs, .bvecs and .ivecs, and from columns of tables."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import DataError
from steelyard.retrieve.vector_tables import TABLE_SUFFIXES, read_vector_table

__all__ = ["VECTOR_SUFFIXES", "bad_rows_told", "read_vectors"]

_WHOLE = "give the path of a whole file"
_RECORDS = {".fvecs": np.dtype("<f4"), ".bvecs": np.dtype("u1"), ".ivecs": np.dtype("<i4")}
"""Files of records: a length of four bytes, then as many numbers."""
VECTOR_SUFFIXES = frozenset((".npy", *_RECORDS))
"""Endings of files that hold vectors and nothing else."""
_KNOWN = ", ".join((".npy", *_RECORDS, *sorted(TABLE_SUFFIXES)))
_BATCH = 65_536


def read_vectors(path: Path, column: str = "") -> NDArray[np.generic]:
    """Map the vectors of a file, or read those of a table.

    Args:
        path: .npy with numbers [N, D], .fvecs, .bvecs or .ivecs; .parquet, .jsonl or .ndjson with a
            list of numbers in each row.
        column: name of the column of a table; not needed where one alone holds such lists.

    Returns:
        [N, D]; it stays in the file until it is looked at, but for a table.

    Raises:
        DataError: another kind of file, one that cannot be read or holds no real numbers, or a
            record that is cut short or of another length (the row is named).
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
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DataError(f"cannot read vectors from {path}: {reason}", hint=_WHOLE) from error
    except (ValueError, EOFError) as error:
        raise DataError(f"{path} is no whole file of vectors: {error}", hint=_WHOLE) from error
    # numpy opens a .npz, whatever its name, as something else than an array.
    if not isinstance(found, np.ndarray):
        raise DataError(f"{path} holds several arrays", hint="save one by numpy.save")
    if found.ndim != 2 or not found.size or found.dtype.kind not in "fiu":
        raise DataError(
            f"{path} holds {found.dtype} {list(found.shape)}",
            hint="give rows of vectors [N, D] of real numbers",
        )
    return found


@contextmanager
def bad_rows_told(path: Path, rows: NDArray[np.generic]) -> Iterator[None]:
    """Name the row of the file where work on its vectors meets a number that is not finite.

    Work sees samples and batches, whose rows have other numbers. Only after it has failed are all
    rows looked at.

    Args:
        path: the file.
        rows: its vectors [N, D].

    Yields:
        Nothing.

    Raises:
        DataError: what the work raises, of a row that is not finite with its place in the file.
    """
    try:
        yield
    except DataError:
        for first in range(0, len(rows), _BATCH):
            is_finite = np.isfinite(np.asarray(rows[first : first + _BATCH], np.float32))
            bad = ~is_finite.all(axis=1)
            if bad.any():
                row = first + int(bad.argmax())
                raise DataError(
                    f"{path}: row {row} holds a number that is not finite",
                    hint="leave that row out",
                ) from None
        raise


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
        raise DataError(
            f"{path}: row {row} has {int(lengths[row])} numbers, the first has {dim}",
            hint="give vectors of one length",
        )
    if left:
        raise DataError(f"{path}: row {whole} is cut short", hint="fetch the file again")
    # A view of records keeps the file mapped; four bytes of length lie between rows.
    return rows[:, 4:].view(kind)

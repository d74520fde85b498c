"""A run's logged columns as Parquet chunk files that are never half there.

A chunk is named by the rows it holds (`rows-FIRST-LAST.parquet`); many small chunks are merged into
one whose range covers them, so a process killed between writing the merged chunk and removing the
small ones leaves nothing counted twice.
"""

import io
from pathlib import Path
from typing import Any

import polars as pl

from steelyard.errors import DataError
from steelyard.files import write_bytes

__all__ = ["ColumnLog", "read_columns"]

_MERGE_AT = 64


def _chunks(folder: Path) -> list[tuple[int, int, Path]]:
    """List (first row, last row, file) of the chunks that no other chunk covers, in order."""
    found: list[tuple[int, int, Path]] = []
    for path in folder.glob("rows-*.parquet"):
        _, first, last = path.stem.split("-")
        found.append((int(first), int(last), path))
    # Of two chunks with the same first row the longer comes first and covers the other: a kill
    # between a merge and its clean-up leaves both.
    kept: list[tuple[int, int, Path]] = []
    for chunk in sorted(found, key=lambda item: (item[0], -item[1])):
        if not kept or chunk[1] > kept[-1][1]:
            kept.append(chunk)
    return kept


def _load(path: Path) -> pl.DataFrame:
    """Read one chunk, or refuse it with its path when it is not Parquet or was cut."""
    try:
        return pl.read_parquet(io.BytesIO(path.read_bytes()))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(
            f"corrupted columns: {path}",
            hint="remove that file; the other rows of the run stay readable",
        ) from error


def _store(folder: Path, first: int, frame: pl.DataFrame) -> Path:
    """Write rows as one chunk, atomically."""
    path = folder / f"rows-{first:012d}-{first + frame.height - 1:012d}.parquet"
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd")
    write_bytes(path, buffer.getvalue())
    return path


def read_columns(folder: Path) -> pl.DataFrame:
    """Read all rows of a run.

    Args:
        folder: the run's `columns` folder.

    Returns:
        Column "step" and one per logged name, one row per step in rising order; a step logged more
        than once (a resumed run repeats some) keeps the last value of each column. Empty when
        nothing was logged.

    Raises:
        DataError: a chunk is corrupted; the message names the file.
    """
    frames = [_load(path) for _, _, path in _chunks(folder)]
    if not frames:
        return pl.DataFrame(schema={"step": pl.Int64})
    frame = pl.concat(frames, how="diagonal_relaxed")
    if frame["step"].is_duplicated().any():
        frame = frame.group_by("step", maintain_order=True).agg(pl.all().drop_nulls().last())
    return frame.sort("step", maintain_order=True)


class ColumnLog:
    """Rows waiting to be written, and the chunks that were."""

    def __init__(self, folder: Path) -> None:
        """Go on after the last row in the folder.

        Args:
            folder: folder of the chunks, made when missing; leftovers of a killed writer go.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(".rows-*.part"):
            leftover.unlink(missing_ok=True)
        chunks = _chunks(folder)
        self._folder = folder
        self._next = chunks[-1][1] + 1 if chunks else 0
        self._num_chunks = len(chunks)
        self._rows: list[dict[str, Any]] = []

    def __len__(self) -> int:
        """Count the rows not written yet."""
        return len(self._rows)

    def add(self, step: int, values: dict[str, float]) -> None:
        """Keep one row for the next flush; values are stored as float64, None as missing."""
        self._rows.append(
            {"step": int(step)}
            | {name: None if value is None else float(value) for name, value in values.items()}
        )

    def flush(self) -> None:
        """Write the waiting rows as one chunk; they keep waiting when that fails.

        Raises:
            CapacityError: the disk is full.
        """
        if not self._rows:
            return
        names = dict.fromkeys(name for row in self._rows for name in row)
        schema = {name: pl.Int64 if name == "step" else pl.Float64 for name in names}
        _store(self._folder, self._next, pl.DataFrame(self._rows, schema=schema))
        self._next += len(self._rows)
        self._num_chunks += 1
        self._rows = []
        if self._num_chunks >= _MERGE_AT:
            self.merge()

    def merge(self) -> None:
        """Merge all chunks into one."""
        chunks = _chunks(self._folder)
        if len(chunks) > 1:
            frame = pl.concat([_load(path) for _, _, path in chunks], how="diagonal_relaxed")
            merged = _store(self._folder, chunks[0][0], frame)
            for path in self._folder.glob("rows-*.parquet"):
                if path != merged:
                    path.unlink(missing_ok=True)
        self._num_chunks = min(len(chunks), 1)

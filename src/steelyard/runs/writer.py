"""The writer of one run."""

import contextlib
import dataclasses
import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import sqlalchemy as sa

from steelyard.errors import DataError, SteelyardError, StoreError
from steelyard.files import sha256_file
from steelyard.quantity import Forecast, Measurement
from steelyard.runs.columns import ColumnLog
from steelyard.runs.database import ARTIFACTS, FORECASTS, MEASUREMENTS, RUNS, Database
from steelyard.runs.record import STATUSES

__all__ = ["RunWriter", "hash_path"]


def _own(value: Any) -> Any:
    """Make a numpy scalar Python's own, which every database driver takes."""
    return value.item() if hasattr(value, "item") else value


def hash_path(path: Path) -> tuple[str, int]:
    """Hash a file, or a folder by its sorted file names and hashes.

    Args:
        path: an existing file or folder.

    Returns:
        SHA-256 as hex, and the number of bytes.

    Raises:
        DataError: nothing is there.
    """
    if path.is_file():
        return sha256_file(path), path.stat().st_size
    if not path.is_dir():
        raise DataError(f"no such artifact: {path}", hint="record an artifact after it was written")
    digest = hashlib.sha256()
    total = 0
    for file in sorted(item for item in path.rglob("*") if item.is_file()):
        digest.update(f"{file.relative_to(path).as_posix()}\0{sha256_file(file)}\n".encode())
        total += file.stat().st_size
    return digest.hexdigest(), total


class RunWriter:
    """Writes a run as it goes; `RunStore.create` and `RunStore.resume` return one.

    Forecasts, measurements and artifacts are in the database when the call returns. Logged rows
    wait in memory and are written when `flush_rows` of them wait or `flush_s` seconds passed since
    the last write, whichever `log` sees first: that tail, and no more, is lost when the process is
    killed.

    Attributes:
        id: twelve hexadecimal digits.
        directory: the run's own folder.
    """

    def __init__(
        self,
        database: Database,
        run_id: str,
        directory: Path,
        *,
        flush_rows: int = 1000,
        flush_s: float = 2.0,
    ) -> None:
        """Write to a run that is in the database.

        Args:
            database: database of the run's records.
            run_id: full id of the run.
            directory: folder of the run.
            flush_rows: rows that may wait.
            flush_s: seconds they may wait.
        """
        self.id = run_id
        self.directory = directory
        self._database = database
        self._columns = ColumnLog(directory / "columns")
        self._flush_rows = flush_rows
        self._flush_s = flush_s
        self._flushed_s = time.monotonic()
        self._finished = False

    def log(self, step: int, **columns: float) -> None:
        """Keep one row of numbers.

        Args:
            step: which step the numbers are of; a step logged again keeps the later value of each
                column.
            **columns: names and values; NaN is kept, and a name may appear late.
        """
        self._columns.add(step, columns)
        if (
            len(self._columns) >= self._flush_rows
            or time.monotonic() - self._flushed_s >= self._flush_s
        ):
            self.flush()

    def flush(self) -> None:
        """Write the waiting rows now.

        Raises:
            CapacityError: the disk is full; the rows keep waiting.
        """
        self._columns.flush()
        self._flushed_s = time.monotonic()

    def forecast(self, forecast: Forecast) -> None:
        """Record what is expected of this run."""
        self._insert(FORECASTS, [dataclasses.asdict(forecast)])

    def measure(self, *measurements: Measurement) -> None:
        """Record measured values, all or none; one without a time gets the current one."""
        rows = [dataclasses.asdict(item) for item in measurements]
        self._insert(MEASUREMENTS, [row | {"time_s": row["time_s"] or time.time()} for row in rows])

    def _insert(self, table: sa.Table, rows: Sequence[Mapping[str, object]]) -> None:
        """Write forecasts or measurements as rows of this run, in one transaction."""
        plain = [
            {"run_id": self.id} | {name: _own(value) for name, value in row.items()} for row in rows
        ]
        # Without a row SQLAlchemy would insert one of defaults.
        if plain:
            with self._database.write() as connection:
                connection.execute(sa.insert(table), plain)

    def artifact(self, name: str, path: Path) -> None:
        """Record a file or folder by its hash.

        The same name again replaces the record, and nothing is copied.

        Args:
            name: what the run calls it.
            path: an existing file or folder, anywhere.

        Raises:
            DataError: nothing is there.
        """
        path = Path(path).resolve()
        digest, size = hash_path(path)
        home = self.directory.resolve()
        # Relative inside the run's folder, so that a store may be moved with its runs.
        kept = path.relative_to(home).as_posix() if path.is_relative_to(home) else str(path)
        row = {"run_id": self.id, "name": name, "path": kept, "sha256": digest, "num_bytes": size}
        with self._database.write() as connection:
            self._database.upsert(connection, ARTIFACTS, ["run_id", "name"], [row])

    def finish(self, status: str = "done") -> None:
        """End the run.

        Write what waits, merge the columns, set the status. Ending twice keeps the first end.

        Args:
            status: "done" or "failed".

        Raises:
            StoreError: the status is another one.
        """
        if status not in ("done", "failed"):
            raise StoreError(
                f"a run cannot finish as {status!r}",
                hint=f"use 'done' or 'failed' (all statuses: {', '.join(STATUSES)})",
            )
        if self._finished:
            return
        # The status last: a run that says "done" has all of its rows on the disk.
        self.flush()
        self._columns.merge()
        with self._database.write() as connection:
            connection.execute(
                sa.update(RUNS)
                .where(RUNS.c.id == self.id)
                .values(status=status, finished_s=time.time())
            )
        self._finished = True

    def __enter__(self) -> Self:
        """Return the writer itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the run as done, or as failed when an exception leaves the block."""
        if kind is None:
            self.finish()
            return
        # The exception that leaves the block matters more than one from a store that went with it.
        with contextlib.suppress(SteelyardError):
            self.finish("failed")

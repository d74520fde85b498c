"""The run store: every run with what was asked, forecast, measured and made."""

import builtins
import difflib
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import sqlalchemy as sa

from steelyard.config import to_plain
from steelyard.errors import StoreError
from steelyard.files import user_dir, write_json
from steelyard.quantity import Check, Forecast, Measurement, check
from steelyard.runs.columns import read_columns
from steelyard.runs.database import ARTIFACTS, FORECASTS, MEASUREMENTS, RUNS, Database
from steelyard.runs.host import describe_machine, package_versions, process_alive, process_started
from steelyard.runs.record import Artifact, RunRecord
from steelyard.runs.writer import RunWriter

__all__ = ["RunStore"]


def _process() -> dict[str, Any]:
    """Name this process, so that another can tell whether it still lives."""
    return {
        "host": describe_machine()["host"],
        "pid": os.getpid(),
        "process_started": process_started(os.getpid()),
    }


_PARTS = (FORECASTS, MEASUREMENTS, ARTIFACTS)
_MOST_PARAMETERS = 500  # an SQLite built long ago takes 999 in one statement


def _rows_by_run(
    connection: sa.Connection, table: sa.Table, ids: list[str]
) -> dict[str, list[dict[str, Any]]]:
    """Read the rows of some runs in a table, by run, in the order in which they were written."""
    columns = [column for column in table.c if column.name not in ("row", "run_id")]
    rows: dict[str, list[dict[str, Any]]] = {identifier: [] for identifier in ids}
    for start in range(0, len(ids), _MOST_PARAMETERS):
        some = table.c.run_id.in_(ids[start : start + _MOST_PARAMETERS])
        query = sa.select(table.c.run_id, *columns).where(some).order_by(table.c.row)
        for run_id, *values in connection.execute(query):
            names = (column.name for column in columns)
            rows[run_id].append(dict(zip(names, values, strict=True)))
    return rows


class RunStore:
    """Runs in a database, their columns and files in one folder each.

    Several processes may read and write at once. A run whose process ended without finishing it is
    listed as "interrupted".

    Attributes:
        folder: folder that holds the runs' folders.
        database: database of their records.
    """

    def __init__(self, location: Path | str | None = None, *, folder: Path | None = None) -> None:
        """Open a store, making it when it is not there.

        Args:
            location: a folder (SQLite in it), or a "postgresql://..." URL; None for `runs` in the
                user's data folder.
            folder: where runs' folders go when `location` is a URL; None for `runs` in the user's
                data folder.

        Raises:
            StoreError: the place cannot be used, or what lies there is corrupted.
            BackendError: the URL needs a driver that is not installed.
        """
        is_url = isinstance(location, str) and "://" in location
        root = folder if is_url else location
        self.folder = Path(root).expanduser().resolve() if root else user_dir() / "runs"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"cannot use {self.folder} as a run store: {error.strerror}",
                hint="give a folder you may write to",
            ) from error
        self.database = Database(
            str(location) if is_url else f"sqlite:///{self.folder / 'runs.sqlite'}"
        )

    @classmethod
    def existing(cls, location: Path | str | None = None) -> "RunStore":
        """Open a store that is there, to read it: nothing is made where there is none.

        Args:
            location: a folder, the folder of a study that keeps its store in `runs`, or a
                "postgresql://..." URL; None for `runs` in the user's data folder.

        Returns:
            The store.

        Raises:
            StoreError: the folder holds no store, or the store cannot be used.
        """
        if isinstance(location, str) and "://" in location:
            return cls(location)
        folder = Path(location or user_dir() / "runs").expanduser()
        if (folder / "runs" / "runs.sqlite").is_file():
            folder /= "runs"
        if not (folder / "runs.sqlite").is_file():
            raise StoreError(
                f"no run store in {folder}",
                hint="give the folder that holds runs.sqlite"
                if location
                else "`steelyard quickstart` makes the first run",
            )
        return cls(folder)

    def create(
        self, kind: str, recipe: Mapping[str, Any], *, seed: int, name: str = ""
    ) -> RunWriter:
        """Begin a run.

        Args:
            kind: such as "train" or "serve".
            recipe: resolved configuration; dataclasses and paths in it become plain values.
            seed: seed of all its randomness.
            name: the user's words.

        Returns:
            Its writer; use it in a `with` block, so that an exception marks the run as failed.

        Raises:
            CapacityError: the disk is full; no run is begun.
        """
        run_id = secrets.token_hex(6)
        directory = self.folder / run_id
        head = {
            "id": run_id,
            "kind": kind,
            "name": name,
            "seed": int(seed),
            "started_s": time.time(),
        }
        parts = {
            "recipe": to_plain(dict(recipe)),
            "versions": package_versions(),
            "machine": describe_machine(),
        }
        # The folder before the row: a kill between the two leaves a folder nobody lists, never a
        # run without one.
        write_json(directory / "recipe.json", head | parts)
        row = (
            head
            | {key: msgspec.json.encode(value).decode() for key, value in parts.items()}
            | _process()
        )
        with self.database.write() as connection:
            connection.execute(sa.insert(RUNS).values(status="running", directory=run_id, **row))
        return RunWriter(self.database, run_id, directory)

    def resume(self, run_id: str) -> RunWriter:
        """Go on with a run that was interrupted, failed or done.

        Its rows, forecasts and measurements stay.

        Args:
            run_id: id of the run, or a unique beginning of it.

        Returns:
            A writer that adds to the run.

        Raises:
            StoreError: no such run, or another process is writing it.
        """
        record = self.get(run_id)
        if record.status == "running":
            raise StoreError(
                f"run {record.id} is being written by another process",
                hint="wait for it, or end that process",
            )
        with self.database.write() as connection:
            connection.execute(
                sa.update(RUNS)
                .where(RUNS.c.id == record.id)
                .values(status="running", finished_s=None, **_process())
            )
        return RunWriter(self.database, record.id, record.directory)

    def get(self, run_id: str) -> RunRecord:
        """Read one run.

        Args:
            run_id: id of the run, or a unique beginning of it.

        Returns:
            Its record.

        Raises:
            StoreError: no run, or more than one, begins so; near ids are listed.
        """
        with self.database.read() as connection:
            identifier = self._resolve(connection, run_id)
            return self._records(connection, sa.select(RUNS).where(RUNS.c.id == identifier))[0]

    def columns(self, run_id: str) -> pl.DataFrame:
        """Read the logged rows of a run.

        "step" and one column per name, one row per step in rising order.

        Args:
            run_id: id of the run, or a unique beginning of it.

        Returns:
            The rows written so far; those still waiting in a writer's memory are not seen.

        Raises:
            StoreError: no such run.
            DataError: a file of the run is corrupted.
        """
        return read_columns(self.get(run_id).directory / "columns")

    def check(self, run_id: str) -> builtins.list[Check]:
        """Pair a run's forecasts with its measurements by quantity; the last of each name counts.

        Args:
            run_id: id of the run, or a unique beginning of it.

        Returns:
            One check per quantity that has both.

        Raises:
            StoreError: no such run.
        """
        record = self.get(run_id)
        last = {forecast.quantity: forecast for forecast in record.forecasts}
        return check(builtins.list(last.values()), builtins.list(record.measurements))

    def list(self, *, kind: str = "", limit: int = 0) -> builtins.list[RunRecord]:
        """List runs, newest first.

        Args:
            kind: only runs of this kind; empty for all.
            limit: most runs returned; 0 for all.

        Returns:
            Their records.
        """
        query = sa.select(RUNS).order_by(RUNS.c.started_s.desc(), RUNS.c.id)
        query = query.where(RUNS.c.kind == kind) if kind else query
        with self.database.read() as connection:
            return self._records(connection, query.limit(limit) if limit else query)

    def _resolve(self, connection: sa.Connection, run_id: str) -> str:
        """Turn a unique beginning into the whole id."""
        ids = builtins.list(
            connection.execute(sa.select(RUNS.c.id).order_by(RUNS.c.started_s.desc())).scalars()
        )
        found = [
            identifier
            for identifier in ids
            if run_id and identifier.startswith(run_id.strip().lower())
        ]
        if len(found) == 1:
            return found[0]
        if found:
            raise StoreError(
                f"{len(found)} runs begin with {run_id!r}",
                hint=f"give more digits: {', '.join(found[:4])}",
            )
        near = difflib.get_close_matches(run_id, ids, n=3, cutoff=0.5) or [
            identifier
            for identifier in ids
            if len(run_id) > 1 and identifier.startswith(run_id[: max(2, len(run_id) - 2)])
        ]
        newest = f"newest runs: {', '.join(ids[:3])}" if ids else "the store holds no runs"
        hint = f"near ids: {', '.join(near[:3])}" if near else newest
        raise StoreError(f"no run {run_id!r} in {self.database.url}", hint=hint)

    def _records(
        self, connection: sa.Connection, query: sa.Select[Any]
    ) -> builtins.list[RunRecord]:
        """Read runs with their forecasts, measurements and artifacts."""
        rows = connection.execute(query).mappings().all()
        ids = [row["id"] for row in rows]
        parts = [_rows_by_run(connection, table, ids) for table in _PARTS]
        return [self._record(row, *(lists[row["id"]] for lists in parts)) for row in rows]

    def _record(self, row: Any, forecasts: Any, measurements: Any, artifacts: Any) -> RunRecord:
        """Make a record of a row and its parts."""
        directory = self.folder / row["directory"]
        # A killed process writes no end: whether it lives is asked whenever its run is read.
        stale = row["status"] == "running" and not process_alive(
            row["host"], row["pid"], row["process_started"]
        )
        return RunRecord(
            **{
                name: row[name]
                for name in ("id", "kind", "name", "started_s", "finished_s", "seed")
            },
            **{name: msgspec.json.decode(row[name]) for name in ("recipe", "versions", "machine")},
            status="interrupted" if stale else row["status"],
            forecasts=tuple(Forecast(**item) for item in forecasts),
            measurements=tuple(Measurement(**item) for item in measurements),
            artifacts=tuple(
                Artifact(**{**item, "path": directory / item["path"]}) for item in artifacts
            ),
            directory=directory,
        )

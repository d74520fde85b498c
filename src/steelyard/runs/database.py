"""The store's tables in SQLite (WAL mode) or PostgreSQL, through the same SQLAlchemy Core code.

SQLite runs with `synchronous=NORMAL`: a killed process loses nothing that was committed; a power
loss may lose the last commits before it, and corrupts nothing.
"""

import functools
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
import sqlalchemy.event
import sqlalchemy.exc
from sqlalchemy import BigInteger, Column, Float, Integer, MetaData, String, Table, UniqueConstraint
from sqlalchemy.pool import NullPool

from steelyard.errors import BackendError, CapacityError, StoreError

__all__ = ["ARTIFACTS", "CHECKS", "FORECASTS", "MEASUREMENTS", "RUNS", "Database"]

_BUSY_MS = 60_000
_SILENT_MS = 1_000
"""A writer that waits for longer says so."""
_LOCK = 0x5353  # any fixed number: PostgreSQL's advisory lock while the tables are made
_METADATA = MetaData()
_ROW = BigInteger().with_variant(Integer, "sqlite")  # only INTEGER counts up by itself in SQLite


def _table(name: str, *columns: Column[Any] | UniqueConstraint) -> Table:
    """Make a table whose rows are numbered in the order in which they came."""
    return Table(
        name, _METADATA, Column("row", _ROW, primary_key=True, autoincrement=True), *columns
    )


# Columns that always have a value.
_text = functools.partial(Column, type_=String, nullable=False)
_run_id = functools.partial(Column, "run_id", String(32), nullable=False, index=True)
_number = functools.partial(Column, type_=Float(53), nullable=False)
_count = functools.partial(Column, type_=BigInteger, nullable=False)


def _added(name: str) -> Column[Any]:
    """Make a number's column that stores of earlier versions lack; their rows read 0."""
    return Column(name, Float(53), nullable=False, server_default="0")


def _forecast() -> list[Column[Any]]:
    """Make the columns of a forecast; a column belongs to one table, so each gets its own."""
    return [
        _text("quantity"),
        *map(_number, ("value", "low", "high")),
        *map(_text, ("provenance", "source")),
        _added("pace_s"),
    ]


def _circumstances(pace: str = "pace_s") -> list[Column[Any]]:
    """Make the columns of a measurement beside its value; `pace` is the name of its pace's."""
    return [
        _number("spread"),
        _count("count"),
        _text("machine"),
        _number("time_s"),
        _added(pace),
    ]


RUNS = Table(
    "runs",
    _METADATA,
    Column("id", String(32), primary_key=True),
    *map(_text, ("kind", "name", "status")),
    _number("started_s"),
    Column("finished_s", Float(53)),
    _count("seed"),
    *map(_text, ("recipe", "versions", "machine", "directory", "host")),
    _count("pid"),
    _text("process_started"),
)
"""One row per run; recipe, versions and machine are JSON."""

FORECASTS = _table("forecasts", _run_id(), *_forecast())
"""One row per forecast of a run."""

MEASUREMENTS = _table(
    "measurements", _run_id(), _text("quantity"), _number("value"), *_circumstances()
)
"""One row per measurement of a run."""

ARTIFACTS = _table(
    "artifacts",
    _run_id(),
    *map(_text, ("name", "path")),
    Column("sha256", String(64), nullable=False),
    _count("num_bytes"),
    UniqueConstraint("run_id", "name"),
)
"""One row per artifact name of a run; paths inside the run's folder are relative to it."""

CHECKS = _table(
    "checks",
    _text("forecaster"),
    Column("run_id", String(64), nullable=False),
    *_forecast(),
    _number("measured"),
    *_circumstances("measured_pace_s"),
    UniqueConstraint("forecaster", "run_id", "quantity"),
)
"""The ledger: one row per forecaster, run and quantity."""


class Database:
    """Makes connections and holds none between calls; threads may share it, and a fork is safe.

    Attributes:
        url: SQLAlchemy URL without its password, for messages.
    """

    def __init__(self, url: str) -> None:
        """Open the database and make its tables when they are missing.

        Args:
            url: "sqlite:///PATH" or "postgresql://...".

        Raises:
            StoreError: the URL is malformed, or the database cannot be opened or is corrupted.
            BackendError: PostgreSQL is asked for and its driver is not installed.
        """
        try:
            address = sa.make_url(url)
        except sqlalchemy.exc.ArgumentError as error:
            raise StoreError(
                f"store {url!r} is not a database URL",
                hint="give a folder, or postgresql://user@host/database",
            ) from error
        if address.get_backend_name() == "postgresql" and "+" not in address.drivername:
            address = address.set(drivername="postgresql+psycopg")
        self.url = address.render_as_string(hide_password=True)
        try:
            self._engine = sa.create_engine(address, poolclass=NullPool)
        except ModuleNotFoundError as error:
            raise BackendError(
                f"store {self.url} needs a driver: {error}",
                hint="pip install 'steelyard[postgres]'",
            ) from error
        except sqlalchemy.exc.NoSuchModuleError as error:
            raise StoreError(
                f"store {self.url}: no such kind of database",
                hint="give a folder, or a postgresql:// URL",
            ) from error
        self.dialect = self._engine.dialect.name
        # Python's driver begins transactions lazily and never as IMMEDIATE: both are done here.
        if self.dialect == "sqlite":
            sqlalchemy.event.listen(self._engine, "connect", _set_up_sqlite)
            sqlalchemy.event.listen(self._engine, "begin", _begin_sqlite)
        self._make_tables()

    def _make_tables(self) -> None:
        """Make missing tables and columns; two processes may try at once."""
        with self.read() as connection:
            if not _missing(connection):
                return
        with self.write() as connection:
            # SQLite's writers queue by themselves. On PostgreSQL two "create if missing" at once
            # can both find the table missing, so the second waits for the first one's commit.
            if self.dialect == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            # Asked again, as another process may have made them meanwhile.
            missing = _missing(connection)
            _METADATA.create_all(connection)
            for table, columns in missing.items():
                for column in columns:
                    words = sa.schema.CreateColumn(column).compile(dialect=connection.dialect)
                    connection.execute(sa.DDL(f"ALTER TABLE {table} ADD COLUMN {words}"))

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Yield a connection that sees one moment of the database."""
        with self._translated(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """Yield a connection whose changes are all kept at the end, or none of them."""
        with (
            self._translated(),
            self._engine.execution_options(steelyard_write=True).begin() as connection,
        ):
            yield connection

    def upsert(
        self, connection: sa.Connection, table: Table, keys: list[str], rows: list[dict[str, Any]]
    ) -> None:
        """Insert rows; one that has the `keys` of a row there replaces it.

        Args:
            connection: connection from `write`.
            table: table of this module.
            keys: column names of a unique constraint of the table.
            rows: column values, each with the same columns.
        """
        if not rows:
            return
        if self.dialect == "postgresql":
            from sqlalchemy.dialects.postgresql import insert
        else:
            from sqlalchemy.dialects.sqlite import insert
        statement = insert(table)
        changed = {name: statement.excluded[name] for name in rows[0] if name not in keys}
        connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=changed), rows)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn database errors into ours."""
        try:
            yield
        except sqlalchemy.exc.DBAPIError as error:
            lines = str(error.orig).strip().splitlines()
            words = lines[0] if lines else type(error.orig).__name__
            if "disk is full" in words or "No space left" in words:
                raise CapacityError(
                    f"disk full while writing the run store {self.url}",
                    hint="free some space and run again",
                ) from error
            hint = "check the store's path, its rights and whether its server runs"
            if "malformed" in words or "not a database" in words:
                hint = (
                    "the file is corrupted: move it away (its runs' folders keep their data) "
                    "or restore a copy"
                )
            elif "locked" in words:
                hint = "another process holds it; wait for that one to end and run again"
            raise StoreError(f"run store {self.url}: {words}", hint=hint) from error


def _missing(connection: sa.Connection) -> dict[str, list[Column[Any]]]:
    """Return the columns each table lacks, as a store of an earlier version does.

    A table that is not there at all has an empty list.
    """
    inspector = sa.inspect(connection)
    there = set(inspector.get_table_names())
    found: dict[str, list[Column[Any]]] = {}
    for name, table in _METADATA.tables.items():
        if name not in there:
            found[name] = []
            continue
        names = {column["name"] for column in inspector.get_columns(name)}
        if lacking := [column for column in table.columns if column.name not in names]:
            found[name] = lacking
    return found


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    """Set a fresh SQLite connection up: our own transactions, WAL, patience with other writers."""
    connection.isolation_level = None
    for pragma in (f"busy_timeout={_BUSY_MS}", "journal_mode=WAL", "synchronous=NORMAL"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: sa.Connection) -> None:
    """Begin a transaction; a writer takes its place in the queue at once."""
    # A plain BEGIN reads first and asks for the write lock later. When another writer committed in
    # between, SQLite refuses the upgrade at once and no timeout helps.
    if not connection.get_execution_options().get("steelyard_write"):
        connection.exec_driver_sql("BEGIN")
        return
    driver: Any = connection.connection.driver_connection
    driver.execute(f"PRAGMA busy_timeout={_SILENT_MS}").close()
    try:
        driver.execute("BEGIN IMMEDIATE").close()
        return
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            raise
    finally:
        driver.execute(f"PRAGMA busy_timeout={_BUSY_MS}").close()
    place = connection.engine.url.database
    sys.stderr.write(
        f"the run store {place} is locked by another process: waiting, for a minute at most\n"
    )
    connection.exec_driver_sql("BEGIN IMMEDIATE")

"""SQL over tables, in a DuckDB that can open no file: it is handed the rows and nothing else."""

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.data.table.quarantine import Quarantine
from steelyard.errors import BackendError, CapacityError, ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table.table import DataTable

__all__ = ["SqlAnswer", "query", "view_name"]

_BATCH_ROWS = 65_536


class SqlAnswer:
    """Rows that a query gives, one batch after the other.

    Attributes:
        schema: columns with their types.
        views: rows set aside by name of the table, of those that were read so far.
    """

    def __init__(self, reader: Any, views: "Mapping[str, _View]") -> None:
        """Keep the reader of a query's result."""
        self.schema: pa.Schema = reader.schema
        self._reader, self._views = reader, views

    @property
    def set_aside(self) -> int:
        """Rows of the tables that broke a rule in their last reading, and so are in no answer."""
        return sum(view.quarantine.total for view in self._views.values())

    def __iter__(self) -> Iterator["pa.RecordBatch"]:
        """Read the answer.

        Yields:
            Its batches.

        Raises:
            DataError: the query cannot be answered.
            CapacityError: it needs more memory than it was given.
        """
        try:
            yield from self._reader
        except Exception as error:
            raise _told(error) from error


class _View:
    """A table as DuckDB reads it: from its beginning, each time it is asked."""

    def __init__(self, table: "DataTable") -> None:
        self._table, self.quarantine = table, Quarantine()

    def __arrow_c_schema__(self) -> Any:
        return self._table.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        import pyarrow as pa

        self.quarantine = quarantine = Quarantine()
        table = self._table
        batches = (batch for part in table.partitions for batch in table.read(part, quarantine))
        reader = pa.RecordBatchReader.from_batches(table.schema, batches)
        return reader.__arrow_c_stream__(requested_schema)


def view_name(source: str) -> str:
    """Return the name that a source has in SQL.

    Args:
        source: a path, pattern, folder or address.

    Returns:
        The file's name without its end, or of a pattern or folder that of the folder; signs that a
        name cannot have are underscores.
    """
    plain = source.partition("?")[0] if "://" in source else source
    parts = [part for part in Path(plain).parts if not set(part) & set("*?[")]
    name = Path(parts[-1]).name.split(".")[0] if parts else ""
    name = re.sub(r"\W", "_", name) or "data"
    return f"_{name}" if name[0].isdigit() else name


@contextmanager
def query(
    sql: str,
    tables: "Mapping[str, DataTable]",
    *,
    memory_bytes: float = 1e9,
    threads: int = 1,
    timeout_s: float = 600.0,
) -> Iterator[SqlAnswer]:
    """Answer one SELECT over tables.

    DuckDB reads no file, loads no extension and keeps its settings: it sees the rows of the tables,
    which are read here.

    Args:
        sql: one SELECT (or WITH, VALUES, DESCRIBE) statement.
        tables: what it may read, by name.
        memory_bytes: most memory of DuckDB.
        threads: threads of DuckDB.
        timeout_s: time after which it is stopped.

    Yields:
        The answer; it is read inside the block.

    Raises:
        ConfigError: it is not one SELECT, or names what is not there.
        DataError: a table cannot be read, or the query cannot be answered.
        CapacityError: it needs more memory, or time, than it was given.
        BackendError: DuckDB is not installed.
    """
    duckdb = _duckdb()
    _check_statement(duckdb, sql)
    settings = {
        "enable_external_access": "false",
        "memory_limit": f"{max(int(memory_bytes), 1 << 20)}B",
        "threads": str(threads),
        "autoload_known_extensions": "false",
        "autoinstall_known_extensions": "false",
        "python_enable_replacements": "false",
    }
    connection = duckdb.connect(":memory:", config=settings)
    views = {name: _View(table) for name, table in tables.items()}
    timer = threading.Timer(timeout_s, connection.interrupt)
    timer.daemon = True
    try:
        for name, view in views.items():
            connection.register(name, view)
        connection.execute("SET lock_configuration = true")
        timer.start()
        try:
            answer = connection.sql(sql)
            # The method has another name in releases before 1.5.
            reads = getattr(answer, "to_arrow_reader", None) or answer.fetch_arrow_reader
            yield SqlAnswer(reads(_BATCH_ROWS), views)
        except duckdb.Error as error:
            raise _told(error) from error
    finally:
        timer.cancel()
        connection.close()


def _duckdb() -> Any:
    """Import DuckDB, or say how to get it."""
    try:
        import duckdb
    except ImportError as error:
        raise BackendError(
            "SQL is answered by DuckDB, which is not installed",
            hint="pip install 'steelyard[data]'",
        ) from error
    return duckdb


def _check_statement(duckdb: Any, sql: str) -> None:
    """Refuse all but one statement that only reads."""
    try:
        statements = duckdb.extract_statements(sql)
    except duckdb.Error as error:
        raise _told(error) from error
    kinds = [str(item.type).rpartition(".")[2] for item in statements]
    if len(kinds) != 1 or kinds[0] not in ("SELECT", "EXPLAIN"):
        raise ConfigError(
            f"the query is {', '.join(kinds) or 'empty'}, but must be one SELECT",
            hint="write results with --out",
        )


def _told(error: Exception) -> Exception:
    """Return an error of DuckDB, or of a reader inside of it, as one of ours."""
    kind, text = type(error).__name__, str(error).strip()
    first = text.partition("\n\n")[0]
    if kind == "OutOfMemoryException":
        return CapacityError(f"the query needs more memory: {first}", hint="raise --memory")
    if kind == "InterruptException":
        return CapacityError("the query took longer than it may", hint="raise --timeout-s")
    if kind in ("CatalogException", "BinderException", "ParserException", "SyntaxException"):
        return ConfigError(first, hint="tables are named as their files, or as NAME=FILE says")
    if kind == "PermissionException":
        return ConfigError(
            f"the query may read its tables alone: {first}", hint="hand the file in as a table"
        )
    return DataError(f"the query cannot be answered: {first}")

"""How small each table of a lake could be written, and how fast it would be read then."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from steelyard.data.formats.advice import FormatAdvice, FormatCosts, advise
from steelyard.data.formats.options import WriteOption, option, read_as, write_as
from steelyard.data.lake.costs import StorageCosts
from steelyard.data.lake.graph import ContainmentGraph, TableNode
from steelyard.data.lake.tables import look_at_table
from steelyard.data.table.quarantine import Quarantine
from steelyard.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ENCODINGS", "Encoding", "find_encodings", "read_rows"]

ENCODINGS = tuple(
    map(option, ("steelpack auto", "steelpack always", "parquet snappy", "parquet zstd"))
)
"""Ways to write a table that a lake reads again without a loss."""
_LOOKED_ROWS = 1_000_000
"""Rows of a table from which its size in other formats is predicted."""
_TRIED_ROWS = 65_536
"""Rows up to which a table is written in each way instead."""


class Encoding(msgspec.Struct, frozen=True, kw_only=True):
    """Another way to write a table.

    Attributes:
        table: its name.
        option: name of the way, such as "parquet zstd".
        num_bytes: bytes that the file will take, predicted.
        load_s: seconds to read all of it from the storage and to decode it.
    """

    table: str
    option: str
    num_bytes: float
    load_s: float


def find_encodings(
    graph: ContainmentGraph,
    prices: StorageCosts,
    costs: FormatCosts,
    *,
    max_latency_s: float,
    done: Callable[[int, str], None] = lambda count, name: None,
) -> dict[str, Encoding]:
    """Find for each table the smallest way to write it that is read in time.

    All prices follow bytes, so that no larger way costs less.

    Args:
        graph: tables of a lake.
        prices: how fast the storage is read.
        costs: how long this machine decodes.
        max_latency_s: longest a table may take to be read.
        done: is told the number of tables that were looked at, and the table.

    Returns:
        The way of each table for which it is smaller than its file; tables of several files, of
        text, without rows, and those that no format takes, are left out.
    """
    found = {}
    for count, node in enumerate(graph.nodes, 1):
        done(count, node.name)
        best = _smallest(node, prices, costs, max_latency_s) if _is_fit(node) else None
        if best is not None and best.num_bytes < node.num_bytes:
            found[node.name] = best
    return found


def _is_fit(node: TableNode) -> bool:
    return node.is_columnar and len(node.prints) == 1 and node.rows != 0


def _smallest(
    node: TableNode, prices: StorageCosts, costs: FormatCosts, max_latency_s: float
) -> Encoding | None:
    """Return the smallest way to write a table that is read in time; None where there is none."""
    try:
        table = read_rows(node.name, node.prints[0][0], most=_LOOKED_ROWS)
        ways = list(_ways(node, table, costs)) if len(table) else []
    except DataError:
        # It cannot be read, or no such format holds its types: it stays as it is.
        return None
    timed = [
        msgspec.structs.replace(way, load_s=way.load_s + prices.latency_s(way.num_bytes))
        for way in ways
    ]
    fast = [way for way in timed if way.load_s <= max_latency_s]
    return min(fast, key=lambda way: way.num_bytes, default=None)


def _ways(node: TableNode, table: "pa.Table", costs: FormatCosts) -> Iterator[Encoding]:
    """Yield ways with their bytes and the seconds of decoding; large tables are predicted."""
    if len(table) <= _TRIED_ROWS:
        with tempfile.TemporaryDirectory() as folder:
            for item in ENCODINGS:
                with suppress(DataError):
                    yield _tried(node.name, table, item, Path(folder) / "table")
        return
    share = max(node.rows, len(table)) / len(table)
    for item in _advised(table, costs):
        size, scan_s = item.num_bytes * share, item.scan_s * share
        yield Encoding(table=node.name, option=item.option, num_bytes=size, load_s=scan_s)


def _tried(name: str, table: "pa.Table", way: WriteOption, path: Path) -> Encoding:
    """Write a small table and read it: that takes less than to predict it."""
    size = write_as(table, path, way)
    began_s = time.perf_counter()
    read_as(path, way)
    took_s = time.perf_counter() - began_s
    return Encoding(table=name, option=way.name, num_bytes=size, load_s=took_s)


def _advised(table: "pa.Table", costs: FormatCosts) -> list[FormatAdvice]:
    """Return what is predicted of the options that hold a table's types."""
    try:
        return advise(table, costs, options=ENCODINGS)
    except DataError:
        plain = [item for item in ENCODINGS if item.format == "parquet"]
        return advise(table, costs, options=plain)


def read_rows(name: str, path: str, *, most: int | None = None) -> "pa.Table":
    """Read a table of one file.

    Args:
        name: what it is called.
        path: its file.
        most: rows after which reading stops; all when it is left out.

    Returns:
        Its rows in order, or about so many of the first.

    Raises:
        DataError: the file cannot be read.
    """
    import pyarrow as pa

    looked = look_at_table(name, Path(path), [path])
    batches, rows = [], 0
    for part in looked.parts:
        for batch in looked.source.read(part.source, Quarantine()):
            batches.append(batch)
            rows += len(batch)
            if most is not None and rows >= most:
                return pa.Table.from_batches(batches, looked.schema)
    return pa.Table.from_batches(batches, looked.schema)

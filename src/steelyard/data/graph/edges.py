"""Where edges come from: parts that can be read again, each a stream of rows and columns."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from steelyard.data.graph.node_ids import NodeIds
from steelyard.data.sketch.hashing import hash_column, hash_integers
from steelyard.data.stages import hash_of
from steelyard.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table import DataTable

__all__ = ["ArrayEdges", "EdgeBatch", "EdgeSource", "TableEdges"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeBatch:
    """Some edges.

    Attributes:
        rows: hash of the node in whose row each edge stands, uint64 [E].
        columns: hash of the node at its other end, uint64 [E].
        row_ids: name of each row's node, [E].
        column_ids: name of each column's node, [E]; only read for undirected graphs.
        skipped: edges without one of their ends, which are left out.
    """

    rows: NDArray[np.uint64]
    columns: NDArray[np.uint64]
    row_ids: NodeIds
    column_ids: NodeIds
    skipped: int = 0


class EdgeSource(Protocol):
    """Edges in parts; a part gives the same edges whenever it is read."""

    @property
    def key(self) -> str:
        """Hash of everything that the edges depend on."""
        ...

    @property
    def parts(self) -> int:
        """Number of parts."""
        ...

    def read(self, part: int) -> Iterator[EdgeBatch]:
        """Return the batches of a part by its number, each of thousands of edges to millions."""
        ...


def number_batch(rows: NDArray[np.integer], columns: NDArray[np.integer]) -> EdgeBatch:
    """Return a batch of edges between nodes that are named by numbers."""
    return EdgeBatch(
        rows=hash_integers(rows),
        columns=hash_integers(columns),
        row_ids=NodeIds(rows.astype(np.int64, copy=False)),
        column_ids=NodeIds(columns.astype(np.int64, copy=False)),
    )


class ArrayEdges:
    """Edges in arrays of whole numbers, which may be mapped files."""

    def __init__(
        self,
        rows: NDArray[np.integer],
        columns: NDArray[np.integer],
        *,
        part_edges: int = 4_000_000,
    ) -> None:
        """Take the arrays.

        Args:
            rows: node in whose row each edge stands, [E].
            columns: node at its other end, [E].
            part_edges: edges of a part.

        Raises:
            ConfigError: the arrays differ in length or hold no whole numbers.
        """
        if (
            len(rows) != len(columns)
            or rows.dtype.kind not in "iu"
            or columns.dtype.kind not in "iu"
        ):
            raise ConfigError(
                f"edges of {len(rows)} {rows.dtype} rows, {len(columns)} {columns.dtype} columns",
                hint="give two arrays of whole numbers of one length",
            )
        self.rows, self.columns, self._part_edges = rows, columns, part_edges

    @property
    def key(self) -> str:
        """Hash of the arrays."""
        import hashlib

        told = hashlib.sha256()
        for values in (self.rows, self.columns):
            told.update(np.ascontiguousarray(values).data)
        return told.hexdigest() + str(self._part_edges)

    @property
    def parts(self) -> int:
        """Number of parts."""
        return max(-(-len(self.rows) // self._part_edges), 1)

    def read(self, part: int) -> Iterator[EdgeBatch]:
        """Read a part."""
        inside = slice(part * self._part_edges, (part + 1) * self._part_edges)
        yield number_batch(np.asarray(self.rows[inside]), np.asarray(self.columns[inside]))


class TableEdges:
    """Edges in two columns of a table in files.

    A part is one or several parts of the table: a few hundred of some megabytes each, so that not
    too many files are open at once.
    """

    def __init__(
        self, table: "DataTable", rows: str, columns: str, *, part_bytes: int = 64 << 20
    ) -> None:
        """Choose the columns.

        Args:
            table: the files.
            rows: column with the node in whose row an edge stands.
            columns: column with the node at its other end.
            part_bytes: bytes of files in a part.

        Raises:
            ConfigError: a column is not there, or both are the same.
        """
        if rows == columns:
            raise ConfigError(
                f"both ends of an edge are in column {rows!r}", hint="name two columns"
            )
        self._table, self._names = table.select([rows, columns]), (rows, columns)
        self._groups: list[list[Any]] = []
        held = part_bytes
        for partition in self._table.partitions:
            if held >= part_bytes:
                self._groups.append([])
                held = 0
            self._groups[-1].append(partition)
            held += partition.num_bytes

    @property
    def key(self) -> str:
        """Hash of the files' names, sizes and times, and of the columns."""
        from steelyard.data.table.sources import stamp_of

        return hash_of(
            [[item.path, stamp_of(item.path)] for item in self._table.files],
            [[part.path, part.first, part.last] for group in self._groups for part in group],
            str(self._table.schema),
            list(self._names),
        )

    @property
    def parts(self) -> int:
        """Number of parts."""
        return len(self._groups)

    def read(self, part: int) -> Iterator[EdgeBatch]:
        """Read a part.

        Args:
            part: its number.

        Yields:
            Batches.

        Raises:
            DataError: a column holds neither whole numbers nor text.
        """
        import pyarrow as pa

        from steelyard.data.table import Quarantine

        for partition in self._groups[part]:
            quarantine, told = Quarantine(), 0
            for batch in self._table.read(partition, quarantine):
                yield self._batch(batch, quarantine.total - told)
                told = quarantine.total
            if quarantine.total > told:
                none = pa.RecordBatch.from_pylist([], self._table.schema)
                yield self._batch(none, quarantine.total - told)

    def _batch(self, batch: "pa.RecordBatch", skipped: int) -> EdgeBatch:
        import pyarrow as pa

        missing = np.zeros(len(batch), bool)
        for column in batch.columns:
            missing |= column.is_null().to_numpy(zero_copy_only=False)
        if missing.any():
            batch = batch.filter(pa.array(~missing))
        names = [_names(batch.column(place), self._names[place]) for place in (0, 1)]
        return EdgeBatch(
            rows=hash_column(batch.column(0)),
            columns=hash_column(batch.column(1)),
            row_ids=names[0],
            column_ids=names[1],
            skipped=skipped + int(missing.sum()),
        )


def _names(column: "pa.Array", name: str) -> NodeIds:
    """Return the names in a column."""
    import pyarrow as pa

    if pa.types.is_integer(column.type):
        return NodeIds(column.cast(pa.int64()).to_numpy(zero_copy_only=False))
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise DataError(
            f"column {name!r} holds {column.type}, but nodes are named by whole numbers or text",
            hint=f'give its kind, such as --types "{name}=text"',
        )
    large = column.cast(pa.large_string())
    _, offsets, payload = large.buffers()
    ends = np.frombuffer(offsets, np.int64)[large.offset : large.offset + len(large) + 1]
    raw = np.frombuffer(payload or b"", np.uint8)
    return NodeIds(None, ends - ends[0], raw[ends[0] : ends[-1]])

"""How a table is rebuilt from another: which columns, and which rows in which order."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from steelyard.data.arrow import compute
from steelyard.data.lake.bounds import comparable
from steelyard.data.lake.hashing import column_hashes, row_hashes
from steelyard.data.lake.tables import LakeTable
from steelyard.data.pack import Pack, write_pack
from steelyard.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RebuildRecipe", "infer_recipe", "read_column", "row_digest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildRecipe:
    """A projection and a choice of rows.

    Attributes:
        schema: columns of the table, with their types.
        kind: "all rows", "range" of a column's values, or "rows" by their numbers.
        column: column of the parent whose values are compared; empty for other kinds.
        ends: least and largest value, one row of two columns; None for other kinds.
        rows: numbers of the parent's rows, [rows]; empty for other kinds.
        parent_rows: rows that the parent had; those that it gets later are passed over.
        digest: SHA-256 of the hashes of the table's rows in their order.
    """

    schema: "pa.Schema"
    kind: str
    column: str
    ends: "pa.RecordBatch | None"
    rows: NDArray[np.int64]
    parent_rows: int
    digest: str

    def told(self) -> str:
        """Return the choice of rows in words."""
        if self.kind != "range" or self.ends is None:
            return "all rows" if self.kind == "all rows" else f"{len(self.rows):,} numbered rows"
        # Python holds no nanoseconds, text does.
        low, high = (compute().cast(column, "string")[0].as_py() for column in self.ends.columns)
        if low == high:
            return f"{self.column} = {low}"
        return f"{self.column} from {low} to {high}"

    def save(self, path: Path) -> None:
        """Write the recipe as a pack.

        Args:
            path: the file.

        Raises:
            CapacityError: the disk is full.
        """
        told = {
            "kind": self.kind,
            "column": self.column,
            "digest": self.digest,
            "parent_rows": self.parent_rows,
        }
        sections = {
            "told": _bytes(msgspec.json.encode(told)),
            "schema": _bytes(self.schema.serialize()),
            **_coded(self.rows),
        }
        if self.ends is not None:
            sections["ends"] = _bytes(self.ends.serialize())
            sections["ends schema"] = _bytes(self.ends.schema.serialize())
        write_pack(path, sections)

    @classmethod
    def load(cls, path: Path) -> "RebuildRecipe":
        """Read a recipe.

        Args:
            path: a file that `save` wrote.

        Returns:
            The recipe.

        Raises:
            DataError: it is missing or damaged.
        """
        import pyarrow as pa

        pack = Pack.open(path)
        told: dict[str, Any] = msgspec.json.decode(pack["told"].tobytes())
        ends = None
        if "ends" in pack.names:
            schema = pa.ipc.read_schema(pa.py_buffer(pack["ends schema"].tobytes()))
            ends = pa.ipc.read_record_batch(pa.py_buffer(pack["ends"].tobytes()), schema)
        return cls(
            schema=pa.ipc.read_schema(pa.py_buffer(pack["schema"].tobytes())),
            rows=_decoded(pack),
            ends=ends,
            **told,
        )

    def replay(self, parent: LakeTable) -> "pa.Table":
        """Return the table, made anew from its parent and proven by the hashes of its rows.

        Args:
            parent: the table that contains it.

        Returns:
            The same rows in the same order.

        Raises:
            DataError: the parent has changed, so that other rows come out.
        """
        import pyarrow as pa

        places = self._places(parent)
        columns = []
        for field in self.schema:
            whole = read_column(parent, field.name)
            if len(places) and int(places.max()) >= len(whole):
                raise _changed(parent)
            columns.append(_shaped(whole.take(pa.array(places)), field.type))
        made = pa.Table.from_arrays(columns, schema=self.schema)
        if row_digest(made) != self.digest:
            raise _changed(parent)
        return made

    def _places(self, parent: LakeTable) -> NDArray[np.int64]:
        """Return the numbers of the parent's rows."""
        if self.kind == "rows":
            return self.rows
        if self.kind == "all rows":
            return np.arange(self.parent_rows)
        assert self.ends is not None
        chosen = _between(read_column(parent, self.column), *(end[0] for end in self.ends.columns))
        return np.flatnonzero(chosen[: self.parent_rows])


def _changed(parent: LakeTable) -> DataError:
    return DataError(
        f"{parent.name} no longer holds the rows that the table had",
        hint="take the table from the trash folder, or from a backup",
    )


def _bytes(raw: Any) -> NDArray[np.uint8]:
    return np.frombuffer(bytes(raw), np.uint8)


def _coded(rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Return row numbers in the form that takes least: runs, bits, or the numbers themselves."""
    if not len(rows):
        return {}
    width = np.uint32 if rows.max() < 2**32 else np.uint64
    starts = np.concatenate([[0], np.flatnonzero(np.diff(rows) != 1) + 1])
    runs = np.diff(np.concatenate([starts, [len(rows)]]))
    forms: list[dict[str, NDArray[Any]]] = [
        {"rows": rows.astype(width)},
        {"starts": rows[starts].astype(width), "runs": runs.astype(width)},
    ]
    if (np.diff(rows) > 0).all():
        bits = np.zeros(int(rows[-1]) + 1, np.uint8)
        bits[rows] = 1
        forms.append({"bits": np.packbits(bits)})
    return min(forms, key=lambda form: sum(values.nbytes for values in form.values()))


def _decoded(pack: Pack) -> NDArray[np.int64]:
    """Return row numbers from the form that `_coded` chose."""
    if "rows" in pack.names:
        return pack["rows"].astype(np.int64)
    if "bits" in pack.names:
        return np.flatnonzero(np.unpackbits(pack["bits"]))
    if "runs" not in pack.names:
        return np.zeros(0, np.int64)
    starts, runs = pack["starts"].astype(np.int64), pack["runs"].astype(np.int64)
    inside = np.arange(runs.sum()) - np.repeat(np.cumsum(runs) - runs, runs)
    return np.repeat(starts, runs) + inside


def read_column(table: LakeTable, name: str) -> "pa.Array":
    """Return all values of a column in memory.

    Args:
        table: the table.
        name: name of a column, not of a field of one.

    Returns:
        Values, [rows].

    Raises:
        DataError: the table cannot be read.
    """
    import pyarrow as pa

    batches = [batch[name] for batch in table.read([name])]
    return _joined(pa.chunked_array(batches, table.schema.field(name).type))


def _joined(column: "pa.ChunkedArray") -> "pa.Array":
    """Return the values of a column as one array."""
    import pyarrow as pa

    return pa.concat_arrays(column.chunks) if column.chunks else pa.array([], column.type)


def row_digest(table: "pa.Table") -> str:
    """Return the SHA-256 of the hashes of rows in their order.

    Args:
        table: rows in memory.

    Returns:
        Lower-case hex; equal for equal rows in the same order.
    """
    return hashlib.sha256(_hashes(table.to_batches(), table.schema.names).tobytes()).hexdigest()


def _shaped(values: "pa.Array", kind: "pa.DataType") -> "pa.Array":
    """Return values as a type; of structures only the fields that the type has."""
    import pyarrow as pa

    if values.type == kind:
        return values
    if pa.types.is_struct(kind) and pa.types.is_struct(values.type):
        fields = [
            _shaped(compute().struct_field(values, [field.name]), field.type) for field in kind
        ]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=values.is_null())
    return values.cast(kind)


def _between(values: "pa.Array", low: Any, high: Any) -> NDArray[np.bool_]:
    """Return which values lie between two, both of them in."""
    pc = compute()
    inside = pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high))
    return pc.fill_null(inside, fill_value=False).to_numpy(zero_copy_only=False)


def infer_recipe(child: LakeTable, parent: LakeTable) -> RebuildRecipe | None:
    """Find how a table is rebuilt from another, and prove it value by value.

    Rows are matched by their hashes and then compared bit by bit, one column at a time: the child
    and one column of the parent have to fit into memory.

    Args:
        child: the table that is to go.
        parent: the table that contains it.

    Returns:
        The recipe; None where a row of the child is not in the parent, or not to the bit.

    Raises:
        DataError: a table cannot be read.
    """
    import pyarrow as pa

    names = [column.name for column in child.columns]
    whole = pa.Table.from_batches(list(child.read(child.schema.names)), child.schema)
    own = _hashes(whole.to_batches(), names)
    places = _matched(own, _hashes(parent.read(names), names))
    if places is None:
        return None
    for field in child.schema:
        try:
            made = _shaped(read_column(parent, field.name).take(pa.array(places)), field.type)
        except pa.ArrowException:
            # Numbers of another type that the child's type cannot hold.
            return None
        if not _same_bits(_joined(whole[field.name]), made):
            return None
    kind, column, ends = _choice(parent, places)
    return RebuildRecipe(
        schema=child.schema,
        kind=kind,
        column=column,
        ends=ends,
        rows=places if kind == "rows" else np.zeros(0, np.int64),
        parent_rows=parent.rows,
        digest=row_digest(whole),
    )


def _hashes(batches: "Iterable[pa.RecordBatch]", names: Sequence[str]) -> NDArray[np.uint64]:
    """Return hashes of rows over some columns, [rows]."""
    pieces = [row_hashes(column_hashes(batch, names), names) for batch in batches]
    return np.concatenate([np.zeros(0, np.uint64), *pieces])


def _matched(own: NDArray[np.uint64], others: NDArray[np.uint64]) -> NDArray[np.int64] | None:
    """Return a row of the parent for each of the child's, None where one has none.

    The n-th of equal rows takes the n-th of the parent's, over again where that has fewer, so that
    rows which were filtered in order are found in order.
    """
    if not len(own):
        return np.zeros(0, np.int64)
    order = np.argsort(others, kind="stable")
    sorted_others = others[order]
    first = np.searchsorted(sorted_others, own, side="left")
    count = np.searchsorted(sorted_others, own, side="right") - first
    if not count.all():
        return None
    mine = np.argsort(own, kind="stable")
    starts = np.concatenate([[True], own[mine][1:] != own[mine][:-1]])
    group = np.maximum.accumulate(np.where(starts, np.arange(len(own)), 0))
    turn = np.empty(len(own), np.int64)
    turn[mine] = np.arange(len(own)) - group
    return order[first + turn % count]


def _same_bits(one: "pa.Array", other: "pa.Array") -> bool:
    """Whether two columns are equal; of numbers that are none, and of zeros, every bit."""
    import pyarrow as pa

    if pa.types.is_floating(one.type):
        if not one.is_null().equals(other.is_null()):
            return False
        width = {16: np.uint16, 32: np.uint32, 64: np.uint64}[one.type.bit_width]
        left, right = (
            np.asarray(compute().drop_null(item).to_numpy(zero_copy_only=False)).view(width)
            for item in (one, other)
        )
        return bool(np.array_equal(left, right))
    if pa.types.is_struct(one.type) and one.is_null().equals(other.is_null()):
        return all(
            _same_bits(*(compute().struct_field(item, [field.name]) for item in (one, other)))
            for field in one.type
        )
    return one.equals(other)


def _choice(
    parent: LakeTable, places: NDArray[np.int64]
) -> "tuple[str, str, pa.RecordBatch | None]":
    """Return the shortest rule that chooses these rows of the parent in this order."""
    import pyarrow as pa

    if len(places) == parent.rows and np.array_equal(places, np.arange(len(places))):
        return "all rows", "", None
    best: tuple[str, pa.RecordBatch] | None = None
    if len(places) and (np.diff(places) > 0).all():
        for name, values in _ordered_columns(parent):
            ends = _ends(values, places)
            if ends is None:
                continue
            if best is None or ends.column(0).equals(ends.column(1)):
                best = (name, ends)
    return ("range", *best) if best else ("rows", "", None)


def _ends(values: "pa.Array", places: NDArray[np.int64]) -> "pa.RecordBatch | None":
    """Return the least and the largest of some values, where all values between are among them."""
    import pyarrow as pa

    chosen = values.take(pa.array(places))
    if chosen.null_count:
        return None
    found = compute().min_max(chosen)
    low, high = found["min"], found["max"]
    if not np.array_equal(np.flatnonzero(_between(values, low, high)), places):
        return None
    columns = [pa.array([end], values.type) for end in (low, high)]
    return pa.RecordBatch.from_arrays(columns, ["low", "high"])


def _ordered_columns(parent: LakeTable) -> "Iterator[tuple[str, pa.Array]]":
    """Yield columns whose values can be compared, one at a time; texts last."""
    fields = [field for field in parent.schema if comparable(field.type)]
    for field in sorted(fields, key=lambda field: comparable(field.type) == "text"):
        yield field.name, read_column(parent, field.name)

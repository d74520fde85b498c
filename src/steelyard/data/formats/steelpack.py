"""Steelpack: a table in a pack, of which a few columns, some rows, or ranges are read fast."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.formats.buffers import EncodedColumn
from steelyard.data.formats.columns import ColumnChunk
from steelyard.data.formats.marks import whole_groups
from steelyard.data.formats.physical import KeptType, kept_types
from steelyard.data.formats.selection import Condition, rows_within
from steelyard.data.formats.writer import FACTS, VERSION
from steelyard.data.formats.zones import ZONE_ROWS
from steelyard.data.pack import Pack
from steelyard.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa
    import torch

__all__ = ["Steelpack"]


class Steelpack:
    """A steelpack file; only what is asked for is read, and what is read is checked.

    Attributes:
        pack: the container.
        rows: number of rows.
        width: number of columns.
        groups: number of row groups.
        group_rows: rows of each.

    Source: Zeng et al. 2023, arXiv 2304.05028, section 7 (what a format should keep and leave).
    """

    def __init__(self, pack: Pack) -> None:
        """Read the facts.

        Args:
            pack: a pack with a table.

        Raises:
            DataError: it holds no table, or one of another version.
        """
        self.pack = pack
        if not pack.count or pack.name(pack.count - 1) != "steelpack":
            raise DataError(f"{pack.where} is a pack, but holds no table")
        listed = np.frombuffer(pack.whole(pack.count - 1), "<i8").tolist()
        facts = dict(zip(FACTS, listed, strict=False))
        if facts["version"] != VERSION or facts["zone rows"] != ZONE_ROWS:
            raise DataError(
                f"{pack.where} is a table of version {facts['version']}, and {VERSION} is read",
                hint="read it with the Steelyard that wrote it",
            )
        self.rows, self.width = facts["rows"], facts["columns"]
        self.groups, self._first_zone = facts["groups"], facts["first zone section"]
        self.group_rows = listed[len(FACTS) :]
        self._chunks: dict[tuple[int, int], ColumnChunk] = {}

    @classmethod
    def open(cls, path: str | Path) -> "Steelpack":
        """Map a file.

        Args:
            path: the file.

        Returns:
            The table.

        Raises:
            DataError: it cannot be read, is cut short, or is no steelpack; of a file that was cut
                short the last whole row group is named.
        """
        try:
            pack = Pack.open(path)
        except DataError as error:
            told = whole_groups(Path(path))
            raise DataError(f"{error.args[0]}{told}", hint="write it again") from error
        return cls(pack)

    @cached_property
    def _types(self) -> "tuple[tuple[KeptType, ...], Any]":
        return kept_types(bytes(self.pack.whole(self.pack.count - 3)))

    @cached_property
    def _fields(self) -> NDArray[np.uint32] | None:
        """Number of the type of each column, None where all have the same."""
        number = self.pack.count - 2
        return self.pack.raw(number).view("<u4") if self.pack.size(number) else None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.pack.name(place)[2:] for place in range(self.width))

    @cached_property
    def schema(self) -> "pa.Schema":
        """Columns with their types."""
        import pyarrow as pa

        fields = [self._field(place, name) for place, name in enumerate(self.names)]
        return pa.schema(fields, self._types[1])

    def _kind(self, place: int) -> KeptType:
        return self._types[0][0 if self._fields is None else self._fields[place]]

    def _field(self, place: int, name: str) -> "pa.Field":
        return self._kind(place).field.with_name(name)

    def _places(self, columns: Sequence[str] | None) -> list[tuple[int, str]]:
        """Return places and names of columns, all when there are none."""
        if columns is None:
            return list(enumerate(self.names))
        places = [self.pack.find(f"0/{name}") for name in columns]
        if None in places:
            missing = columns[places.index(None)]
            some = [self.pack.name(at)[2:] for at in range(min(self.width, 20))]
            raise ConfigError(
                f"no column {missing!r} in {self.pack.where}", hint=f"columns are {', '.join(some)}"
            )
        return [
            (place, name) for place, name in zip(places, columns, strict=True) if place is not None
        ]

    def _chunk(self, group: int, place: int) -> ColumnChunk:
        """Return a column of a row group; its sections stand in the order of the columns."""
        if (group, place) not in self._chunks:
            number = group * (self.width + 1) + place
            located = self._located(group, number)
            self._chunks[group, place] = ColumnChunk(located, self._kind(place))
        return self._chunks[group, place]

    def _located(self, group: int, number: int) -> EncodedColumn:
        try:
            return EncodedColumn(self.pack, number)
        except DataError as error:
            raise self._damage(error, group) from error

    def _damage(self, error: DataError, group: int) -> DataError:
        """Return an error that names the row groups before the damage that are whole."""
        # A column that is read for a batch has told already.
        if "damaged" not in str(error.args[0]) or str(error.args[0]).startswith("row group"):
            return error
        last = self.last_good_group()
        told = (
            f"row groups 0 to {last} are whole" if last >= 0 else "no row group before it is whole"
        )
        return DataError(f"row group {group}: {error.args[0]}; {told}", hint="write it again")

    def last_good_group(self) -> int:
        """Return the last row group before which, and in which, no byte is damaged; -1 for none."""
        for group in range(self.groups):
            for place in range(self.width):
                try:
                    self.pack.raw(group * (self.width + 1) + place)
                except DataError:
                    return group - 1
        return self.groups - 1

    def group_bytes(self, group: int) -> int:
        """Return the bytes that the columns of a row group take."""
        first = group * (self.width + 1)
        end = self.pack.place(first + self.width)
        return end - self.pack.place(first) if self.width else 0

    def batches(
        self,
        columns: Sequence[str] | None = None,
        *,
        groups: Sequence[int] | None = None,
        batch_rows: int = 0,
    ) -> Iterator["pa.RecordBatch"]:
        """Read row group by row group.

        Args:
            columns: names; all when they are left out.
            groups: which row groups; all when they are left out.
            batch_rows: most rows of a batch, a multiple of 8,192; 0 for whole row groups.

        Yields:
            Batches; what was decoded of a row group is forgotten after its last.

        Raises:
            ConfigError: there is no such column.
            DataError: a byte is damaged; the last whole row group is named.
        """
        import pyarrow as pa

        places = self._places(columns)
        schema = pa.schema([self._field(*place) for place in places], self._types[1])
        for group in range(self.groups) if groups is None else groups:
            rows = self.group_rows[group]
            step = batch_rows or max(rows, 1)
            for first in range(0, max(rows, 1), step):
                last = min(first + step, rows)
                arrays = [self._decoded(group, place, first, last) for place, _ in places]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
            if len(self.group_rows) > 1:
                for place, _ in places:
                    self._chunks.pop((group, place), None)

    def _decoded(self, group: int, place: int, first: int, last: int) -> "pa.Array":
        return self._as_given(self._kept(group, place, first, last), place)

    def _as_given(self, array: "pa.Array", place: int) -> "pa.Array":
        """Return a column in the type in which it was written."""
        import pyarrow as pa

        kept = self._kind(place)
        wanted = kept.given
        if kept.stored == wanted:
            return array
        return (array.dictionary_encode() if pa.types.is_dictionary(wanted) else array).cast(wanted)

    def read(self, columns: Sequence[str] | None = None) -> "pa.Table":
        """Read all rows.

        Args:
            columns: names; all when they are left out.

        Returns:
            An Arrow table; plain numbers and vectors share the file's memory.

        Raises:
            ConfigError: there is no such column.
            DataError: a byte is damaged; the last whole row group is named.
        """
        import pyarrow as pa

        return pa.Table.from_batches(list(self.batches(columns)))

    def numpy(self, columns: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        """Read all rows as NumPy arrays.

        Args:
            columns: names; all when they are left out.

        Returns:
            Arrays by name; one row group of plain numbers shares the file's memory, vectors are
            [rows, width], missing numbers are NaN and missing texts None.

        Raises:
            ConfigError: there is no such column.
            DataError: a byte is damaged.
        """
        import pyarrow as pa

        found: dict[str, NDArray[Any]] = {}
        table = self.read(columns)
        for name, column in zip(table.column_names, table.columns, strict=True):
            array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
            if pa.types.is_fixed_size_list(array.type) and not array.null_count:
                width = array.type.list_size
                found[name] = array.flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
            else:
                found[name] = array.to_numpy(zero_copy_only=False)
        return found

    def torch(self, columns: Sequence[str] | None = None) -> "dict[str, torch.Tensor]":
        """Read all rows as tensors.

        Args:
            columns: names of numbers, flags and vectors; all columns when they are left out.

        Returns:
            Tensors by name; those of plain numbers share the file's memory and are not to be
            written to.

        Raises:
            ConfigError: there is no such column, or one holds texts.
            DataError: a byte is damaged.
        """
        import warnings

        import torch

        found = {}
        for name, values in self.numpy(columns).items():
            if values.dtype.kind not in "biuf":
                raise ConfigError(
                    f"column {name!r} holds {values.dtype}, which is no tensor",
                    hint="choose columns of numbers",
                )
            with warnings.catch_warnings():
                # The memory is the file's; the docstring says so.
                warnings.simplefilter("ignore", UserWarning)
                found[name] = torch.from_numpy(values)
        return found

    def take(self, rows: Any, columns: Sequence[str] | None = None) -> "pa.Table":
        """Read single rows.

        Args:
            rows: numbers of rows from 0, in any order and as often as wanted, [rows].
            columns: names; all when they are left out.

        Returns:
            The rows in the order they were asked for.

        Raises:
            ConfigError: there is no such row or column.
            DataError: a byte is damaged.
        """
        import pyarrow as pa

        wanted = np.asarray(rows, np.int64)
        if len(wanted) and (wanted.min() < 0 or wanted.max() >= self.rows):
            bad = wanted[(wanted < 0) | (wanted >= self.rows)][0]
            raise ConfigError(f"no row {bad} in {self.pack.where}", hint=f"it has {self.rows} rows")
        places = self._places(columns)
        schema = pa.schema([self._field(*place) for place in places], self._types[1])
        order = np.argsort(wanted, kind="stable")
        sorted_rows = wanted[order]
        ends = np.cumsum(self.group_rows)
        cuts = np.searchsorted(sorted_rows, np.concatenate([[0], ends]))
        batches = []
        for group in range(self.groups):
            inside = sorted_rows[cuts[group] : cuts[group + 1]] - (
                ends[group] - self.group_rows[group]
            )
            if len(inside):
                arrays = [self._taken(group, place, inside) for place, _ in places]
                batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
        table = pa.Table.from_batches(batches, schema)
        if (order[1:] < order[:-1]).any():
            back = np.empty(len(order), np.int64)
            back[order] = np.arange(len(order))
            table = table.take(pa.array(back))
        return table

    def _taken(self, group: int, place: int, rows: NDArray[np.int64]) -> "pa.Array":
        try:
            array = self._chunk(group, place).take(rows)
        except DataError as error:
            raise self._damage(error, group) from error
        return self._as_given(array, place)

    def select(
        self, between: Mapping[str, tuple[Any, Any]], columns: Sequence[str] | None = None
    ) -> "pa.Table":
        """Read the rows whose values lie in ranges; zones that cannot have any are not read.

        Args:
            between: least and largest value by column, None for no bound.
            columns: names of what is returned; all when they are left out.

        Returns:
            The rows in the order of the table; missing values and NaN are in no range.

        Raises:
            ConfigError: there is no such column, or its type has no order.
            DataError: a byte is damaged.
        """
        conditions = [
            Condition(place, self._kind(place).stored, *between[name], self._zones(place))
            for place, name in self._places(list(between))
        ]
        found = rows_within(conditions, self.group_rows, self._kept)
        return self.take(found, columns)

    def _zones(self, place: int) -> NDArray[np.int64]:
        """Return the zone map of a column, [zones, 3]."""
        return self.pack.at(self._first_zone + place)

    def _kept(self, group: int, place: int, first: int, last: int) -> "pa.Array":
        """Return rows of a column in the type in which it is kept."""
        try:
            return self._chunk(group, place).decode(first, last)
        except DataError as error:
            raise self._damage(error, group) from error

    def told(self) -> list[dict[str, Any]]:
        """Return name, type, encodings and bytes of each column, summed over its row groups."""
        listed = []
        for place, name in enumerate(self.names):
            chunks = [self._chunk(group, place).told() for group in range(self.groups)]
            encodings = {" ".join(filter(None, (c["encoding"], c["codes"]))): None for c in chunks}
            listed.append(
                {
                    "name": name,
                    "type": str(self._field(place, name).type),
                    "encodings": list(encodings),
                    "distinct": max(chunk["distinct"] for chunk in chunks),
                    "nulls": sum(chunk["nulls"] for chunk in chunks),
                    "bytes": sum(chunk["bytes"] for chunk in chunks),
                }
            )
        return listed

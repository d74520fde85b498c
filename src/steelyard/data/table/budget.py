"""How many bytes a pass over a table holds at once, and how it is kept within a budget."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np

from steelyard.data.table.counts import ReadCounts
from steelyard.data.table.fold import Fold
from steelyard.data.table.foldable import FoldableTable
from steelyard.data.table.partitions import TablePart
from steelyard.data.table.quarantine import Quarantine
from steelyard.data.table.reading import BLOCK_BYTES, ReadLimits
from steelyard.data.table.sources import open_source
from steelyard.errors import CapacityError
from steelyard.units import pretty

__all__ = ["FoldBudget", "held_bytes"]

_SMALLEST_BLOCK, _PAGE_BYTES = 1 << 16, 1 << 20
_TEXT_COPIES = 12
"""Bytes per byte of text while it is read and folded: the block before and after, columns of text,
values of eight bytes, their hashes and their numbers, and the batch that is read ahead."""
_VALUE_COPIES = 5
"""The same per byte of a batch that is read as columns."""
_GROWTH = 2.0
"""States after a whole part over those after its first batch: levels of quantiles are added."""
_LOOSE_BYTES = 16 << 20
"""What allocators keep back whatever is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldBudget:
    """How a table is read so that a pass stays within some bytes.

    Attributes:
        limits: how much is read at once. They follow from the budget and the table alone, so that
            results do not depend on the number of workers.
        workers: most parts that may be read at once.
        state_bytes: what the states of all folds take.
        read_bytes: what reading and folding one part takes besides.
    """

    limits: ReadLimits
    workers: int
    state_bytes: int
    read_bytes: int

    @classmethod
    def to_write(cls, table: FoldableTable, memory_bytes: float) -> ReadLimits:
        """Choose how much is read at once where rows are written as they come.

        Args:
            table: what is written.
            memory_bytes: the budget, without what the libraries take.

        Returns:
            Limits: half of the budget is for reading, a sixteenth for a row group that is
            gathered: it is there again joined and as it is written, and each column has a
            compressor.

        Raises:
            CapacityError: the smallest batches do not fit.
        """
        limits = cls.of(table, [], memory_bytes / 2).limits
        return replace(limits, group_bytes=int(memory_bytes / 16))

    @classmethod
    def of(
        cls, table: FoldableTable, folds: Sequence[Fold[Any]], memory_bytes: float
    ) -> "FoldBudget":
        """Choose how much is read at once; the first rows are folded to see what states take.

        Args:
            table: what is folded.
            folds: what it is folded with.
            memory_bytes: the budget, without what the libraries take.

        Returns:
            The largest batches that leave a third of the budget, or the smallest.

        Raises:
            CapacityError: the smallest batches do not fit; the message says what does.
        """
        groups = _Groups.of(table.partitions)
        block = BLOCK_BYTES
        while block > _SMALLEST_BLOCK and groups.read_bytes(block) > memory_bytes / 3:
            block //= 2
        states = int(_GROWTH * _first_states(table, folds, groups.limits(_SMALLEST_BLOCK)))
        while block > _SMALLEST_BLOCK and _needed(groups, block, states, 1) > memory_bytes:
            block //= 2
        if (least := _needed(groups, block, states, 1)) > memory_bytes:
            raise CapacityError(
                f"memory: {pretty(memory_bytes, 'byte')} do not hold one part of the table: "
                f"{groups.told(block)}, and states of {pretty(3 * states, 'byte')}",
                hint=f"give {pretty(least * 1.01, 'byte')} or more, or fold fewer columns",
            )
        workers = 1
        while workers < len(table.partitions) and (
            _needed(groups, block, states, workers + 1) <= memory_bytes
        ):
            workers += 1
        return cls(
            limits=groups.limits(block),
            workers=workers,
            state_bytes=states,
            read_bytes=groups.read_bytes(block),
        )


def _needed(groups: "_Groups", block: int, states: int, workers: int) -> int:
    """Return the bytes of a pass: parts that are read, their states, and two that are merged."""
    # A part's states are packed and unpacked again: for a moment they are there twice.
    return workers * (groups.read_bytes(block) + 2 * states) + states + _LOOSE_BYTES


@dataclass(frozen=True, slots=True)
class _Groups:
    """What must be held to read a part of a table.

    Attributes:
        has_text: whether there are text files.
        largest_batch: bytes of the largest batch of Arrow files.
        columns: most columns of a Parquet file.
        chunk: bytes of the largest column of a row group.
        row_bytes: bytes of the widest rows of Parquet files.
        path: the file of the largest row group.
    """

    has_text: bool = False
    largest_batch: int = 0
    columns: int = 0
    chunk: int = 0
    row_bytes: float = 0.0
    path: str = ""

    @classmethod
    def of(cls, parts: Iterable[TablePart]) -> "_Groups":
        """Look at the footers of Parquet files; of others sizes are enough."""
        found = cls()
        seen: set[str] = set()
        for part in parts:
            if part.format == "parquet" and part.path not in seen:
                seen.add(part.path)
                found = found.joined(_parquet_groups(part.path))
            elif part.format in ("arrow", "steelpack"):
                each = -(-part.num_bytes // max(part.last - part.first, 1))
                found = found.joined(cls(largest_batch=each))
            elif part.format != "parquet":
                found = found.joined(cls(has_text=True))
        return found

    def joined(self, other: "_Groups") -> "_Groups":
        """Return what holds either."""
        path = other.path if other.columns * other.chunk > self.columns * self.chunk else self.path
        most = {
            item.name: max(getattr(self, item.name), getattr(other, item.name))
            for item in fields(self)
            if item.name != "path"
        }
        return _Groups(**most, path=path)

    def limits(self, block: int) -> ReadLimits:
        """Return how much is read at once for some bytes of text."""
        share = block / BLOCK_BYTES
        # A batch of columns may be as large as what comes of a block of text.
        rows = int(4 * block / self.row_bytes) if self.row_bytes else ReadLimits().batch_rows
        return ReadLimits(
            batch_rows=max(min(rows, int(ReadLimits().batch_rows * share)), 64),
            block_bytes=block,
            buffer_bytes=max(int(ReadLimits().buffer_bytes * share / 4), 1 << 14),
        )

    def read_bytes(self, block: int) -> int:
        """Return what reading and folding a part holds."""
        limits = self.limits(block)
        text = _TEXT_COPIES * block if self.has_text else 0
        batch = int(_VALUE_COPIES * limits.batch_rows * self.row_bytes)
        # A page of each column is in memory beside what is buffered of the file.
        buffered = min(limits.buffer_bytes, self.chunk) + min(_PAGE_BYTES, self.chunk)
        return max(text, batch + self.columns * buffered, 3 * self.largest_batch)

    def told(self, block: int) -> str:
        """Return in words what reading holds."""
        what = "a batch takes"
        if self.columns:
            what = f"a row group of {self.path} ({self.columns:,} columns) takes"
        elif self.largest_batch:
            what = "the largest batch of the Arrow files takes"
        return f"{what} {pretty(self.read_bytes(block), 'byte')}"


def _parquet_groups(path: str) -> _Groups:
    """Return what row groups of a Parquet file need."""
    from pyarrow import parquet

    with open_source(path, ReadCounts()) as source, parquet.ParquetFile(source) as file:
        columns, chunk, row_bytes = file.metadata.num_columns, 0, 0.0
        for place in range(file.num_row_groups):
            group = file.metadata.row_group(place)
            row_bytes = max(row_bytes, group.total_byte_size / max(group.num_rows, 1), 8 * columns)
            sizes = (group.column(column).total_uncompressed_size for column in range(columns))
            chunk = max(chunk, *sizes)
    return _Groups(columns=columns, chunk=chunk, row_bytes=row_bytes, path=path)


def _first_states(table: FoldableTable, folds: Sequence[Fold[Any]], limits: ReadLimits) -> int:
    """Return the bytes of the states after the first batch."""
    states = [fold.init(table.schema) for fold in folds]
    small = table.with_limits(limits)
    for part in table.partitions[:1]:
        for batch in small.read(part, Quarantine()):
            for fold, state in zip(folds, states, strict=True):
                fold.update(state, batch)
            break
    return held_bytes(states)


def held_bytes(value: Any) -> int:
    """Return the bytes of arrays, texts and numbers that an object holds, each counted once."""
    seen: set[int] = set()
    waiting, total = [value], 0
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        total += sys.getsizeof(item)
        if isinstance(item, np.ndarray):
            # An array that owns its memory already counts it.
            total += 0 if item.base is None else item.nbytes
        elif isinstance(item, dict):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set | frozenset):
            waiting += item
        elif is_dataclass(item) and not isinstance(item, type):
            waiting += [getattr(item, inner.name, None) for inner in fields(item)]
        elif hasattr(item, "__dict__") and not isinstance(item, type):
            waiting += vars(item).values()
    return total

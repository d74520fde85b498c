"""Tables side by side, and tables cut in two by the hash of a key."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from steelyard.data.sketch import hash_column
from steelyard.data.sketch.hashing import mix64
from steelyard.data.table.partitions import TablePart
from steelyard.data.table.quarantine import Quarantine
from steelyard.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["beside", "check_shares", "check_zip", "key_places", "rows_before", "shares_of"]


class ReadByParts(Protocol):
    """What is asked of a table that stands beside another."""

    @property
    def schema(self) -> "pa.Schema":
        """Its columns."""
        ...

    @property
    def partitions(self) -> Sequence[TablePart]:
        """Its parts."""
        ...

    @property
    def steps(self) -> Sequence[Any]:
        """What is done to each batch."""
        ...

    def read(self, partition: TablePart, quarantine: Quarantine) -> Iterator["pa.RecordBatch"]:
        """Read a part."""
        ...


def shares_of(
    shares: Mapping[str, float], key: Sequence[str], seed: int
) -> "dict[str, partial[pa.RecordBatch]]":
    """Return a step by name that keeps the rows whose key hashes into its share.

    Args:
        shares: parts by name, that add up to at most 1.
        key: columns; rows of equal keys stay together.
        seed: changes which keys go where.

    Returns:
        Steps.

    Raises:
        ConfigError: shares are negative or add up to more than 1, or there is no key.
    """
    check_shares(shares)
    if not key:
        raise ConfigError("a split needs a key", hint="name one column or several")
    steps, low = {}, 0.0
    for name, share in shares.items():
        high = low + share
        steps[name] = partial(_kept, key=tuple(key), seed=seed, low=low, high=high)
        low = high
    return steps


def check_shares(shares: Mapping[str, float]) -> None:
    """Refuse shares that are negative or add up to more than 1.

    Args:
        shares: share by name.

    Raises:
        ConfigError: they do, or there is none.
    """
    if not shares or min(shares.values()) < 0 or sum(shares.values()) > 1 + 1e-9:
        raise ConfigError(
            f"shares are {dict(shares)}, but must be 0 or more and add up to at most 1"
        )


def key_places(batch: "pa.RecordBatch", key: Sequence[str], seed: int) -> NDArray[np.float64]:
    """Return where keys lie between 0 and 1, evenly and the same in any table.

    Args:
        batch: the rows.
        key: columns of the key.
        seed: changes where they lie.

    Returns:
        Places [rows].
    """
    whole = np.full(len(batch), np.uint64(seed), np.uint64)
    for name in key:
        whole = mix64(whole + hash_column(batch[name]))
    # The upper 53 bits are a float's own.
    return (whole >> np.uint64(11)).astype(np.float64) / 2.0**53


def _kept(
    batch: "pa.RecordBatch", *, key: tuple[str, ...], seed: int, low: float, high: float
) -> "pa.RecordBatch":
    """Return the rows whose hash lies between two shares."""
    import pyarrow as pa

    place = key_places(batch, key, seed)
    # Rounding must not leave a row between two shares, nor out of the last.
    top = 2.0 if high >= 1 - 1e-9 else high
    return batch.filter(pa.array((place >= low) & (place < top)))


def check_zip(left: ReadByParts, right: ReadByParts) -> None:
    """Refuse tables that cannot stand side by side.

    Args:
        left: a table.
        right: another.

    Raises:
        ConfigError: a column stands in both, rows are not known before they are read, or their
            numbers differ.
    """
    if both := [name for name in right.schema.names if name in left.schema.names]:
        raise ConfigError(f"column {both[0]!r} is in both tables", hint="select others")
    for table in (left, right):
        if table.steps or any(part.rows is None for part in table.partitions):
            raise ConfigError(
                "tables stand side by side where their rows are known before they are read: "
                "Parquet files and frames, without steps",
                hint="write the table as Parquet first",
            )
    counts = [sum(part.rows or 0 for part in table.partitions) for table in (left, right)]
    if counts[0] != counts[1]:
        raise ConfigError(f"the tables have {counts[0]:,} and {counts[1]:,} rows")


def beside(
    table: ReadByParts, partition: TablePart, given: Iterator["pa.RecordBatch"], first: int
) -> Iterator["pa.RecordBatch"]:
    """Put the columns of another table beside batches of one.

    Args:
        table: the other table.
        partition: part of the first that the batches come from.
        given: batches.
        first: number of rows of the first table before that part.

    Yields:
        Batches with the columns of both.

    Raises:
        DataError: the other table has fewer rows than it said.
    """
    import pyarrow as pa

    others = _from_row(table, first)
    held = next(others, None)
    for batch in given:
        pieces, missing = [], len(batch)
        while missing and held is not None:
            pieces.append(held.slice(0, missing))
            missing -= len(pieces[-1])
            rest = held.slice(len(pieces[-1]))
            held = rest if len(rest) else next(others, None)
        if missing:
            raise DataError(f"the table beside {partition.path} has too few rows")
        joined = (
            pa.concat_batches(pieces)
            if pieces
            else pa.RecordBatch.from_pylist([], schema=table.schema)
        )
        names = [*batch.schema.names, *table.schema.names]
        yield pa.RecordBatch.from_arrays([*batch.columns, *joined.columns], names)


def _from_row(table: ReadByParts, first: int) -> Iterator["pa.RecordBatch"]:
    """Read a table from a row on."""
    passed, unused = 0, Quarantine()
    for part in table.partitions:
        rows = part.rows or 0
        if passed + rows <= first:
            passed += rows
            continue
        for batch in table.read(part, unused):
            skipped = min(max(first - passed, 0), len(batch))
            passed += len(batch)
            if skipped < len(batch):
                yield batch.slice(skipped)


def rows_before(parts: Sequence[TablePart], partition: TablePart) -> int:
    """Return the rows of a table before one of its parts.

    Args:
        parts: all of its parts, whose rows are known.
        partition: one of them.

    Returns:
        Their number.
    """
    place = list(parts).index(partition)
    return sum(part.rows or 0 for part in parts[:place])

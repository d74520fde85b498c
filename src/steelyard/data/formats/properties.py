"""What decides how small and fast a column can be kept: distinct values, range, order, skew."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.formats.numbers import decimal_digits
from steelyard.data.formats.physical import dtype_of, kind_of, numbers_of, stored_type, text_parts
from steelyard.data.formats.zones import ordered_values
from steelyard.data.sketch import FrequentHashes, HyperLogLog, Moments, hash_column
from steelyard.data.sketch.hashing import NULL_HASH

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ColumnProperties", "PropertiesFold", "profile"]

_COUNTERS = 2048
_HOTSPOT_SHARE = 0.5
_UNIFORM_BELOW = 0.1
_MOST_RANKS = 64
_NO_DIGITS = 99


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnProperties:
    """Properties of one column.

    Attributes:
        name: name of the column.
        type: its Arrow type.
        kind: "integer", "float", "text", "flag" or "other".
        rows: their number.
        distinct_ratio: distinct values over rows with a value.
        null_ratio: rows without a value over rows.
        size: mean magnitude of numbers, mean bytes of texts.
        sortedness: 0 for no order, 1 for sorted up or down: (in order + equal) over neighbours,
            less one half, times two.
        repetition: mean length of runs of equal values.
        skew: "single", "binary", "uniform", "zipf" or "hotspot", where one value takes half.
        zipf: exponent of the frequencies of the most frequent values.
        top_share: share of the most frequent value.
        digits: decimals of floating point numbers; -1 where they do not end.
    """

    name: str
    type: str
    kind: str
    rows: int
    distinct_ratio: float
    null_ratio: float
    size: float
    sortedness: float
    repetition: float
    skew: str
    zipf: float
    top_share: float
    digits: int


@dataclass(slots=True)
class _State:
    """What is kept of a column."""

    rows: int = 0
    nulls: int = 0
    distinct: HyperLogLog = field(default_factory=lambda: HyperLogLog(12))
    frequent: FrequentHashes = field(default_factory=lambda: FrequentHashes(_COUNTERS))
    sizes: Moments = field(default_factory=Moments)
    steps: NDArray[np.int64] = field(default_factory=lambda: np.zeros(3, np.int64))
    """Neighbours that rise, fall, and are equal."""
    ends: NDArray[np.int64] = field(default_factory=lambda: np.zeros(4, np.int64))
    """First and last value by order, and their hashes; steps between parts need them."""
    digits: int = 0


class PropertiesFold:
    """A `Fold` that makes `ColumnProperties`.

    Source: Zeng et al. 2023, arXiv 2304.05028, section 3.1 (the properties).
    """

    name = "properties"

    def init(self, schema: "pa.Schema") -> list[_State]:
        """Return the state before any row."""
        self._schema = schema
        return [_State() for _ in schema]

    def update(self, state: list[_State], batch: "pa.RecordBatch") -> None:
        """Take rows in."""
        for place, column in enumerate(state):
            _take(column, batch.column(place))

    def merge(self, state: list[_State], later: list[_State]) -> None:
        """Take in the state of later rows."""
        for column, other in zip(state, later, strict=True):
            _merge(column, other)

    def finish(self, state: list[_State]) -> list[ColumnProperties]:
        """Return the properties."""
        return [
            _finished(column, item.name, item.type)
            for column, item in zip(state, self._schema, strict=True)
        ]

    def sections(self, state: list[_State]) -> dict[str, NDArray[Any]]:
        """Return a state as arrays by name."""
        found: dict[str, NDArray[Any]] = {}
        for place, column in enumerate(state):
            found[f"{place}.counts"] = np.array([column.rows, column.nulls, column.digits])
            found[f"{place}.steps"], found[f"{place}.ends"] = column.steps, column.ends
            for part in ("distinct", "frequent", "sizes"):
                for name, values in getattr(column, part).sections().items():
                    found[f"{place}.{part}.{name}"] = values
        return found

    def of(self, schema: "pa.Schema", sections: dict[str, NDArray[Any]]) -> list[_State]:
        """Return the state of such arrays."""
        self._schema = schema

        def part(begins: str) -> dict[str, NDArray[Any]]:
            return {k[len(begins) :]: v for k, v in sections.items() if k.startswith(begins)}

        found = []
        for place in range(len(schema)):
            rows, nulls, digits = sections[f"{place}.counts"].tolist()
            found.append(
                _State(
                    rows,
                    nulls,
                    HyperLogLog.of(part(f"{place}.distinct.")),
                    FrequentHashes.of(part(f"{place}.frequent.")),
                    Moments.of(part(f"{place}.sizes.")),
                    sections[f"{place}.steps"].copy(),
                    sections[f"{place}.ends"].copy(),
                    digits,
                )
            )
        return found


def _take(column: _State, values: "pa.Array") -> None:
    """Feed a column."""
    column.rows += len(values)
    column.nulls += values.null_count
    wanted = stored_type(values.type)
    present = (values.cast(wanted) if wanted != values.type else values).drop_null()
    if not len(present):
        return
    hashes = hash_column(present)
    hashes = hashes[hashes != NULL_HASH]
    column.distinct.update(hashes)
    column.frequent.update(hashes)
    column.sizes.update(_sizes(present))
    if _kind(wanted) == "float":
        digits = decimal_digits(numbers_of(present))
        column.digits = max(column.digits, _NO_DIGITS if digits is None else digits)
    keys = ordered_values(present)
    marks = hashes.view(np.int64)
    # Texts are ordered by their first bytes, and equal where all are.
    order = (marks if keys is None else keys).astype(np.float64)
    if len(order) != len(marks):
        return
    link = _State(rows=len(order))
    link.steps = _steps(order, marks)
    firsts = order[[0, -1]].view(np.int64)
    link.ends = np.array([firsts[0], firsts[1], marks[0], marks[-1]])
    _link(column, link)


def _steps(order: NDArray[np.float64], marks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many neighbours rise, fall, and are equal."""
    equal = marks[1:] == marks[:-1]
    rise = np.count_nonzero((order[1:] >= order[:-1]) & ~equal)
    same = np.count_nonzero(equal)
    return np.array([rise, len(equal) - same - rise, same])


def _link(column: _State, later: _State) -> None:
    """Add the steps of later rows, and that between."""
    if not later.ends.any() and not later.steps.any():
        return
    if column.ends.any() or column.steps.any():
        order = np.array([column.ends[1], later.ends[0]]).view(np.float64)
        column.steps += _steps(order, np.array([column.ends[3], later.ends[2]]))
        column.ends[[1, 3]] = later.ends[[1, 3]]
    else:
        column.ends = later.ends.copy()
    column.steps += later.steps


def _merge(column: _State, other: _State) -> None:
    column.rows += other.rows
    column.nulls += other.nulls
    column.distinct.merge(other.distinct)
    column.frequent.merge(other.frequent)
    column.sizes.merge(other.sizes)
    column.digits = max(column.digits, other.digits)
    _link(column, other)


def _kind(type: "pa.DataType") -> str:
    """Return the kind of a column that properties tell apart."""
    kind, dtype = kind_of(type), dtype_of(type)
    if kind in ("text", "flag"):
        return kind
    if kind != "number" or dtype is None or dtype.kind == "V":
        return "other"
    return "float" if dtype.kind == "f" else "integer"


def _sizes(values: "pa.Array") -> NDArray[np.float64]:
    """Return magnitudes of numbers, or bytes of texts."""
    kind = _kind(values.type)
    if kind == "text":
        return text_parts(values)[0].astype(np.float64)
    if kind == "other":
        return np.full(len(values), values.nbytes / max(len(values), 1))
    found = np.abs(numbers_of(values).astype(np.float64))
    return np.where(np.isfinite(found), found, np.nan)


def _finished(column: _State, name: str, type: "pa.DataType") -> ColumnProperties:
    """Return the properties of a column."""
    present = column.rows - column.nulls
    distinct = min(column.distinct.estimate(), present)
    pairs = max(int(column.steps.sum()), 1)
    rise, fall, same = column.steps.tolist()
    ordered = (max(rise, fall) + same) / pairs
    # Counts are too low by at most the error; those below it say nothing of a frequency.
    counted, error = column.frequent.counters()[1], column.frequent.error
    counts = (counted[counted >= error] + error / 2).astype(np.float64)
    top = float(counts[0]) / present if len(counts) and present else 0.0
    exponent = _exponent(counts, distinct)
    digits = -1 if column.digits == _NO_DIGITS else column.digits
    return ColumnProperties(
        name=name,
        type=str(type),
        kind=_kind(stored_type(type)),
        rows=column.rows,
        distinct_ratio=distinct / present if present else 0.0,
        null_ratio=column.nulls / column.rows if column.rows else 0.0,
        size=column.sizes.mean if column.sizes.count else 0.0,
        sortedness=max(0.0, 2 * ordered - 1) if column.steps.sum() else 1.0,
        repetition=present / max(present - same, 1),
        skew=_skew(distinct, top, exponent),
        zipf=exponent,
        top_share=top,
        digits=digits if _kind(stored_type(type)) == "float" else 0,
    )


def _exponent(counts: NDArray[np.float64], distinct: float) -> float:
    """Return the slope of frequencies by rank, both as logarithms."""
    ranks = min(len(counts), _MOST_RANKS, max(int(distinct), 1))
    if ranks < 3 or counts[0] < 3:
        return 0.0
    slope = np.polyfit(np.log(np.arange(1, ranks + 1)), np.log(counts[:ranks]), 1)[0]
    return max(0.0, -float(slope))


def _skew(distinct: float, top: float, exponent: float) -> str:
    """Return the class of the frequencies."""
    if distinct < 1.5:
        return "single"
    if distinct < 2.5:
        return "binary"
    if top >= _HOTSPOT_SHARE:
        return "hotspot"
    return "zipf" if exponent >= _UNIFORM_BELOW else "uniform"


def profile(table: Any) -> list[ColumnProperties]:
    """Return the properties of the columns of a table in memory.

    Args:
        table: Arrow table; tables in files are folded by `DataTable.fold(PropertiesFold())`.

    Returns:
        One for each column.
    """
    fold = PropertiesFold()
    state = fold.init(table.schema)
    for batch in table.to_batches():
        fold.update(state, batch)
    return fold.finish(state)

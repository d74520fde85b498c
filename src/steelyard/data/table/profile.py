"""The profile of a table: what each column holds, in one pass and some megabytes."""

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.sketch import HyperLogLog, KllQuantiles, Moments
from steelyard.data.table.columns import BatchColumns, columns_of, has_numbers, is_text
from steelyard.data.table.frequent_texts import FrequentTexts

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ColumnProfile", "ColumnSketches", "ProfileFold", "TableProfile", "TableSketches"]

_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
_WHOLE = 16_384
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnProfile:
    """One column.

    Attributes:
        name: name of the column.
        type: its Arrow type.
        missing: rows without a value.
        distinct: estimated number of distinct values.
        distinct_error: relative standard error of that.
        mean: mean of numbers; of texts their length in bytes; of times NaN.
        std: standard deviation.
        skewness: third standardized moment.
        least: smallest number, or time in seconds since 1970; NaN of texts.
        largest: largest.
        quantiles: values at 5, 25, 50, 75 and 95 %, within 1.65 % of the ranks.
        frequent: most frequent values as text with their least counts, and how much these may be
            too low.
        count_error: most by which those counts are too low.
    """

    name: str
    type: str
    missing: int
    distinct: float
    distinct_error: float
    mean: float = math.nan
    std: float = math.nan
    skewness: float = math.nan
    least: float = math.nan
    largest: float = math.nan
    quantiles: tuple[float, ...] = ()
    frequent: tuple[tuple[str, int], ...] = ()
    count_error: int = 0


@dataclass(slots=True)
class ColumnSketches:
    """Sketches of one column.

    Attributes:
        missing: rows without a value.
        distinct: sketch of the different values that are there.
        frequent: the most frequent ones.
        moments: moments of numbers, of times in seconds since 1970, of lengths of texts.
        quantiles: quantiles of the same.
    """

    missing: int = 0
    distinct: HyperLogLog = field(default_factory=lambda: HyperLogLog(12))
    frequent: FrequentTexts = field(default_factory=FrequentTexts)
    moments: Moments = field(default_factory=Moments)
    quantiles: KllQuantiles = field(default_factory=lambda: KllQuantiles(whole=_WHOLE))


@dataclass(slots=True)
class TableSketches:
    """Sketches of all columns, and of whole rows.

    Attributes:
        columns: columns in the order of the table.
        rows: rows seen.
        distinct: sketch of the different whole rows.
    """

    columns: list[ColumnSketches]
    rows: int = 0
    distinct: HyperLogLog = field(default_factory=HyperLogLog)


@dataclass(frozen=True, slots=True)
class TableProfile:
    """All columns, and the rows.

    Attributes:
        rows: their number.
        distinct_rows: estimated number of distinct ones.
        columns: columns in the order of the table.
        sketches: what the figures come from.
    """

    rows: int
    distinct_rows: float
    columns: tuple[ColumnProfile, ...]
    sketches: TableSketches = field(repr=False, compare=False)

    def problems(self) -> list[str]:
        """Return what a reader should know before the table is used, in words."""
        found = [text for item in self.columns if (text := _problem(item, self.rows))]
        error = 1.04 / math.sqrt(1 << 14)
        if self.rows and self.distinct_rows < self.rows * (1 - 4 * error):
            share = 1 - self.distinct_rows / self.rows
            found.append(f"about {share:.0%} of the rows are there twice or more")
        return found


def _problem(item: ColumnProfile, rows: int) -> str:
    """Return what is wrong with a column, empty for nothing."""
    if not rows:
        return ""
    if item.missing == rows:
        return f"{item.name}: all values are missing"
    if item.distinct < 1.5 and not item.missing:
        return f"{item.name}: one value throughout"
    if item.missing > rows / 2:
        return f"{item.name}: {item.missing / rows:.0%} of the values are missing"
    return ""


class ProfileFold:
    """A `Fold` that makes a `TableProfile`."""

    name = "profile"

    def init(self, schema: "pa.Schema") -> TableSketches:
        """Return the state before any row."""
        self._schema = schema
        return TableSketches([ColumnSketches() for _ in schema])

    def update(self, state: TableSketches, batch: "pa.RecordBatch") -> None:
        """Take rows in."""
        columns = columns_of(batch)
        for place, column in enumerate(state.columns):
            _take(column, columns, place)
        state.rows += len(batch)
        state.distinct.update(columns.row_hashes())

    def merge(self, state: TableSketches, later: TableSketches) -> None:
        """Take in the state of later rows."""
        for column, other in zip(state.columns, later.columns, strict=True):
            column.missing += other.missing
            column.distinct.merge(other.distinct)
            column.frequent.merge(other.frequent)
            column.moments.merge(other.moments)
            column.quantiles.merge(other.quantiles)
        state.rows += later.rows
        state.distinct.merge(later.distinct)

    def finish(self, state: TableSketches) -> TableProfile:
        """Return the profile."""
        columns = [
            _finished(column, item.name, item.type)
            for column, item in zip(state.columns, self._schema, strict=True)
        ]
        distinct = min(state.distinct.estimate(), state.rows)
        return TableProfile(state.rows, distinct, tuple(columns), state)

    def sections(self, state: TableSketches) -> dict[str, NDArray[Any]]:
        """Return a state as arrays by name."""
        found = {"rows": np.array([state.rows]), "distinct": state.distinct.registers}
        for place, column in enumerate(state.columns):
            parts = {
                "missing": {"count": np.array([column.missing])},
                "distinct": column.distinct.sections(),
                "frequent": column.frequent.sections(),
                "moments": column.moments.sections(),
                "quantiles": column.quantiles.sections(),
            }
            for part, arrays in parts.items():
                found |= {f"{place}.{part}.{name}": item for name, item in arrays.items()}
        return found

    def of(self, schema: "pa.Schema", sections: dict[str, NDArray[Any]]) -> TableSketches:
        """Return the state of such arrays."""
        self._schema = schema

        # One look at each name: tables of hundreds of columns have thousands of them.
        parts: dict[tuple[str, str], dict[str, NDArray[Any]]] = defaultdict(dict)
        for key, values in sections.items():
            place, is_column, rest = key.partition(".")
            if is_column:
                kind, _, name = rest.partition(".")
                parts[place, kind][name] = values
        columns = [
            ColumnSketches(
                int(parts[place, "missing"]["count"][0]),
                HyperLogLog.of(parts[place, "distinct"]),
                FrequentTexts.of(parts[place, "frequent"]),
                Moments.of(parts[place, "moments"]),
                KllQuantiles.of(parts[place, "quantiles"]),
            )
            for place in map(str, range(len(schema)))
        ]
        distinct = HyperLogLog.of({"registers": sections["distinct"]})
        return TableSketches(columns, int(sections["rows"][0]), distinct)


def _take(state: ColumnSketches, columns: BatchColumns, place: int) -> None:
    """Feed a column's sketches."""
    values, hashes = columns.batch.column(place), columns.hashes(place)
    state.missing += values.null_count
    state.distinct.update(hashes)
    state.frequent.update(values, hashes)
    if has_numbers(values.type):
        numbers = columns.numbers(place)
        state.moments.update(numbers)
        state.quantiles.update(numbers)


def _finished(column: ColumnSketches, name: str, kind: "pa.DataType") -> ColumnProfile:
    """Return a column's profile."""
    is_length = is_text(kind)
    has_any = column.moments.count > 0 and not is_length
    quantiles = column.quantiles.quantile(_LEVELS).tolist() if has_any else []
    return ColumnProfile(
        name=name,
        type=str(kind),
        missing=column.missing,
        distinct=column.distinct.estimate(),
        distinct_error=column.distinct.standard_error,
        mean=column.moments.mean,
        std=column.moments.std,
        skewness=column.moments.skewness,
        least=math.nan if is_length else column.quantiles.least,
        largest=math.nan if is_length else column.quantiles.largest,
        quantiles=tuple(quantiles),
        frequent=tuple(column.frequent.counts(_SHOWN)),
        count_error=column.frequent.error,
    )

"""Some values of each column, chosen alike in all tables, whatever the column is called."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.sketch import HyperLogLog, KllQuantiles
from steelyard.data.sketch.hashing import NULL_HASH
from steelyard.data.table.columns import columns_of, is_number, is_text

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ValueSketch", "ValueSketchFold", "containment"]

_KEPT = 1024


@dataclass(slots=True)
class ValueSketch:
    """What is kept of a column.

    Attributes:
        kind: "number", "text" or the Arrow type of others: values of two kinds are not compared.
        rows: rows with a value.
        missing: rows without one.
        hashes: smallest hashes of the different values, ascending, 1,024 at most.
        distinct: sketch of how many there are.
        quantiles: of numbers.
    """

    kind: str
    rows: int = 0
    missing: int = 0
    hashes: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    distinct: HyperLogLog = field(default_factory=lambda: HyperLogLog(12))
    quantiles: KllQuantiles = field(default_factory=KllQuantiles)

    @property
    def num_distinct(self) -> float:
        """Estimated different values; exact of fewer than are kept."""
        return len(self.hashes) if len(self.hashes) < _KEPT else self.distinct.estimate()

    @property
    def is_unique(self) -> bool:
        """Whether values differ in all rows, as far as sketches can tell."""
        error = 0.0 if len(self.hashes) < _KEPT else 3 * self.distinct.standard_error
        return self.rows > 0 and self.num_distinct >= (1 - error) * self.rows


def containment(inner: ValueSketch, outer: ValueSketch) -> tuple[float, int]:
    """Return which share of the different values of a column another one has.

    Both keep the smallest hashes of their values: up to the last hash that is known of both, all
    values of either are known.

    Args:
        inner: the column whose values are looked for.
        outer: the other.

    Returns:
        The share, NaN where none can be told, and of how many values it was told.

    Source: coordinated bottom-k samples (Cohen & Kaplan 2007).
    """
    last = np.uint64(2**64 - 1)
    for own in (inner, outer):
        if len(own.hashes) == _KEPT:
            last = min(last, own.hashes[-1])
    known = inner.hashes[inner.hashes <= last]
    if inner.kind != outer.kind or not len(known):
        return float("nan"), 0
    return float(np.isin(known, outer.hashes).mean()), len(known)


@dataclass(frozen=True, slots=True)
class ValueSketchFold:
    """A `Fold` of `ValueSketch` by column."""

    @property
    def name(self) -> str:
        """What it is called in results."""
        return "values"

    def init(self, schema: "pa.Schema") -> dict[str, ValueSketch]:
        """Return the state before any row."""
        return {item.name: ValueSketch(_kind(item.type)) for item in schema}

    def update(self, state: dict[str, ValueSketch], batch: "pa.RecordBatch") -> None:
        """Take rows in."""
        columns = columns_of(batch)
        for name, own in state.items():
            place = batch.schema.get_field_index(name)
            hashes = columns.hashes(place)
            own.missing += batch.column(place).null_count
            own.rows += len(batch) - batch.column(place).null_count
            if batch.column(place).null_count:
                hashes = hashes[hashes != NULL_HASH]
            own.distinct.update(hashes)
            if own.kind == "number":
                own.quantiles.update(columns.numbers(place))
            if len(own.hashes) == _KEPT:
                hashes = hashes[hashes < own.hashes[-1]]
            own.hashes = np.union1d(own.hashes, hashes)[:_KEPT]

    def merge(self, state: dict[str, ValueSketch], later: dict[str, ValueSketch]) -> None:
        """Take in the state of rows that come later."""
        for name, own in state.items():
            other = later[name]
            own.rows += other.rows
            own.missing += other.missing
            own.hashes = np.union1d(own.hashes, other.hashes)[:_KEPT]
            own.distinct.merge(other.distinct)
            own.quantiles.merge(other.quantiles)

    def finish(self, state: dict[str, ValueSketch]) -> dict[str, ValueSketch]:
        """Return the sketches by column."""
        return state

    def sections(self, state: dict[str, ValueSketch]) -> dict[str, NDArray[Any]]:
        """Return a state as arrays by name."""
        found: dict[str, NDArray[Any]] = {}
        for place, own in enumerate(state.values()):
            found[f"{place}.rows"] = np.array([own.rows, own.missing])
            found[f"{place}.hashes"] = own.hashes
            found[f"{place}.registers"] = own.distinct.registers
            parts = own.quantiles.sections().items()
            found |= {f"{place}.quantiles.{name}": values for name, values in parts}
        return found

    def of(self, schema: "pa.Schema", sections: dict[str, NDArray[Any]]) -> dict[str, ValueSketch]:
        """Return the state of such arrays."""
        own: list[dict[str, NDArray[Any]]] = [{} for _ in schema]
        for key, values in sections.items():
            place, _, name = key.partition(".")
            own[int(place)][name] = values
        found = {}
        for item, parts in zip(schema, own, strict=True):
            kept = {
                name.removeprefix("quantiles."): values
                for name, values in parts.items()
                if name.startswith("quantiles.")
            }
            rows, missing = parts["rows"].tolist()
            found[item.name] = ValueSketch(
                kind=_kind(item.type),
                rows=rows,
                missing=missing,
                hashes=np.array(parts["hashes"]),
                distinct=HyperLogLog.of({"registers": parts["registers"]}),
                quantiles=KllQuantiles.of(kept),
            )
        return found


def _kind(type: "pa.DataType") -> str:
    """Return what a column can be compared by."""
    if is_text(type):
        return "text"
    return "number" if is_number(type) else str(type)

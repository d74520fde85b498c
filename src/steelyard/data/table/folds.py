"""Folds of single sketches: rows, moments, quantiles, distinct and frequent values, and more."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.data.sketch import CountMin, HyperLogLog, KllQuantiles, Moments
from steelyard.data.table.columns import BatchColumns, columns_of, has_numbers
from steelyard.data.table.frequent_texts import FrequentTexts
from steelyard.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ColumnsFold",
    "HistogramCounts",
    "count_min",
    "distinct",
    "frequent",
    "histogram",
    "moments",
    "quantiles",
]


class _Sketch(Protocol):
    """What a column's state can do."""

    def merge(self, other: Any) -> None: ...

    def sections(self) -> dict[str, NDArray[Any]]: ...


@dataclass(frozen=True, slots=True)
class ColumnsFold:
    """A `Fold` that keeps one sketch for each of some columns; its result has them by name.

    Attributes:
        kind: what is computed, with its settings.
        columns: names; empty for all that can.
        make: returns a sketch before any value.
        load: returns the sketch of arrays.
        feed: gives a sketch a column of a batch, by its place.
        needs_numbers: whether only columns that can be turned into numbers count.
    """

    kind: str
    columns: tuple[str, ...]
    make: Callable[[], Any]
    load: Callable[[dict[str, NDArray[Any]]], Any]
    feed: Callable[[Any, BatchColumns, int], None]
    needs_numbers: bool = False

    @property
    def name(self) -> str:
        """What it is called in results."""
        return f"{self.kind} of {', '.join(self.columns)}" if self.columns else self.kind

    def init(self, schema: "pa.Schema") -> dict[str, _Sketch]:
        """Return the state before any row."""
        return {name: self.make() for name in self._names(schema)}

    def _names(self, schema: "pa.Schema") -> list[str]:
        if missing := [name for name in self.columns if name not in schema.names]:
            raise ConfigError(
                f"{self.kind}: no column {missing[0]!r}",
                hint=f"columns are {', '.join(schema.names)}",
            )
        fits = {item.name: not self.needs_numbers or has_numbers(item.type) for item in schema}
        if wrong := [name for name in self.columns if not fits[name]]:
            raise ConfigError(
                f"{self.kind}: column {wrong[0]!r} is {schema.field(wrong[0]).type}, which has no "
                "numbers",
                hint="give columns of numbers, times or text",
            )
        return list(self.columns) or [name for name in schema.names if fits[name]]

    def update(self, state: dict[str, _Sketch], batch: "pa.RecordBatch") -> None:
        """Take rows in."""
        columns = columns_of(batch)
        for name, sketch in state.items():
            self.feed(sketch, columns, batch.schema.get_field_index(name))

    def merge(self, state: dict[str, _Sketch], later: dict[str, _Sketch]) -> None:
        """Take in the state of rows that come later."""
        for name, sketch in state.items():
            sketch.merge(later[name])

    def finish(self, state: dict[str, _Sketch]) -> Mapping[str, Any]:
        """Return the sketches by column."""
        return state

    def sections(self, state: dict[str, _Sketch]) -> dict[str, NDArray[Any]]:
        """Return a state as arrays by name."""
        return {
            f"{place}.{part}": values
            for place, sketch in enumerate(state.values())
            for part, values in sketch.sections().items()
        }

    def of(self, schema: "pa.Schema", sections: dict[str, NDArray[Any]]) -> dict[str, _Sketch]:
        """Return the state of such arrays."""
        names = self._names(schema)
        own: list[dict[str, NDArray[Any]]] = [{} for _ in names]
        for key, values in sections.items():
            place, _, part = key.partition(".")
            own[int(place)][part] = values
        return {name: self.load(arrays) for name, arrays in zip(names, own, strict=True)}


def _feed_hashes(sketch: Any, columns: BatchColumns, place: int) -> None:
    sketch.update(columns.hashes(place))


def _feed_numbers(sketch: Any, columns: BatchColumns, place: int) -> None:
    sketch.update(columns.numbers(place))


def _feed_values(sketch: FrequentTexts, columns: BatchColumns, place: int) -> None:
    sketch.update(columns.batch.column(place), columns.hashes(place))


def moments(*columns: str) -> ColumnsFold:
    """Return a Fold of mean, variance, skewness and kurtosis.

    Args:
        *columns: names; none for all that are numbers, times (seconds) or text (its length).

    Returns:
        The fold; its result has `Moments` by column.
    """
    return ColumnsFold("moments", columns, Moments, Moments.of, _feed_numbers, True)


def quantiles(*columns: str, k: int = 200, whole: int = 0) -> ColumnsFold:
    """Return a Fold of quantiles and ranks.

    Args:
        *columns: names; none for all that are numbers, times (seconds) or text (its length).
        k: capacity of the highest level, 64 to 4096.
        whole: values of a part that are taken before it is sampled; 0 never samples.

    Returns:
        The fold; its result has `KllQuantiles` by column.
    """
    make = partial(KllQuantiles, k, whole=whole)
    kind = f"quantiles (k = {k}, whole = {whole})"
    return ColumnsFold(kind, columns, make, KllQuantiles.of, _feed_numbers, True)


def distinct(*columns: str, precision: int = 12) -> ColumnsFold:
    """Return a Fold of the number of distinct values.

    Args:
        *columns: names; none for all.
        precision: logarithm of the number of registers to base 2, 4 to 18.

    Returns:
        The fold; its result has `HyperLogLog` by column.
    """
    kind = f"distinct (precision {precision})"
    make = partial(HyperLogLog, precision)
    return ColumnsFold(kind, columns, make, HyperLogLog.of, _feed_hashes)


def frequent(*columns: str, size: int = 256) -> ColumnsFold:
    """Return a Fold of the most frequent values.

    Args:
        *columns: names; none for all.
        size: most counters, a power of two from 16 to 65,536.

    Returns:
        The fold; its result has `FrequentTexts` by column.
    """
    make = partial(FrequentTexts, size)
    return ColumnsFold(f"frequent ({size})", columns, make, FrequentTexts.of, _feed_values)


def count_min(*columns: str, width: int = 2048, depth: int = 4) -> ColumnsFold:
    """Return a Fold of how often any value comes.

    Args:
        *columns: names; none for all.
        width: cells of a line, a power of two.
        depth: lines.

    Returns:
        The fold; its result has `CountMin` by column.
    """
    kind = f"count-min ({depth} x {width})"
    make = partial(CountMin, width, depth)
    return ColumnsFold(kind, columns, make, CountMin.of, _feed_hashes)


class HistogramCounts:
    """How many values lie between edges.

    Attributes:
        edges: ascending, [bins + 1].
        counts: values from each edge, with it, to the next, without it; the last bin has its upper
            edge too; [bins].
        below: values under the first edge.
        above: values over the last edge.
        missing: rows without a number.
    """

    def __init__(self, edges: Sequence[float]) -> None:
        """Begin without values.

        Args:
            edges: ascending, two or more.

        Raises:
            ConfigError: they are not.
        """
        self.edges = np.asarray(edges, float)
        if len(self.edges) < 2 or not (np.diff(self.edges) > 0).all():
            raise ConfigError(f"edges {list(edges)} do not ascend", hint="give two or more")
        self._counts = np.zeros(len(self.edges) + 2, np.int64)

    def update(self, values: ArrayLike) -> None:
        """Add values, [rows]."""
        given = np.asarray(values, float)
        places = np.searchsorted(self.edges, given, side="right")
        places[given == self.edges[-1]] -= 1
        # NumPy sorts NaN behind all numbers.
        places[np.isnan(given)] = len(self.edges) + 1
        self._counts += np.bincount(places, minlength=len(self._counts))

    @property
    def counts(self) -> NDArray[np.int64]:
        """Values between the edges."""
        return self._counts[1:-2]

    @property
    def below(self) -> int:
        """Values under the first edge."""
        return int(self._counts[0])

    @property
    def above(self) -> int:
        """Values over the last edge."""
        return int(self._counts[-2])

    @property
    def missing(self) -> int:
        """Rows without a number."""
        return int(self._counts[-1])

    def merge(self, other: "HistogramCounts") -> None:
        """Take in another one with the same edges."""
        self._counts += other._counts

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the state as arrays by name."""
        return {"edges": self.edges, "counts": self._counts}

    @classmethod
    def of(cls, sections: dict[str, NDArray[Any]]) -> "HistogramCounts":
        """Return the histogram of a state."""
        made = cls(sections["edges"].tolist())
        made._counts = np.array(sections["counts"])
        return made


def histogram(*columns: str, edges: Sequence[float]) -> ColumnsFold:
    """Return a Fold of counts between edges.

    Args:
        *columns: names; none for all that are numbers, times (seconds) or text (its length).
        edges: ascending, two or more.

    Returns:
        The fold; its result has `HistogramCounts` by column.
    """
    given = tuple(float(edge) for edge in edges)
    kind = f"histogram ({', '.join(f'{edge:g}' for edge in given)})"
    return ColumnsFold(
        kind, columns, partial(HistogramCounts, given), HistogramCounts.of, _feed_numbers, True
    )

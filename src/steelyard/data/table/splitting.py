"""Splits of a table that its rows decide: by the hash of a key, evenly in classes, or by time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.sketch import KllQuantiles
from steelyard.data.sketch.hashing import NULL_HASH
from steelyard.data.table.columns import columns_of, has_numbers, is_text
from steelyard.data.table.combining import check_shares, key_places
from steelyard.data.table.folds import quantiles
from steelyard.errors import CapacityError, ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table.table import DataTable

__all__ = ["StratumFold", "TableSplit", "split_stratified", "split_time"]

_MOST_STRATA = 4096
_SKETCH_SIZE = 4096


@dataclass(frozen=True, kw_only=True)
class TableSplit:
    """Tables of the rows of each share.

    Attributes:
        tables: table by name.
        warnings: what is odd, in words.
    """

    tables: "Mapping[str, DataTable]"
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StratumFold:
    """A `Fold` of where the hashes of keys lie, class by class.

    Attributes:
        column: column of classes.
        key: columns of the key.
        seed: changes where keys lie.
    """

    column: str
    key: tuple[str, ...]
    seed: int = 0

    @property
    def name(self) -> str:
        """What it is called in results."""
        return f"places of {self.key} by {self.column} ({self.seed})"

    def init(self, schema: "pa.Schema") -> dict[int, KllQuantiles]:
        """Return the state before any row."""
        return {}

    def update(self, state: dict[int, KllQuantiles], batch: "pa.RecordBatch") -> None:
        """Take rows in."""
        places = key_places(batch, self.key, self.seed)
        classes = columns_of(batch).hashes(batch.schema.get_field_index(self.column))
        known, at = np.unique(classes, return_inverse=True)
        order = np.argsort(at, kind="stable")
        ends = np.cumsum(np.bincount(at))
        for number, own in zip(known.tolist(), np.split(places[order], ends[:-1]), strict=True):
            state.setdefault(number, KllQuantiles(_SKETCH_SIZE)).update(own)
        if len(state) > _MOST_STRATA:
            raise CapacityError(
                f"{self.column!r} has more than {_MOST_STRATA:,} classes",
                hint="stratify by a column of few, or bin it before",
            )

    def merge(self, state: dict[int, KllQuantiles], later: dict[int, KllQuantiles]) -> None:
        """Take in the state of rows that come later."""
        for number, own in later.items():
            if number in state:
                state[number].merge(own)
            else:
                # A sketch of its own: the later state stays as it is.
                state[number] = KllQuantiles.of(own.sections())

    def finish(self, state: dict[int, KllQuantiles]) -> dict[int, KllQuantiles]:
        """Return the sketches by the hash of the class, ascending."""
        return dict(sorted(state.items()))

    def sections(self, state: dict[int, KllQuantiles]) -> dict[str, NDArray[Any]]:
        """Return a state as arrays by name."""
        return {
            f"{number}.{part}": values
            for number, own in sorted(state.items())
            for part, values in own.sections().items()
        }

    def of(self, schema: "pa.Schema", sections: dict[str, NDArray[Any]]) -> dict[int, KllQuantiles]:
        """Return the state of such arrays."""
        own: dict[int, dict[str, NDArray[Any]]] = {}
        for key, values in sections.items():
            number, _, part = key.partition(".")
            own.setdefault(int(number), {})[part] = values
        return {number: KllQuantiles.of(parts) for number, parts in own.items()}


def split_stratified(
    table: "DataTable",
    shares: Mapping[str, float],
    *,
    stratify: str,
    by: Sequence[str] = (),
    seed: int = 0,
    memory: str | float | None = None,
) -> TableSplit:
    """Split a table so that each share has its share of every class.

    One pass finds, class by class, below which hash of the key a share of its rows lies: exactly
    for classes of up to some thousand keys, within .1 % of the rows of larger ones. Where a row
    goes then depends on its key and class alone. Rows of one key and of two classes may part.

    Args:
        table: the table.
        shares: share by name, which add up to at most 1.
        stratify: column of classes, 4,096 at most; a missing class is one.
        by: columns of the key; empty for all columns, so that equal rows stay together.
        seed: changes which keys go where.
        memory: most bytes of the pass.

    Returns:
        The tables; a class of fewer than two rows is warned of.

    Raises:
        ConfigError: shares that cannot be, or no such column.
        CapacityError: there are too many classes.
    """
    check_shares(shares)
    key = _key(table, by, stratify)
    fold = StratumFold(stratify, key, seed)
    found: dict[int, KllQuantiles] = table.fold(fold, memory=memory).results[fold.name]
    classes = np.array(list(found), np.uint64)
    levels = np.concatenate([[0.0], np.cumsum(list(shares.values()))])
    cuts = np.array([_cuts(own, levels) for own in found.values()]).reshape(-1, len(levels))
    tables = {}
    for at, name in enumerate(shares):
        step = partial(
            _kept_of_classes,
            key=(*key, stratify),
            seed=seed,
            classes=classes,
            bounds=cuts[:, at : at + 2],
        )
        tables[name] = table.map_batches(step)
    few = sum(own.count < 2 for own in found.values())
    odd = [f"{few} classes of {stratify!r} have fewer than two rows"] if few else []
    if int(NULL_HASH) in found:
        odd.append(f"{found[int(NULL_HASH)].count:,} rows have no {stratify!r}: they are a class")
    return TableSplit(tables=tables, warnings=tuple(odd))


def _key(table: "DataTable", by: Sequence[str], *others: str) -> tuple[str, ...]:
    """Return the columns of a key, all where none is named."""
    if missing := [name for name in (*by, *others) if name not in table.schema.names]:
        names = ", ".join(table.schema.names)
        raise ConfigError(f"no column {missing[0]!r}", hint=f"columns are {names}")
    return tuple(by) or tuple(table.schema.names)


def _cuts(sketch: KllQuantiles, levels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return between which places shares of a class lie: half way between two of its rows."""
    size = sketch.count
    ranks = np.rint(levels * size) / size
    below = sketch.quantile(np.clip(ranks, 0, 1))
    above = sketch.quantile(np.clip(ranks + 1 / size, 0, 1))
    cuts = (below + above) / 2
    cuts[ranks <= 0] = 0.0
    cuts[ranks >= 1] = 2.0
    return cuts


def _kept_of_classes(
    batch: "pa.RecordBatch",
    *,
    key: tuple[str, ...],
    seed: int,
    classes: NDArray[np.uint64],
    bounds: NDArray[np.float64],
) -> "pa.RecordBatch":
    """Return the rows whose place lies between the bounds of their class."""
    import pyarrow as pa

    *parts, stratify = key
    places = key_places(batch, parts, seed)
    own = columns_of(batch).hashes(batch.schema.get_field_index(stratify))
    at = np.minimum(np.searchsorted(classes, own), len(classes) - 1)
    low, high = bounds[at].T
    return batch.filter(pa.array((places >= low) & (places < high)))


def split_time(
    table: "DataTable",
    shares: Mapping[str, float],
    *,
    time: str,
    memory: str | float | None = None,
) -> TableSplit:
    """Split a table by time: the first share holds the earliest rows, and so on.

    One pass finds the times between them, within .3 % of the rows. Rows of one time stay together.

    Args:
        table: the table.
        shares: share by name, earliest first, which add up to at most 1.
        time: column of times, days or numbers.
        memory: most bytes of the pass.

    Returns:
        The tables; rows without a time are in none of them, and warned of.

    Raises:
        ConfigError: shares that cannot be, or no such column.
    """
    check_shares(shares)
    _key(table, (), time)
    kind = table.schema.field(time).type
    if not has_numbers(kind) or is_text(kind):
        raise ConfigError(f"column {time!r} is {kind}, which has no order in time")
    fold = quantiles(time, k=_SKETCH_SIZE)
    folded = table.fold(fold, memory=memory)
    sketch: KllQuantiles = folded.results[fold.name][time]
    levels = np.concatenate([[0.0], np.cumsum(list(shares.values()))])
    cuts = sketch.quantile(np.minimum(levels, 1.0))
    cuts[0] = -np.inf
    tables = {
        name: table.map_batches(
            partial(_kept_of_times, key=(time,), low=float(cuts[at]), high=float(cuts[at + 1]))
        )
        for at, name in enumerate(shares)
    }
    missing = folded.rows - sketch.count
    odd = (f"{missing:,} rows have no {time!r}, and are in no share",) if missing else ()
    return TableSplit(tables=tables, warnings=odd)


def _kept_of_times(
    batch: "pa.RecordBatch", *, key: tuple[str, ...], low: float, high: float
) -> "pa.RecordBatch":
    """Return the rows after one time, up to and with another."""
    import pyarrow as pa

    values = columns_of(batch).numbers(batch.schema.get_field_index(key[0]))
    return batch.filter(pa.array((values > low) & (values <= high)))

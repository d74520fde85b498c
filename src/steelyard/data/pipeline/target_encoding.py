"""Categories as the mean of the target over their rows, without a look at the row's own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from steelyard.data.pipeline.encoding import category_places
from steelyard.data.pipeline.step import ColumnStep, as_array, with_columns, with_fields
from steelyard.data.sketch.hashing import hash_texts, mix64
from steelyard.data.table.columns import columns_of, is_text
from steelyard.data.table.fitting import ROW
from steelyard.errors import CapacityError, ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table.fold import Fold

__all__ = ["GroupSums", "GroupSumsFold", "TargetColumns", "TargetEncode"]

_MOST = 1 << 20
_SALT = np.uint64(0x94D049BB133111EB)


def fold_numbers(batch: "pa.RecordBatch", by: Sequence[str], num_folds: int) -> NDArray[np.int64]:
    """Return which of some folds each row is in, by the hash of its key [rows]."""
    columns = columns_of(batch)
    whole = np.full(len(batch), _SALT)
    for name in by:
        whole = mix64(whole + columns.hashes(batch.schema.get_field_index(name)))
    return (mix64(whole) % np.uint64(num_folds)).astype(np.int64)


def target_numbers(batch: "pa.RecordBatch", target: str, positive: str) -> NDArray[np.float64]:
    """Return the target as numbers: of a text, 1 for one class and 0 for others [rows]."""
    place = batch.schema.get_field_index(target)
    columns = columns_of(batch)
    if not is_text(batch.schema.field(place).type):
        return columns.numbers(place)
    is_it = (columns.hashes(place) == hash_texts([positive])[0]).astype(float)
    is_it[np.asarray(batch.column(place).is_null())] = np.nan
    return is_it


@dataclass(slots=True)
class GroupSums:
    """Sums of a target over the categories of a column, fold by fold.

    Attributes:
        hashes: categories, ascending [C].
        sums: sum of the target and number of rows [C, folds, 2].
    """

    hashes: NDArray[np.uint64]
    sums: NDArray[np.float64]

    def add(
        self, hashes: NDArray[np.uint64], folds: NDArray[np.int64], values: NDArray[np.float64]
    ) -> None:
        """Add rows by their categories, folds and targets [rows]."""
        at = category_places(hashes, self.hashes)
        # Most categories are known after the first batches: rows need not be sorted again.
        if len(fresh := np.unique(hashes[at == len(self.hashes)])):
            self.take(fresh, np.zeros((len(fresh), *self.sums.shape[1:])))
            at = category_places(hashes, self.hashes)
        cells = at * self.sums.shape[1] + folds
        flat = self.sums.reshape(-1, 2)
        known, places = np.arange(len(flat)), cells
        if len(flat) > len(cells):
            known, places = np.unique(cells, return_inverse=True)
        flat[known, 0] += np.bincount(places, values, len(known))
        flat[known, 1] += np.bincount(places, minlength=len(known))

    def take(self, hashes: NDArray[np.uint64], sums: NDArray[np.float64]) -> None:
        """Add sums of other rows."""
        every = np.union1d(self.hashes, hashes)
        whole = np.zeros((len(every), *self.sums.shape[1:]))
        whole[np.searchsorted(every, self.hashes)] = self.sums
        # Categories stand once in either, so no addition is lost.
        whole[np.searchsorted(every, hashes)] += sums
        self.hashes, self.sums = every, whole


@dataclass(frozen=True, slots=True)
class GroupSumsFold:
    """A `Fold` of a target's sums over the categories of columns; exact of a million categories.

    Attributes:
        columns: the columns.
        target: the target.
        positive: class that counts as 1 of a target of texts.
        by: columns of the key that says which fold a row is in.
        num_folds: folds.
    """

    columns: tuple[str, ...]
    target: str
    positive: str
    by: tuple[str, ...]
    num_folds: int

    @property
    def name(self) -> str:
        """What it is called in results."""
        parts = (self.columns, self.target, self.positive, self.by, self.num_folds)
        return f"sums of groups {parts}"

    def init(self, schema: "pa.Schema") -> dict[str, GroupSums]:
        """Return the state before any row."""
        return {name: self._empty() for name in self.columns}

    def _empty(self) -> GroupSums:
        return GroupSums(np.zeros(0, np.uint64), np.zeros((0, self.num_folds, 2)))

    def update(self, state: dict[str, GroupSums], batch: "pa.RecordBatch") -> None:
        """Take rows in; those without a target are left out."""
        values = target_numbers(batch, self.target, self.positive)
        rows = np.flatnonzero(np.isfinite(values))
        folds = fold_numbers(batch, self.by, self.num_folds)[rows]
        columns = columns_of(batch)
        for name, own in state.items():
            hashes = columns.hashes(batch.schema.get_field_index(name))[rows]
            own.add(hashes, folds, values[rows])
            if len(own.hashes) > _MOST:
                raise CapacityError(
                    f"column {name!r} has more than {_MOST:,} categories",
                    hint="hash it (HashFeatures), or leave it out",
                )

    def merge(self, state: dict[str, GroupSums], later: dict[str, GroupSums]) -> None:
        """Take in the state of rows that come later."""
        for name, own in state.items():
            own.take(later[name].hashes, later[name].sums)

    def finish(self, state: dict[str, GroupSums]) -> dict[str, GroupSums]:
        """Return the sums by column."""
        return state

    def sections(self, state: dict[str, GroupSums]) -> dict[str, NDArray[Any]]:
        """Return a state as arrays by name."""
        return {
            f"{place}.{part}": getattr(own, part)
            for place, own in enumerate(state.values())
            for part in ("hashes", "sums")
        }

    def of(self, schema: "pa.Schema", sections: dict[str, NDArray[Any]]) -> dict[str, GroupSums]:
        """Return the state of such arrays."""
        return {
            name: GroupSums(np.array(sections[f"{at}.hashes"]), np.array(sections[f"{at}.sums"]))
            for at, name in enumerate(self.columns)
        }


@dataclass(frozen=True, eq=False, kw_only=True)
class TargetColumns:
    """Smoothed means of a target in the place of categories.

    Attributes:
        columns: the columns.
        others: columns of the key, which training rows have.
        by: the same.
        hashes: categories, ascending within a column [all categories].
        ends: where the categories of each column end [columns].
        sums: sum of the target and rows of each category and fold [all categories, folds, 2].
        totals: the same of all rows [folds, 2].
        weight: rows that the mean of all counts for.
        warnings: what is odd about the columns.
    """

    columns: tuple[str, ...]
    others: tuple[str, ...]
    by: tuple[str, ...]
    hashes: NDArray[np.uint64]
    ends: NDArray[np.int64]
    sums: NDArray[np.float64]
    totals: NDArray[np.float64]
    weight: float
    warnings: tuple[str, ...] = ()

    def schema(self, schema: "pa.Schema") -> "pa.Schema":
        """Return the columns after the step: floats."""
        import pyarrow as pa

        return with_fields(schema, dict.fromkeys(self.columns, pa.float64()))

    def transform(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return the batch after the step; a category that was not seen is the mean of all."""
        return self._encoded(batch, None)

    def transform_training(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return training rows after the step: each without what its own fold told."""
        return self._encoded(batch, fold_numbers(batch, self.by, len(self.totals)))

    def _encoded(
        self, batch: "pa.RecordBatch", folds: NDArray[np.int64] | None
    ) -> "pa.RecordBatch":
        """Encode with all folds, or without each row's own."""
        columns = columns_of(batch)
        totals = self.totals.sum(axis=0)
        whole = totals if folds is None else totals - self.totals[folds]
        # Without other rows there is no mean; half is the least that can be said of a share.
        prior = np.where(whole[..., 1] > 0, whole[..., 0] / np.maximum(whole[..., 1], 1), 0.5)
        changed, begin = {}, 0
        for name, end in zip(self.columns, self.ends.tolist(), strict=True):
            hashes = columns.hashes(batch.schema.get_field_index(name))
            at = category_places(hashes, self.hashes[begin:end])
            own = np.concatenate([self.sums[begin:end], np.zeros((1, *self.sums.shape[1:]))])
            sums = own.sum(axis=1)[at]
            if folds is not None:
                sums = sums - own[at, folds]
            changed[name] = as_array(
                (sums[:, 0] + self.weight * prior) / (sums[:, 1] + self.weight)
            )
            begin = end
        return with_columns(batch, changed)


@dataclass(frozen=True, kw_only=True)
class TargetEncode(ColumnStep):
    """Puts the smoothed mean of the target in the place of a category.

    The mean of n rows is (n mean + weight prior) / (n + weight), the prior being the mean of all
    rows. Training rows get the mean of the other folds, so that no row tells its own target. A
    missing value is a category.

    Attributes:
        columns: names; empty for all texts but the target.
        target: column of numbers, yes and no, or texts.
        positive: class that counts as 1 of a target of texts.
        by: columns whose equal values are in one fold, such as a customer; empty for each row by
            itself.
        num_folds: folds, 2 or more.
        weight: rows that the mean of all counts for.

    Source: Micci-Barreca 2001, "A preprocessing scheme for high-cardinality categorical
        attributes".
    """

    target: str = field(default="")
    positive: str = ""
    by: tuple[str, ...] = ()
    num_folds: int = 5
    weight: float = 20.0
    _adds: ClassVar[bool] = True
    wants: ClassVar[str] = "categories"

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            ConfigError: there is no target, fewer than two folds, or no weight.
        """
        if not self.target or self.target in self.columns:
            raise ConfigError("TargetEncode needs a target that is none of its columns")
        if self.num_folds < 2 or not self.weight > 0:
            raise ConfigError("TargetEncode needs two folds or more, and a weight above 0")

    def fits(self, kind: "pa.DataType") -> bool:
        """Return whether a column can have categories; others than texts have to be named."""
        return is_text(kind) or bool(self.columns)

    def resolved(self, schema: "pa.Schema") -> tuple[str, ...]:
        """Return its columns in a table; the target is none of them."""
        if self.target not in schema.names:
            raise ConfigError(f"TargetEncode: no column {self.target!r}, which is the target")
        if is_text(schema.field(self.target).type) and not self.positive:
            raise ConfigError(
                f"TargetEncode: {self.target!r} is text", hint="name the class that counts as 1"
            )
        found = super().resolved(schema)
        return tuple(name for name in found if name != self.target)

    @property
    def needs_rows(self) -> bool:
        """Whether rows are told apart by their numbers."""
        return not self.by

    @property
    def _key(self) -> tuple[str, ...]:
        """Columns that say which fold a row is in; never the target, which would be told."""
        return self.by or (ROW,)

    def reads(self, columns: Sequence[str], schema: "pa.Schema") -> tuple[str, ...]:
        """Return the columns whose values it needs."""
        return (*columns, self.target, *self.by)

    def folds(self, columns: Sequence[str]) -> "Sequence[Fold[Any]]":
        """Return the sums of the target."""
        given = (self.target, self.positive, self._key, self.num_folds)
        return (GroupSumsFold(tuple(columns), *given),)

    def fitted(
        self, columns: Sequence[str], schema: "pa.Schema", results: Mapping[str, Any]
    ) -> TargetColumns:
        """Return the means."""
        (fold,) = self.folds(columns)
        found = results[fold.name]
        sums = np.concatenate([found[name].sums for name in columns])
        if not len(sums):
            raise DataError(f"TargetEncode: no row has a {self.target!r}")
        sizes = [len(found[name].hashes) for name in columns]
        pairs = zip(columns, sizes, strict=True)
        return TargetColumns(
            columns=tuple(columns),
            others=self._key,
            by=self._key,
            hashes=np.concatenate([found[name].hashes for name in columns]),
            ends=np.cumsum(sizes),
            sums=sums,
            totals=sums[: sizes[0]].sum(axis=0),
            weight=self.weight,
            warnings=tuple(f"column {name} is constant" for name, size in pairs if size == 1),
        )

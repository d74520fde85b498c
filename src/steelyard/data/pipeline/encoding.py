"""Categories as numbers: a column for each, or codes in the order of their texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from steelyard.data.pipeline.step import ColumnStep, with_columns, with_fields
from steelyard.data.table.columns import columns_of, is_number, is_text
from steelyard.data.table.folds import frequent
from steelyard.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table.fold import Fold

__all__ = ["OneHot", "OneHotColumns", "Ordinal", "OrdinalColumns", "category_places"]

_OTHER = "(other)"


def category_places(hashes: NDArray[np.uint64], known: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the place of each hash among known ones.

    Args:
        hashes: of values [rows].
        known: ascending [K].

    Returns:
        Places, K where it is none of them [rows].
    """
    if not len(known):
        return np.zeros(len(hashes), np.int64)
    at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
    return np.where(known[at] == hashes, at, len(known))


@dataclass(frozen=True, kw_only=True)
class _CategoryStep(ColumnStep):
    """What steps on categories share.

    Attributes:
        columns: names; empty for all texts and columns of yes and no.
        most: most categories of a column that are kept, the most frequent ones.
    """

    most: int = 64
    _adds: ClassVar[bool] = True
    wants: ClassVar[str] = "categories: texts, whole numbers, yes and no"

    def __post_init__(self) -> None:
        """Refuse too few or too many categories.

        Raises:
            ConfigError: there are.
        """
        if not 1 <= self.most <= 32_768:
            raise ConfigError(f"{self.most} categories are kept, but it must be 1 to 32,768")

    def fits(self, kind: "pa.DataType") -> bool:
        """Return whether a column can have categories; numbers have to be named."""
        import pyarrow as pa

        is_named = bool(self.columns) and is_number(kind)
        return is_text(kind) or pa.types.is_boolean(kind) or is_named

    def folds(self, columns: Sequence[str]) -> "Sequence[Fold[Any]]":
        """Return the most frequent values."""
        size = 1 << max(2 * self.most - 1, 15).bit_length()
        return (frequent(*columns, size=min(size, 65_536)),)

    def _categories(
        self, columns: Sequence[str], results: Mapping[str, Any]
    ) -> tuple[list[list[tuple[str, int]]], list[str]]:
        """Return texts and hashes by column, in the order of the texts, and what is odd."""
        (fold,) = self.folds(columns)
        found, odd = [], []
        for name in columns:
            listed = results[fold.name][name].entries(self.most + 1)
            if len(listed) > self.most:
                odd.append(f"column {name} has more than {self.most} categories: the rest are one")
            if not listed:
                odd.append(f"column {name} has no values")
            found.append(_named(sorted(listed[: self.most])))
        return found, odd


def _named(entries: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Tell apart texts that are alike as far as they are kept."""
    seen: dict[str, int] = {}
    named = []
    for text, code in entries:
        seen[text] = seen.get(text, 0) + 1
        named.append((text if seen[text] == 1 else f"{text}~{seen[text]}", code))
    return named


@dataclass(frozen=True, eq=False, kw_only=True)
class OneHotColumns:
    """A column of 0 and 1 for each category, and one for values that are none of them.

    Attributes:
        columns: the columns that go.
        names: names of the categories of each.
        hashes: hashes of all categories, ascending within a column [all categories].
        order: place of the name of each hash within its column [all categories].
        warnings: what is odd about the columns.
    """

    columns: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]
    hashes: NDArray[np.uint64]
    order: NDArray[np.int64]
    warnings: tuple[str, ...] = ()

    def _made(self) -> list[str]:
        """Return the names of the new columns."""
        return [
            f"{column}={name}"
            for column, names in zip(self.columns, self.names, strict=True)
            for name in (*names, _OTHER)
        ]

    def schema(self, schema: "pa.Schema") -> "pa.Schema":
        """Return the columns after the step: others, then those of 0 and 1."""
        import pyarrow as pa

        return with_fields(schema, dict.fromkeys(self._made(), pa.int8()), self.columns)

    def transform(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return the batch after the step; a missing value is 0 in all of its columns."""
        import pyarrow as pa

        columns = columns_of(batch)
        made, begin = [], 0
        for column, names in zip(self.columns, self.names, strict=True):
            place, end = batch.schema.get_field_index(column), begin + len(names)
            at = category_places(columns.hashes(place), self.hashes[begin:end])
            at = np.append(self.order[begin:end], len(names))[at]
            at[np.asarray(batch.column(place).is_null())] = -1
            made += [pa.array((at == own).astype(np.int8)) for own in range(len(names) + 1)]
            begin = end
        return with_columns(batch, dict(zip(self._made(), made, strict=True)), self.columns)


@dataclass(frozen=True, kw_only=True)
class OneHot(_CategoryStep):
    """Puts a column of 0 and 1 for each category in the place of a column.

    Values that were not seen, and categories beyond the most frequent, are 1 in "NAME=(other)".

    Attributes:
        columns: names; empty for all texts and columns of yes and no.
        most: most categories of a column, the most frequent ones.
    """

    def fitted(
        self, columns: Sequence[str], schema: "pa.Schema", results: Mapping[str, Any]
    ) -> OneHotColumns:
        """Return the categories."""
        found, odd = self._categories(columns, results)
        hashes, order = _sorted(found)
        return OneHotColumns(
            columns=tuple(columns),
            names=tuple(tuple(text for text, _ in own) for own in found),
            hashes=hashes,
            order=order,
            warnings=tuple(odd),
        )


def _sorted(
    found: list[list[tuple[str, int]]],
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return hashes in order within each column, and the place of the name of each."""
    every = [np.array([code for _, code in own], np.uint64) for own in found]
    orders = [np.argsort(own) for own in every]
    sorts = [own[order] for own, order in zip(every, orders, strict=True)]
    return np.concatenate(sorts), np.concatenate(orders).astype(np.int64)


@dataclass(frozen=True, eq=False, kw_only=True)
class OrdinalColumns:
    """Codes of categories, from 0.

    Attributes:
        columns: the columns.
        sizes: categories of each [columns].
        hashes: hashes of all categories, ascending within a column [all categories].
        codes: code of each hash [all categories].
        warnings: what is odd about the columns.
    """

    columns: tuple[str, ...]
    sizes: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    codes: NDArray[np.int64]
    warnings: tuple[str, ...] = ()

    def schema(self, schema: "pa.Schema") -> "pa.Schema":
        """Return the columns after the step: whole numbers."""
        import pyarrow as pa

        return with_fields(schema, dict.fromkeys(self.columns, pa.int32()))

    def transform(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return the batch after the step; what is missing stays so."""
        import pyarrow as pa

        columns = columns_of(batch)
        changed, begin = {}, 0
        for name, size in zip(self.columns, self.sizes.tolist(), strict=True):
            place, end = batch.schema.get_field_index(name), begin + size
            at = category_places(columns.hashes(place), self.hashes[begin:end])
            codes = np.append(self.codes[begin:end], size)[at].astype(np.int32)
            missing = np.asarray(batch.column(place).is_null())
            changed[name] = pa.array(codes, mask=missing)
            begin = end
        return with_columns(batch, changed)


@dataclass(frozen=True, kw_only=True)
class Ordinal(_CategoryStep):
    """Puts the place of a category in the order of their texts in its place, from 0.

    Values that were not seen, and categories beyond the most frequent, share the code behind the
    last.

    Attributes:
        columns: names; empty for all texts and columns of yes and no.
        most: most categories of a column, the most frequent ones.
    """

    def fitted(
        self, columns: Sequence[str], schema: "pa.Schema", results: Mapping[str, Any]
    ) -> OrdinalColumns:
        """Return the codes."""
        found, odd = self._categories(columns, results)
        hashes, codes = _sorted(found)
        return OrdinalColumns(
            columns=tuple(columns),
            sizes=np.array([len(own) for own in found], np.int64),
            hashes=hashes,
            codes=codes,
            warnings=tuple(odd),
        )

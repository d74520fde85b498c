"""Any number of values in a fixed number of places: hashed features, and words by TF-IDF."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from steelyard.data.pipeline.step import ColumnStep, with_columns, with_fields
from steelyard.data.sketch.hashing import hash_texts, mix64
from steelyard.data.sketch.near_duplicates import word_hashes
from steelyard.data.table.columns import columns_of, is_number, is_text
from steelyard.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table.fold import Fold

__all__ = ["HashFeatures", "HashedColumns", "TfIdf", "WeighedWords", "WordRowsFold"]


def _sparse_fields(name: str) -> "dict[str, pa.DataType]":
    """Return the two columns of a sparse vector."""
    import pyarrow as pa

    return {f"{name}.places": pa.list_(pa.int32()), f"{name}.values": pa.list_(pa.float32())}


def _sparse(
    name: str, places: NDArray[Any], values: NDArray[Any], ends: NDArray[Any]
) -> "dict[str, pa.Array]":
    """Return the arrays of sparse vectors, the rows one after the other."""
    import pyarrow as pa

    begins = pa.array(np.concatenate([[0], ends]).astype(np.int32))
    kinds = ((f"{name}.places", places, pa.int32()), (f"{name}.values", values, pa.float32()))
    return {
        key: pa.ListArray.from_arrays(begins, pa.array(own).cast(kind)) for key, own, kind in kinds
    }


def _check_width(width: int) -> None:
    """Refuse widths that are no power of two."""
    if width & (width - 1) or not 16 <= width <= 1 << 24:
        raise ConfigError(f"{width} places, but it must be a power of two from 16 to 2^24")


@dataclass(frozen=True, eq=False, kw_only=True)
class HashedColumns:
    """Columns as one sparse vector.

    Attributes:
        columns: the columns, which go.
        is_number: which of them are numbers: those have one place, and their value there.
        width: places.
        name: begins the names of the two columns of places and values.
    """

    columns: tuple[str, ...]
    is_number: tuple[bool, ...]
    width: int
    name: str

    def schema(self, schema: "pa.Schema") -> "pa.Schema":
        """Return the columns after the step."""
        return with_fields(schema, _sparse_fields(self.name), self.columns)

    def transform(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return the batch after the step; a missing value has no place."""
        columns = columns_of(batch)
        salts = hash_texts(self.columns)
        codes = np.empty((len(batch), len(self.columns)), np.uint64)
        values = np.ones(codes.shape)
        gaps = np.zeros(codes.shape, bool)
        for at, (name, number) in enumerate(zip(self.columns, self.is_number, strict=True)):
            place = batch.schema.get_field_index(name)
            gaps[:, at] = np.asarray(batch.column(place).is_null(nan_is_null=True))
            codes[:, at] = salts[at]
            if number:
                values[:, at] = columns.numbers(place)
            else:
                codes[:, at] = mix64(columns.hashes(place) + salts[at])
        # One bit is the sign: values that meet in a place then cancel instead of adding up.
        signs = 1.0 - 2.0 * (codes >> np.uint64(63)).astype(float)
        places = (codes & np.uint64(self.width - 1)).astype(np.int32)
        kept = ~gaps
        ends = np.cumsum(kept.sum(axis=1))
        made = _sparse(self.name, places[kept], (values * signs)[kept], ends)
        return with_columns(batch, made, self.columns)


@dataclass(frozen=True, kw_only=True)
class HashFeatures(ColumnStep):
    """Puts one sparse vector in the place of columns: lists of places and of values.

    A text has the place of its hash, and 1 or -1 there; a number has that of its column's name,
    and its value. Places of a row may repeat: values add up.

    Attributes:
        columns: names; empty for all texts.
        width: places, a power of two.
        name: begins the names of the two columns "NAME.places" and "NAME.values".

    Source: Weinberger et al. 2009, arXiv 0902.2206.
    """

    width: int = 1 << 18
    name: str = "hashed"
    _adds: ClassVar[bool] = True
    wants: ClassVar[str] = "texts and numbers"

    def __post_init__(self) -> None:
        """Refuse a width that is none.

        Raises:
            ConfigError: it is no power of two from 16 to 2^24.
        """
        _check_width(self.width)

    def fits(self, kind: "pa.DataType") -> bool:
        """Return whether a column can be hashed; others than texts have to be named."""
        return is_text(kind) or bool(self.columns)

    def fitted(
        self, columns: Sequence[str], schema: "pa.Schema", results: Mapping[str, Any]
    ) -> HashedColumns:
        """Return the step; it learns nothing."""
        numbers = tuple(is_number(schema.field(name).type) for name in columns)
        return HashedColumns(
            columns=tuple(columns), is_number=numbers, width=self.width, name=self.name
        )


def _word_places(
    values: "pa.Array", width: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the row and place of each different word of texts, and how often it stands there."""
    import pyarrow as pa

    texts = values.cast(pa.binary()).to_pylist()
    found = [word_hashes(text) if text else np.empty(0, np.uint64) for text in texts]
    rows = np.repeat(np.arange(len(found)), [len(own) for own in found])
    every = np.concatenate(found) if found else np.empty(0, np.uint64)
    places = (every & np.uint64(width - 1)).astype(np.int64)
    cells, counts = np.unique(rows * width + places, return_counts=True)
    return cells // width, cells % width, counts


@dataclass(frozen=True, slots=True)
class WordRowsFold:
    """A `Fold` of how many rows have a word of each place; the last entry counts all rows.

    Attributes:
        column: column of text.
        width: places.
    """

    column: str
    width: int

    @property
    def name(self) -> str:
        """What it is called in results."""
        return f"rows of words in {self.column} ({self.width} places)"

    def init(self, schema: "pa.Schema") -> NDArray[np.int64]:
        """Return the state before any row."""
        return np.zeros(self.width + 1, np.int64)

    def update(self, state: NDArray[np.int64], batch: "pa.RecordBatch") -> None:
        """Take rows in."""
        _, places, _ = _word_places(batch[self.column], self.width)
        state[:-1] += np.bincount(places, minlength=self.width)
        state[-1] += len(batch)

    def merge(self, state: NDArray[np.int64], later: NDArray[np.int64]) -> None:
        """Take in the state of rows that come later."""
        state += later

    def finish(self, state: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the counts."""
        return state

    def sections(self, state: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return a state as arrays by name."""
        return {"rows": state}

    def of(self, schema: "pa.Schema", sections: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
        """Return the state of such arrays."""
        return np.array(sections["rows"])


@dataclass(frozen=True, eq=False, kw_only=True)
class WeighedWords:
    """Words of a text as a sparse vector of length 1.

    Attributes:
        columns: the column, which goes.
        weights: weight of each place [places].
        name: begins the names of the two columns of places and values.
    """

    columns: tuple[str, ...]
    weights: NDArray[np.float64]
    name: str

    def schema(self, schema: "pa.Schema") -> "pa.Schema":
        """Return the columns after the step."""
        return with_fields(schema, _sparse_fields(self.name), self.columns)

    def transform(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return the batch after the step; a text without words has no places."""
        rows, places, counts = _word_places(batch[self.columns[0]], len(self.weights))
        values = counts * self.weights[places]
        lengths = np.sqrt(np.bincount(rows, values**2, len(batch)))
        ends = np.searchsorted(rows, np.arange(len(batch)), side="right")
        made = _sparse(self.name, places, values / np.maximum(lengths, 1e-300)[rows], ends)
        return with_columns(batch, made, self.columns)


@dataclass(frozen=True, kw_only=True)
class TfIdf(ColumnStep):
    """Puts the words of a text in its place: lists of places and of weights.

    A word's weight is how often it stands in the text times ln((1 + rows) / (1 + rows with it))
    + 1, and the squares of a row's weights add up to 1. Words with one hash share a place.

    Attributes:
        columns: the one column of text.
        width: places, a power of two.

    Source: Salton and Buckley 1988, "Term-weighting approaches in automatic text retrieval".
    """

    width: int = 1 << 18
    _adds: ClassVar[bool] = True
    wants: ClassVar[str] = "text"

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            ConfigError: not one column, or a width that is no power of two.
        """
        _check_width(self.width)
        if len(self.columns) != 1:
            raise ConfigError("TfIdf is for one column of text", hint="name it")

    def fits(self, kind: "pa.DataType") -> bool:
        """Return whether a column is text."""
        return is_text(kind)

    def folds(self, columns: Sequence[str]) -> "Sequence[Fold[Any]]":
        """Return how many rows have each word."""
        return (WordRowsFold(columns[0], self.width),)

    def fitted(
        self, columns: Sequence[str], schema: "pa.Schema", results: Mapping[str, Any]
    ) -> WeighedWords:
        """Return the weights of places."""
        found = results[self.folds(columns)[0].name]
        weights = np.log((1 + found[-1]) / (1 + found[:-1])) + 1
        return WeighedWords(columns=tuple(columns), weights=weights, name=columns[0])

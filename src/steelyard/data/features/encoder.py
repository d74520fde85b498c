"""Columns of a table as features of about unit variance."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.table.columns import columns_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FeatureColumn", "FeatureEncoder"]


@dataclass(frozen=True, kw_only=True)
class FeatureColumn:
    """How one column becomes features.

    Attributes:
        name: the column.
        mean: mean of its numbers, which missing ones take; of text unused.
        scale: their standard deviation; of text the root of the number of its flags, so that all
            together have the variance of one column.
        hashes: hashes of the values of text that have a flag of their own.
        shares: share of rows with each of these values, which its flag is standardized by.
        flags_missing: whether a missing number has a flag too; its share is the last of `shares`.
        is_text: whether the column is text.
        low: numbers below count as this one.
        high: numbers above count as this one.
    """

    name: str
    mean: float = 0.0
    scale: float = 1.0
    hashes: NDArray[np.uint64]
    shares: NDArray[np.float64]
    flags_missing: bool = False
    is_text: bool = False
    low: float = -np.inf
    high: float = np.inf

    @property
    def width(self) -> int:
        """Features that the column has."""
        return len(self.hashes) if self.is_text else 1 + self.flags_missing

    @property
    def cuts_off(self) -> bool:
        """Whether numbers far out count as nearer ones."""
        return bool(np.isfinite(self.low) or np.isfinite(self.high))

    def encode_into(self, batch: "pa.RecordBatch", out: NDArray[np.float32]) -> None:
        """Fill in the features of a batch.

        Args:
            batch: rows; a column that they lack is missing throughout.
            out: float32 [N, width].
        """
        place = batch.schema.get_field_index(self.name)
        if not self.is_text:
            values = np.full(len(batch), np.nan)
            if place >= 0:
                values = columns_of(batch).numbers(place)
            is_known = np.isfinite(values)
            if self.cuts_off:
                values = np.clip(values, self.low, self.high)
            out[:, 0] = np.where(is_known, (values - self.mean) / self.scale, 0.0)
            if self.flags_missing:
                out[:, 1] = _standardized(~is_known, self.shares[-1])
            return
        hashes = np.zeros(len(batch), np.uint64)
        if place >= 0:
            hashes = columns_of(batch).hashes(place)
        for at, value in enumerate(self.hashes):
            out[:, at] = _standardized(hashes == value, self.shares[at]) / self.scale


def _standardized(flags: NDArray[np.bool_], share: float) -> NDArray[np.float64]:
    """Return flags less their share, over the standard deviation of flags with that share."""
    return (flags - share) / max(share * (1 - share), 1e-12) ** 0.5


@dataclass(frozen=True, kw_only=True)
class FeatureEncoder:
    """How rows of a table become rows of features.

    Attributes:
        columns: the columns; each has at least one feature.
    """

    columns: tuple[FeatureColumn, ...]

    @property
    def width(self) -> int:
        """Features of a row."""
        return sum(column.width for column in self.columns)

    @property
    def names(self) -> list[str]:
        """Columns that features come from."""
        return [column.name for column in self.columns]

    @property
    def owners(self) -> NDArray[np.int64]:
        """Place of the column that each feature comes from [D]."""
        widths = [column.width for column in self.columns]
        return np.repeat(np.arange(len(widths)), widths)

    def encode(self, batch: "pa.RecordBatch") -> NDArray[np.float32]:
        """Return the features of a batch [N, D]."""
        found, first = np.empty((len(batch), self.width), np.float32), 0
        for column in self.columns:
            column.encode_into(batch, found[:, first : first + column.width])
            first += column.width
        return found

    def by_column(self, amounts: NDArray[np.floating]) -> NDArray[np.float64]:
        """Add what belongs to features up by their columns.

        Args:
            amounts: [..., D].

        Returns:
            Sums [..., columns].
        """
        starts = np.flatnonzero(np.diff(self.owners, prepend=-1))
        return np.add.reduceat(np.asarray(amounts, np.float64), starts, axis=-1)

    def raw_means(self, rows: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the numbers that features stand for, NaN for text.

        Args:
            rows: features [N, D].

        Returns:
            Numbers [N, columns].
        """
        found, first = np.full((len(rows), len(self.columns)), np.nan), 0
        for at, column in enumerate(self.columns):
            if not column.is_text:
                found[:, at] = rows[:, first] * column.scale + column.mean
            first += column.width
        return found

    def about(self) -> list[dict[str, Any]]:
        """Return the plain values of the columns."""
        return [
            {
                "name": column.name,
                "mean": column.mean,
                "scale": column.scale,
                "flags_missing": column.flags_missing,
                "is_text": column.is_text,
            }
            | ({"low": column.low, "high": column.high} if column.cuts_off else {})
            for column in self.columns
        ]

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of the columns by name."""
        parts = ((f"{place}/", column) for place, column in enumerate(self.columns))
        return {
            begins + name: values
            for begins, column in parts
            for name, values in (("hashes", column.hashes), ("shares", column.shares))
        }

    @classmethod
    def restored(
        cls, about: Sequence[dict[str, Any]], sections: dict[str, NDArray[Any]]
    ) -> "FeatureEncoder":
        """Return the encoder of plain values and arrays."""
        columns = [
            FeatureColumn(
                hashes=np.array(sections[f"{place}/hashes"], np.uint64),
                shares=np.array(sections[f"{place}/shares"], np.float64),
                **item,
            )
            for place, item in enumerate(about)
        ]
        return cls(columns=tuple(columns))

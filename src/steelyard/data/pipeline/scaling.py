"""Columns of numbers moved and stretched: to a range, to unit variance, or by their quartiles."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.data.pipeline.step import (
    ColumnStep,
    as_array,
    number_rows,
    with_columns,
    with_fields,
)
from steelyard.data.table.folds import moments, quantiles
from steelyard.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table.fold import Fold

__all__ = ["AffineColumns", "Rescale"]

SKETCH_SIZE, SKETCH_WHOLE = 1024, 1 << 15
"""Sketches of quantiles that steps learn from: ranks within about .5 %."""


def told_odd(name: str, low: float, high: float) -> str:
    """Return what is odd about a column by its smallest and largest value, empty for nothing."""
    if np.isnan(low):
        return f"column {name} has no values"
    if low == high:
        return f"column {name} is constant"
    if not np.isfinite([low, high]).all():
        return f"column {name} has infinite values"
    return ""


@dataclass(frozen=True, eq=False, kw_only=True)
class AffineColumns:
    """Numbers less a shift, times a factor.

    Attributes:
        columns: the columns.
        shifts: what is taken off each [columns].
        factors: what each is then multiplied by [columns].
        warnings: what is odd about the columns.
    """

    columns: tuple[str, ...]
    shifts: NDArray[np.float64]
    factors: NDArray[np.float64]
    warnings: tuple[str, ...] = ()

    def schema(self, schema: "pa.Schema") -> "pa.Schema":
        """Return the columns after the step: floats."""
        import pyarrow as pa

        return with_fields(schema, dict.fromkeys(self.columns, pa.float64()))

    def transform(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return the batch after the step; what is missing stays so."""
        rows = (number_rows(batch, self.columns) - self.shifts) * self.factors
        changed = {name: as_array(rows[:, at]) for at, name in enumerate(self.columns)}
        return with_columns(batch, changed)


@dataclass(frozen=True, kw_only=True)
class Rescale(ColumnStep):
    """Puts columns of numbers on one scale.

    A constant column becomes 0 throughout, and is warned of. Infinite values stay infinite; they
    count for no mean and no deviation.

    Attributes:
        columns: names; empty for all numbers.
        method: "zscore" for mean 0 and deviation 1, "minmax" for 0 to 1, "robust" for the median at
            0 and quartiles 1 apart.
    """

    method: Literal["zscore", "minmax", "robust"] = "zscore"

    def __post_init__(self) -> None:
        """Refuse other methods.

        Raises:
            ConfigError: there is none of the name.
        """
        if self.method not in ("zscore", "minmax", "robust"):
            raise ConfigError(f"no scale {self.method!r}", hint="give zscore, minmax or robust")

    def folds(self, columns: Sequence[str]) -> "Sequence[Fold[Any]]":
        """Return moments, and quantiles where they are needed."""
        if self.method == "zscore":
            return (moments(*columns),)
        return (quantiles(*columns, k=SKETCH_SIZE, whole=SKETCH_WHOLE),)

    def fitted(
        self, columns: Sequence[str], schema: "pa.Schema", results: Mapping[str, Any]
    ) -> AffineColumns:
        """Return shifts and factors."""
        (fold,) = self.folds(columns)
        found = results[fold.name]
        if self.method == "zscore":
            shifts = np.array([found[name].mean for name in columns])
            spreads = np.array([found[name].std for name in columns])
            ends = [(item, item + spread) for item, spread in zip(shifts, spreads, strict=True)]
        else:
            levels = (0.0, 0.5, 1.0) if self.method == "minmax" else (0.25, 0.5, 0.75)
            low, middle, high = np.array([found[name].quantile(levels) for name in columns]).T
            shifts = low if self.method == "minmax" else middle
            # Infinite ends have no distance.
            with np.errstate(invalid="ignore"):
                spreads = high - low
            ends = [(found[name].least, found[name].largest) for name in columns]
        odd = [told_odd(name, *own) for name, own in zip(columns, ends, strict=True)]
        usable = np.isfinite(spreads) & (spreads > 0)
        return AffineColumns(
            columns=tuple(columns),
            shifts=np.where(np.isfinite(shifts), shifts, 0.0),
            factors=np.where(usable, 1 / np.where(usable, spreads, 1.0), 1.0),
            warnings=tuple(filter(None, odd)),
        )

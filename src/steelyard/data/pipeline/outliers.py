"""Values far from the others, infinite ones and missing ones: set aside, cut, or emptied."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.data.pipeline.scaling import SKETCH_SIZE, SKETCH_WHOLE
from steelyard.data.pipeline.step import (
    ColumnStep,
    RejectedRows,
    as_array,
    number_rows,
    with_columns,
    with_fields,
)
from steelyard.data.table.folds import moments, quantiles
from steelyard.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.sketch import KllQuantiles
    from steelyard.data.table.fold import Fold

__all__ = ["BoundedColumns", "Outliers", "RejectMissing", "RequiredColumns"]

_MAD_SCALE = 1.4826
"""Standard deviation of a bell over its median absolute deviation."""
_GRID = 4096
Action = Literal["quarantine", "clip", "missing"]


@dataclass(frozen=True, eq=False, kw_only=True)
class BoundedColumns:
    """Numbers between bounds; what is done to others.

    Attributes:
        columns: the columns.
        low: lower bounds [columns].
        high: upper bounds [columns].
        action: "quarantine", "clip" or "missing".
        reason: the rule in words.
        warnings: columns whose bounds could not be told.
    """

    columns: tuple[str, ...]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    action: Action
    reason: str
    warnings: tuple[str, ...] = ()

    def _is_far(self, rows: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which numbers lie outside [rows, columns]; infinite ones always do."""
        return (rows < self.low) | (rows > self.high) | np.isinf(rows)

    def schema(self, schema: "pa.Schema") -> "pa.Schema":
        """Return the columns after the step: floats, unless rows are set aside."""
        import pyarrow as pa

        if self.action == "quarantine":
            return schema
        return with_fields(schema, dict.fromkeys(self.columns, pa.float64()))

    def transform(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return the batch after the step."""
        if self.action == "quarantine":
            return batch
        rows = number_rows(batch, self.columns)
        changed = np.clip(rows, self.low, self.high)
        if self.action == "missing":
            changed = np.where(self._is_far(rows), np.nan, rows)
        arrays = {name: as_array(changed[:, at]) for at, name in enumerate(self.columns)}
        return with_columns(batch, arrays)

    def reject(self, batch: "pa.RecordBatch") -> list[RejectedRows]:
        """Return the rows that are set aside."""
        if self.action != "quarantine":
            return []
        rows = number_rows(batch, self.columns)
        is_far = self._is_far(rows)
        found = []
        for at in np.flatnonzero(is_far.any(axis=0)).tolist():
            places = np.flatnonzero(is_far[:, at])
            values = [f"{value:g}" for value in rows[places, at].tolist()]
            found.append(RejectedRows(places, self.columns[at], values, self.reason))
        return found


@dataclass(frozen=True, kw_only=True)
class Outliers(ColumnStep):
    """Finds values that are far from the others; infinite ones always are.

    Attributes:
        columns: names; empty for all numbers.
        rule: "zscore" for more than 3 deviations from the mean, "iqr" for more than 1.5 times the
            distance of the quartiles beyond one of them, "mad" for more than 3.5 scaled median
            deviations from the median, "infinite" for infinite values alone, "range" for what is
            not between `low` and `high`.
        action: "quarantine" sets rows aside with their reason, "clip" moves values to the bound,
            "missing" empties them.
        factor: in place of 3, 1.5 or 3.5; 0 for those.
        low: lower bound of a range.
        high: upper bound.

    Source: Iglewicz and Hoaglin 1993, "How to detect and handle outliers" (3.5 median deviations);
        Tukey 1977 (1.5 times the distance of the quartiles).
    """

    rule: Literal["zscore", "iqr", "mad", "infinite", "range"] = "iqr"
    action: Action = "quarantine"
    factor: float = 0.0
    low: float = -np.inf
    high: float = np.inf

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            ConfigError: a rule or action is unknown, or the factor or the range is none.
        """
        if self.rule not in ("zscore", "iqr", "mad", "infinite", "range"):
            raise ConfigError(f"no rule {self.rule!r}: zscore, iqr, mad, infinite or range")
        if self.action not in ("quarantine", "clip", "missing"):
            raise ConfigError(f"no action {self.action!r}: quarantine, clip or missing")
        if self.factor < 0 or not self.low <= self.high:
            raise ConfigError("a factor is 0 or more, and low is not above high")
        if self.rule == "infinite" and self.action == "clip":
            raise ConfigError("infinite values cannot be cut: no bound is known")

    @property
    def rejects(self) -> bool:
        """Whether rows are set aside."""
        return self.action == "quarantine"

    def folds(self, columns: Sequence[str]) -> "Sequence[Fold[Any]]":
        """Return moments or quantiles."""
        if self.rule == "zscore":
            return (moments(*columns),)
        if self.rule in ("iqr", "mad"):
            return (quantiles(*columns, k=SKETCH_SIZE, whole=SKETCH_WHOLE),)
        return ()

    def fitted(
        self, columns: Sequence[str], schema: "pa.Schema", results: Mapping[str, Any]
    ) -> BoundedColumns:
        """Return the bounds."""
        factor = self.factor or {"zscore": 3.0, "iqr": 1.5, "mad": 3.5}.get(self.rule, 0.0)
        bounds = dict.fromkeys(columns, (self.low, self.high))
        if self.rule == "infinite":
            bounds = dict.fromkeys(columns, (-np.inf, np.inf))
        for fold in self.folds(columns):
            found = results[fold.name]
            for name in columns:
                bounds[name] = _bounds(self.rule, found[name], factor)
        odd = [name for name, own in bounds.items() if np.isnan(own).any()]
        low, high = np.array([bounds[name] for name in columns]).T
        reason = {
            "zscore": f"more than {factor:g} deviations from the mean",
            "iqr": f"more than {factor:g} times the quartiles' distance beyond them",
            "mad": f"more than {factor:g} median deviations from the median",
            "infinite": "infinite",
            "range": f"not from {self.low:g} to {self.high:g}",
        }[self.rule]
        return BoundedColumns(
            columns=tuple(columns),
            low=np.nan_to_num(low, nan=-np.inf, neginf=-np.inf, posinf=np.inf),
            high=np.nan_to_num(high, nan=np.inf, neginf=-np.inf, posinf=np.inf),
            action=self.action,
            reason=reason,
            warnings=tuple(f"column {name} has no values, and no bounds" for name in odd),
        )


def _bounds(rule: str, sketch: Any, factor: float) -> tuple[float, float]:
    """Return the bounds of a column, NaN where it has no values."""
    if rule == "zscore":
        # A deviation of one value, or of equal ones, bounds nothing.
        spread = sketch.std if sketch.count > 1 and sketch.std > 0 else np.inf
        return sketch.mean - factor * spread, sketch.mean + factor * spread
    if rule == "iqr":
        low, high = sketch.quantile([0.25, 0.75]).tolist()
        return low - factor * (high - low), high + factor * (high - low)
    middle, spread = _median_deviation(sketch)
    # More than half of the values are equal: others are not far by that.
    spread = spread if spread > 0 else np.inf
    return middle - factor * spread, middle + factor * spread


def _median_deviation(sketch: "KllQuantiles") -> tuple[float, float]:
    """Return the median of a column, and the scaled median of the distances from it."""
    values = sketch.quantile((np.arange(_GRID) + 0.5) / _GRID)
    middle = float(sketch.quantile(0.5))
    return middle, _MAD_SCALE * float(np.median(np.abs(values - middle)))


@dataclass(frozen=True, eq=False, kw_only=True)
class RequiredColumns:
    """Columns that must have a value.

    Attributes:
        columns: the columns.
    """

    columns: tuple[str, ...]

    def schema(self, schema: "pa.Schema") -> "pa.Schema":
        """Return the columns after the step: the same."""
        return schema

    def transform(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return the batch after the step: the same."""
        return batch

    def reject(self, batch: "pa.RecordBatch") -> list[RejectedRows]:
        """Return the rows that are set aside."""
        found = []
        for name in self.columns:
            rows = np.flatnonzero(np.asarray(batch[name].is_null(nan_is_null=True)))
            if len(rows):
                found.append(RejectedRows(rows, name, [""] * len(rows), "missing"))
        return found


@dataclass(frozen=True, kw_only=True)
class RejectMissing(ColumnStep):
    """Sets rows aside that have no value in one of some columns.

    Attributes:
        columns: names; empty for all.
    """

    _rejects: ClassVar[bool] = True
    wants: ClassVar[str] = "any kind"

    def fits(self, kind: "pa.DataType") -> bool:
        """Return true: every column can have gaps."""
        return True

    def fitted(
        self, columns: Sequence[str], schema: "pa.Schema", results: Mapping[str, Any]
    ) -> RequiredColumns:
        """Return the step; it learns nothing."""
        return RequiredColumns(columns=tuple(columns))

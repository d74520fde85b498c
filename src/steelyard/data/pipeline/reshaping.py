"""Columns of numbers bent: logarithm, Yeo-Johnson's power, quantile map, and bins."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.data.pipeline.scaling import SKETCH_SIZE, SKETCH_WHOLE, told_odd
from steelyard.data.pipeline.step import (
    ColumnStep,
    as_array,
    number_rows,
    with_columns,
    with_fields,
)
from steelyard.data.table.folds import quantiles
from steelyard.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.sketch import KllQuantiles
    from steelyard.data.table.fold import Fold

__all__ = [
    "Bin",
    "BinnedColumns",
    "Log",
    "LogColumns",
    "MappedColumns",
    "PowerColumns",
    "QuantileMap",
    "YeoJohnson",
    "golden_section",
    "yeo_johnson",
]

_LEVELS = 1001
_GRID = 4096
_GOLDEN = (np.sqrt(5) - 1) / 2


def golden_section(
    score: Callable[[float], float], low: float, high: float, tolerance: float = 1e-4
) -> float:
    """Return where a function of one peak is largest.

    Args:
        score: the function.
        low: lower end of where it is looked for.
        high: upper end.
        tolerance: width at which the search ends.

    Returns:
        The middle of the last interval.

    Source: Kiefer 1953, "Sequential minimax search for a maximum".
    """
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = score(left), score(right)
    while high - low > tolerance:
        if at_left < at_right:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = score(right)
        else:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = score(left)
    return (low + high) / 2


def yeo_johnson(values: NDArray[np.float64], power: float) -> NDArray[np.float64]:
    """Bend numbers so that they are closer to a bell.

    Args:
        values: any numbers; NaN stays.
        power: 1 leaves them as they are.

    Returns:
        Of the same shape.

    Source: Yeo and Johnson 2000, "A new family of power transformations", equation 2.1.
    """
    above, below = np.maximum(values, 0), np.maximum(-values, 0)
    upper = _bent(above, power)
    lower = -_bent(below, 2 - power)
    return np.where(np.isnan(values), np.nan, np.where(values < 0, lower, upper))


def _bent(values: NDArray[np.float64], power: float) -> NDArray[np.float64]:
    """Return ((1 + x)^power - 1) / power, and its limit at 0."""
    if abs(power) < 1e-12:
        return np.log1p(values)
    return np.expm1(power * np.log1p(values)) / power


def _power_of(sketch: "KllQuantiles") -> float:
    """Return the power of largest likelihood of a column, by evenly spaced quantiles of it."""
    values = sketch.quantile((np.arange(_GRID) + 0.5) / _GRID)
    values = values[np.isfinite(values)]
    if not len(values) or values[0] == values[-1]:
        return 1.0
    slope = float((np.sign(values) * np.log1p(np.abs(values))).mean())

    def likelihood(power: float) -> float:
        with np.errstate(over="ignore", invalid="ignore"):
            spread = float(yeo_johnson(values, power).var())
        # Values that all come out alike, or beyond floats, are no better bell.
        if not (np.isfinite(spread) and spread > 0):
            return -np.inf
        return -np.log(spread) / 2 + (power - 1) * slope

    return golden_section(likelihood, -5.0, 7.0)


class _SketchedStep(ColumnStep):
    """What steps that learn from quantiles share."""

    def folds(self, columns: Sequence[str]) -> "Sequence[Fold[Any]]":
        """Return quantiles of the columns."""
        return (quantiles(*columns, k=SKETCH_SIZE, whole=SKETCH_WHOLE),)

    def _found(
        self, columns: Sequence[str], results: Mapping[str, Any]
    ) -> "tuple[list[KllQuantiles], tuple[str, ...]]":
        """Return sketches, and what is odd about the columns."""
        (fold,) = self.folds(columns)
        sketches = [results[fold.name][name] for name in columns]
        pairs = zip(columns, sketches, strict=True)
        odd = [told_odd(name, item.least, item.largest) for name, item in pairs]
        return sketches, tuple(filter(None, odd))


@dataclass(frozen=True, eq=False, kw_only=True)
class _BentColumns:
    """What fitted steps that turn numbers into numbers share."""

    columns: tuple[str, ...]

    def schema(self, schema: "pa.Schema") -> "pa.Schema":
        """Return the columns after the step: floats."""
        import pyarrow as pa

        return with_fields(schema, dict.fromkeys(self.columns, pa.float64()))

    def bent(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return numbers [rows, columns] after the step."""
        raise NotImplementedError

    def transform(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return the batch after the step; what is missing stays so."""
        rows = self.bent(number_rows(batch, self.columns))
        changed = {name: as_array(rows[:, at]) for at, name in enumerate(self.columns)}
        return with_columns(batch, changed)


@dataclass(frozen=True, eq=False, kw_only=True)
class LogColumns(_BentColumns):
    """Logarithms of 1 + |x| with the sign of x."""

    def bent(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return numbers [rows, columns] after the step."""
        return np.copysign(np.log1p(np.abs(rows)), rows)


@dataclass(frozen=True, kw_only=True)
class Log(ColumnStep):
    """Takes the logarithm of 1 + |x|, with the sign of x: negative numbers have one too.

    Attributes:
        columns: names; empty for all numbers.
    """

    def fitted(
        self, columns: Sequence[str], schema: "pa.Schema", results: Mapping[str, Any]
    ) -> LogColumns:
        """Return the step; it learns nothing."""
        return LogColumns(columns=tuple(columns))


@dataclass(frozen=True, eq=False, kw_only=True)
class PowerColumns(_BentColumns):
    """Yeo-Johnson's powers.

    Attributes:
        columns: the columns.
        powers: power of each.
        warnings: what is odd about the columns.
    """

    powers: NDArray[np.float64]
    warnings: tuple[str, ...] = ()

    def bent(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return numbers [rows, columns] after the step."""
        pairs = zip(rows.T, self.powers.tolist(), strict=True)
        with np.errstate(over="ignore"):
            return np.stack([yeo_johnson(values, power) for values, power in pairs], axis=1)


@dataclass(frozen=True, kw_only=True)
class YeoJohnson(_SketchedStep):
    """Bends numbers towards a bell, by the power of largest likelihood.

    The likelihood is that of 4,096 quantiles of a sketch, and the power is found by golden section.

    Attributes:
        columns: names; empty for all numbers.
    """

    def fitted(
        self, columns: Sequence[str], schema: "pa.Schema", results: Mapping[str, Any]
    ) -> PowerColumns:
        """Return the powers."""
        sketches, odd = self._found(columns, results)
        powers = np.array([_power_of(sketch) for sketch in sketches])
        return PowerColumns(columns=tuple(columns), powers=powers, warnings=odd)


@dataclass(frozen=True, eq=False, kw_only=True)
class MappedColumns(_BentColumns):
    """Shares of the rows at or below a number.

    Attributes:
        columns: the columns.
        values: quantiles at even levels, rising [columns, levels].
        bell: whether shares become the numbers of a bell that lie there.
        warnings: what is odd about the columns.
    """

    values: NDArray[np.float64]
    bell: bool = False
    warnings: tuple[str, ...] = ()

    def bent(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return numbers [rows, columns] after the step."""
        levels = np.linspace(0, 1, self.values.shape[1])
        shares = np.empty_like(rows)
        for at, known in enumerate(self.values):
            given = rows[:, at]
            # Equal quantiles are one step: the middle of the shares that it spans.
            upper = np.interp(given, known, levels)
            lower = 1 - np.interp(-given, -known[::-1], levels)
            shares[:, at] = np.where(np.isnan(given), np.nan, (upper + lower) / 2)
        if not self.bell:
            return shares
        from scipy.special import ndtri

        edge = 0.5 / _LEVELS
        return ndtri(np.clip(shares, edge, 1 - edge))


@dataclass(frozen=True, kw_only=True)
class QuantileMap(_SketchedStep):
    """Puts the share of the rows at or below a number in its place.

    Attributes:
        columns: names; empty for all numbers.
        to: "uniform" for shares from 0 to 1, "normal" for where a bell has them.
    """

    to: Literal["uniform", "normal"] = "uniform"

    def fitted(
        self, columns: Sequence[str], schema: "pa.Schema", results: Mapping[str, Any]
    ) -> MappedColumns:
        """Return the quantiles."""
        sketches, odd = self._found(columns, results)
        levels = np.linspace(0, 1, _LEVELS)
        values = np.nan_to_num(np.stack([item.quantile(levels) for item in sketches]))
        return MappedColumns(
            columns=tuple(columns), values=values, bell=self.to == "normal", warnings=odd
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class BinnedColumns:
    """Numbers of the bin that values lie in, from 0.

    Attributes:
        columns: the columns.
        cuts: upper ends of all bins but the last; a value equal to one is below it [all cuts].
        ends: where each column's cuts end [columns].
        warnings: what is odd about the columns.
    """

    columns: tuple[str, ...]
    cuts: NDArray[np.float64]
    ends: NDArray[np.int64]
    warnings: tuple[str, ...] = ()

    def schema(self, schema: "pa.Schema") -> "pa.Schema":
        """Return the columns after the step: small whole numbers."""
        import pyarrow as pa

        return with_fields(schema, dict.fromkeys(self.columns, pa.int16()))

    def transform(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return the batch after the step; what is missing stays so."""
        import pyarrow as pa

        rows = number_rows(batch, self.columns)
        changed, begin = {}, 0
        for at, name in enumerate(self.columns):
            cuts = self.cuts[begin : self.ends[at]]
            begin = int(self.ends[at])
            places = np.searchsorted(cuts, rows[:, at], side="left").astype(np.int16)
            changed[name] = pa.array(places, mask=np.isnan(rows[:, at]))
        return with_columns(batch, changed)


@dataclass(frozen=True, kw_only=True)
class Bin(_SketchedStep):
    """Puts the number of a bin in the place of a number.

    Attributes:
        columns: names; empty for all numbers.
        bins: bins of each column, 2 to 32,767; fewer where quantiles are equal.
        by: "quantile" for bins of about as many rows, "width" for bins of one width.
    """

    bins: int = 10
    by: Literal["quantile", "width"] = "quantile"

    def __post_init__(self) -> None:
        """Refuse too few or too many bins.

        Raises:
            ConfigError: there are.
        """
        if not 2 <= self.bins <= 32_767:
            raise ConfigError(f"{self.bins} bins, but it must be 2 to 32,767")

    def fitted(
        self, columns: Sequence[str], schema: "pa.Schema", results: Mapping[str, Any]
    ) -> BinnedColumns:
        """Return the cuts."""
        sketches, odd = self._found(columns, results)
        levels = np.linspace(0, 1, self.bins + 1)[1:-1]
        cuts = []
        for sketch in sketches:
            own = sketch.quantile(levels)
            if self.by == "width":
                own = sketch.least + levels * (sketch.largest - sketch.least)
            cuts.append(np.unique(own[np.isfinite(own)]))
        return BinnedColumns(
            columns=tuple(columns),
            cuts=np.concatenate(cuts),
            ends=np.cumsum([len(own) for own in cuts]),
            warnings=odd,
        )

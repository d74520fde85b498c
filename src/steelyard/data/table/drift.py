"""How two tables differ, by their sketches: columns, types, shares of missing, shifts of values."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from steelyard.data.table.columns import is_text
from steelyard.data.table.profile import ColumnSketches

if TYPE_CHECKING:
    from steelyard.data.table.sketch_file import TableSketch

__all__ = ["ColumnDrift", "TableDrift", "compare_tables", "population_stability"]

_BINS = 10
_RANK_ERROR = 0.0165
_MODERATE, _LARGE = 0.1, 0.25
_EVIDENT = 4.0
"""Standard errors from which a difference of shares is not taken for chance."""
_FACTOR = 1.5
_SHOWN_VALUES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDrift:
    """A column that both tables have.

    Attributes:
        name: name of the column.
        types: before and after.
        missing: shares of rows without a value.
        distinct: estimated numbers of distinct values.
        psi: population stability index, 0 for equal shares; NaN where a table has no values. Of
            text it is that of the most frequent values.
        psi_chance: what chance alone makes of the index with so many rows, on average.
        ks: largest difference of the shares up to a value, of numbers and times; NaN of text.
        ks_least: least it can be, for ranks of sketches are off by up to 1.65 % each.
        findings: what a reader should know, in words.
    """

    name: str
    types: tuple[str, str]
    missing: tuple[float, float]
    distinct: tuple[float, float]
    psi: float
    psi_chance: float
    ks: float
    ks_least: float
    findings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableDrift:
    """All columns of two tables.

    Attributes:
        rows: before and after.
        lost: columns that only the table before has.
        new: columns that only the table after has.
        columns: those of both, in the order of the table before.
    """

    rows: tuple[int, int]
    lost: tuple[str, ...]
    new: tuple[str, ...]
    columns: tuple[ColumnDrift, ...]

    def findings(self) -> list[str]:
        """Return what a reader should know, in words; nothing where the tables are alike."""
        found = [f"{name}: the column is gone" for name in self.lost]
        found += [f"{name}: the column is new" for name in self.new]
        return found + [f"{item.name}: {text}" for item in self.columns for text in item.findings]


def compare_tables(before: "TableSketch", after: "TableSketch") -> TableDrift:
    """Compare two tables by their sketches; no data are read.

    Args:
        before: the table that is compared with.
        after: the table that may have changed.

    Returns:
        Their differences.
    """
    old, new = before.schema.names, after.schema.names
    common = [name for name in old if name in new]
    return TableDrift(
        rows=(before.profile.rows, after.profile.rows),
        lost=tuple(name for name in old if name not in new),
        new=tuple(name for name in new if name not in old),
        columns=tuple(_compared(name, before, after) for name in common),
    )


def population_stability(before: NDArray[np.float64], after: NDArray[np.float64]) -> float:
    """Return the population stability index of shares of some bins.

    Args:
        before: shares, [bins], of a sum of 1.
        after: the same.

    Returns:
        sum (after - before) ln(after / before); a share of 0 counts as a ten-thousandth.

    Source: Yurdakul 2018, "Statistical properties of the population stability index", which also
        has its mean by chance: (bins - 1) (1/n + 1/m).
    """
    least = 1e-4
    one, other = np.maximum(before, least), np.maximum(after, least)
    return float(((other - one) * np.log(other / one)).sum())


def _compared(name: str, before: "TableSketch", after: "TableSketch") -> ColumnDrift:
    """Compare a column."""
    tables = (before, after)
    states = [item.profile.sketches.columns[item.schema.names.index(name)] for item in tables]
    kinds = [item.schema.field(name).type for item in tables]
    rows = [max(item.profile.rows, 1) for item in tables]
    counts = [row - state.missing for row, state in zip(rows, states, strict=True)]
    are_text = [is_text(kind) for kind in kinds]
    ks = psi = chance = math.nan
    if all(counts) and are_text[0] == are_text[1]:
        if are_text[0]:
            shares = _shares_of_values(states, counts)
        else:
            shares = _shares_of_bins(states)
            ks = _ks(states)
        if shares is not None:
            psi = population_stability(*shares)
            chance = (len(shares[0]) - 1) * (1 / counts[0] + 1 / counts[1])
    missing = tuple(state.missing / row for state, row in zip(states, rows, strict=True))
    distinct = tuple(state.distinct.estimate() for state in states)
    # Ranks of a table of few values are exact, of others off by up to their bound.
    ks_least = max(ks - 2 * _RANK_ERROR, 0.0) if not math.isnan(ks) else math.nan
    made = ColumnDrift(
        name=name,
        types=(str(kinds[0]), str(kinds[1])),
        missing=(missing[0], missing[1]),
        distinct=(distinct[0], distinct[1]),
        psi=psi,
        psi_chance=chance,
        ks=ks,
        ks_least=ks_least,
        findings=(),
    )
    return _with_findings(made, states, (rows[0], rows[1]))


def _shares_of_bins(
    states: list[ColumnSketches],
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return the shares between the deciles of the table before; None where all are one value."""
    old, new = (state.quantiles for state in states)
    if not (old.count and new.count):
        return None
    edges = np.unique(old.quantile(np.arange(1, _BINS) / _BINS))
    one, other = (
        np.diff(np.concatenate([[0.0], sketch.rank(edges), [1.0]])) for sketch in (old, new)
    )
    return one, other


def _shares_of_values(
    states: list[ColumnSketches], counts: list[int]
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return the shares of the most frequent values of either table, and of all others."""
    known = [dict(state.frequent.counts(_SHOWN_VALUES)) for state in states]
    names = list(known[0] | known[1])
    if not names:
        return None
    shares = []
    for found, count in zip(known, counts, strict=True):
        own = np.array([found.get(name, 0) / count for name in names])
        shares.append(np.append(own, max(1 - own.sum(), 0.0)))
    return shares[0], shares[1]


def _ks(states: list[ColumnSketches]) -> float:
    """Return the largest difference of the shares up to any value that a sketch kept."""
    old, new = (state.quantiles for state in states)
    if not (old.count and new.count):
        return math.nan
    levels = np.arange(1, 1000) / 1000
    places = np.concatenate([old.quantile(levels), new.quantile(levels)])
    return float(np.abs(old.rank(places) - new.rank(places)).max())


def _with_findings(
    item: ColumnDrift, states: list[ColumnSketches], rows: tuple[int, int]
) -> ColumnDrift:
    """Add what a reader should know."""
    from dataclasses import replace

    found = []
    if item.types[0] != item.types[1]:
        found.append(f"was {item.types[0]} and is {item.types[1]}")
    shift = "" if math.isnan(item.psi) else _shift(item, rows)
    if shift:
        found.append(shift)
    both = (item.missing[0] * rows[0] + item.missing[1] * rows[1]) / sum(rows)
    error = math.sqrt(both * (1 - both) * (1 / rows[0] + 1 / rows[1]))
    apart = abs(item.missing[1] - item.missing[0])
    if apart > 0.01 and apart > _EVIDENT * error:
        found.append(f"{item.missing[0]:.1%} of the values were missing, now {item.missing[1]:.1%}")
    told = _of_distinct(item, states, rows)
    return replace(item, findings=(*found, *told))


def _shift(item: ColumnDrift, rows: tuple[int, int]) -> str:
    """Return in words how far values shifted, empty for no more than chance."""
    # The index of chance has a chi-squared law: its spread is about its mean.
    beyond = item.psi - 3 * item.psi_chance
    # Differences of shares that errors of the sketches explain are none.
    if beyond < _MODERATE or (not math.isnan(item.ks) and item.ks_least == 0):
        return ""
    far = "far" if beyond >= _LARGE else "somewhat"
    return f"values shifted {far}: population stability index {item.psi:.2f}"


def _of_distinct(
    item: ColumnDrift, states: list[ColumnSketches], rows: tuple[int, int]
) -> list[str]:
    """Return in words that there are more or fewer distinct values, where the rows do not say."""
    errors = [state.distinct.standard_error for state in states]
    before, after = (max(value, 1.0) for value in item.distinct)
    # Of an identifier there are as many as rows.
    are_keys = before > 0.9 * rows[0] and after > 0.9 * rows[1]
    factor = max(before, after) / min(before, after)
    if are_keys or factor < _FACTOR * (1 + _EVIDENT * math.hypot(*errors)):
        return []
    return [f"about {before:,.0f} distinct values, now {after:,.0f}"]

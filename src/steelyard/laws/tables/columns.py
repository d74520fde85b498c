"""Columns of runs that know what they mean, and refuse to be mixed with what they are not."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import DataError
from steelyard.laws.fitting.terms import Array
from steelyard.laws.tables.conventions import ALLOWED, Conventions, Words
from steelyard.laws.tables.frames import pick

__all__ = ["Condition", "RunColumns", "UnknownColumnError"]

Condition = (
    str
    | float
    | bool
    | tuple[float | None, float | None]
    | Sequence[str]
    | Sequence[float]
    | Callable[[Any], Any]
)
"""A value, a pair (low, high) of numbers, a sequence of values, or a function from the column to a
mask."""


def meets(values: Array | Words, condition: Condition) -> NDArray[np.bool_]:
    """Say which values meet a condition.

    Args:
        values: numbers or words, [n].
        condition: a value; a pair (low, high) of numbers that holds both ends, None for an open
            one; a sequence of values; or a function of the whole column. A sequence of exactly two
            numbers to choose from is a list, not a tuple.

    Returns:
        The rows that do, [n].
    """
    if callable(condition):
        return np.asarray(condition(values), dtype=np.bool_)
    is_number = values.dtype.kind == "f"
    if isinstance(condition, tuple) and len(condition) == 2 and is_number:
        low, high = (None if end is None else float(end) for end in condition)
        numbers = np.asarray(values, dtype=np.float64)
        return (numbers >= (-np.inf if low is None else low)) & (
            numbers <= (np.inf if high is None else high)
        )
    wanted = [condition] if isinstance(condition, str | int | float) else list(condition)
    return np.isin(values, np.asarray(wanted, dtype=np.float64 if is_number else np.str_))


def range_of(name: str, values: Array | Words) -> str:
    """Say what a column holds, for a hint.

    Args:
        name: name of the column.
        values: numbers or words, [n].

    Returns:
        Such as "flops runs from 1e+16 to 3e+19" or "train_set is c4, rpj".
    """
    if values.dtype.kind == "f":
        return f"{name} runs from {np.nanmin(values):g} to {np.nanmax(values):g}"
    return f"{name} is {', '.join(np.unique(values).tolist()[:8])}"


_UNITS = {
    "parameters": "parameter",
    "tokens": "token",
    "samples": "sample",
    "bytes": "byte",
    "flops": "FLOP",
}


class UnknownColumnError(DataError, KeyError):
    """A column that the table does not have; near names are in the hint."""

    __str__ = Exception.__str__


@dataclass(frozen=True, kw_only=True, eq=False)
class RunColumns(Mapping[str, Array]):
    """A mapping from column to float64 values of runs, [n].

    Taking a column out refuses rows that do not compare: parameters counted in different ways,
    losses of different units, of different tokenizers per token, or finished ones mixed with
    unfinished ones.

    Attributes:
        numbers: columns, [n] each; "parameters", "tokens", "samples", "bytes", "loss" and "flops"
            are positive. The name of a data column is its unit.
        words: columns of text, [n] each, for `where` and `groups`.
        conventions: what the numbers mean.
        origin: file or other place the runs come from.
        rows: number of each row in its source, the first is 1.
        estimated: columns that hold estimates in place of counts.
        num_dropped: rows of the source left out because a number was not positive.
        derived: what a column was computed from, by column, such as "flops / 6 parameters".
    """

    numbers: dict[str, Array]
    words: dict[str, Words]
    conventions: Conventions
    origin: str
    rows: NDArray[np.int64]
    estimated: tuple[str, ...] = ()
    num_dropped: int = 0
    derived: Mapping[str, str] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict, repr=False)

    def __getitem__(self, name: str) -> Array:
        """Return a column, [n].

        Args:
            name: name of the column.

        Returns:
            Its values.

        Raises:
            UnknownColumnError: no such column; near names are in the hint.
            FitError: rows do not compare; they are named.
        """
        if name not in self.numbers:
            renamed = {old: new for new, old in self._names.items()}
            if name in renamed:
                raise UnknownColumnError(
                    f"{self.origin}: column {name!r} is called {renamed[name]!r} here",
                    hint=f"use {renamed[name]!r}",
                )
            if name in self.words:
                raise UnknownColumnError(
                    f"{self.origin}: column {name!r} holds words, not numbers",
                    hint="see table.words, where() and groups()",
                )
            try:
                # A mapping's users expect a KeyError, ours the near names of a DataError.
                pick(name, self.numbers, self.origin)
            except DataError as error:
                raise UnknownColumnError(str(error), hint=error.hint) from None
        self.conventions.refuse_mixed(name, self.rows)
        return self.numbers[name]

    def __contains__(self, name: object) -> bool:
        return name in self.numbers

    def __iter__(self) -> Iterator[str]:
        return iter(self.numbers)

    def __len__(self) -> int:
        """Count the columns, as a mapping does; `num_runs` counts the rows."""
        return len(self.numbers)

    def __repr__(self) -> str:
        columns = [*self.numbers, *self.words]
        more = f" and {len(columns) - 12} more" if len(columns) > 12 else ""
        return f"{type(self).__name__}({self.source}; columns {', '.join(columns[:12])}{more})"

    @property
    def num_runs(self) -> int:
        """Rows of the table."""
        return len(self.rows)

    @property
    def source(self) -> str:
        """Where the runs come from and what their numbers mean, which a fit keeps."""
        words = ", ".join(f"{name} {word}" for name, word in self.facts()[2:])
        return f"{self.origin}: {self.num_runs} runs; {words}"

    def facts(self) -> list[tuple[str, str]]:
        """Tell what a report should show: runs, source, and each convention, unstated ones too.

        Returns:
            Pairs of name and value in words.
        """
        found = [
            ("origin", self.origin),
            ("runs", str(self.num_runs)),
            *self.conventions.described().items(),
        ]
        found += [("estimated", ", ".join(self.estimated))] if self.estimated else []
        found += [("derived", f"{name} = {how}") for name, how in self.derived.items()]
        dropped = ("dropped", f"{self.num_dropped} runs without a positive number")
        return [*found, dropped] if self.num_dropped else found

    def unit(self, name: str) -> str:
        """Name the unit of a column; empty for columns without a known one.

        Args:
            name: name of a column.

        Returns:
            Such as "token" or "nat/token", "unstated" for a loss nobody described.
        """
        return (
            self.conventions.one("loss_unit", self.rows) if name == "loss" else _UNITS.get(name, "")
        )

    def where(self, mask: NDArray[np.bool_] | None = None, **conditions: Condition) -> Self:
        """Keep the rows that meet all conditions.

        Args:
            mask: rows to keep, [n]; None for all.
            **conditions: per column or convention a value, a sequence of values, a pair (low, high)
                that holds both ends and may leave one open with None, or a function from the whole
                column to a mask.

        Returns:
            The rows kept, with their numbers in the source.

        Raises:
            DataError: no such column, or no row is left.
        """
        keep = (
            np.ones(self.num_runs, dtype=np.bool_) if mask is None else np.array(mask, dtype=bool)
        )
        if keep.shape != self.rows.shape:
            raise DataError(
                f"mask has shape {keep.shape}, the table {self.num_runs} rows",
                hint="pass one truth value per run",
            )
        for name, condition in conditions.items():
            keep &= meets(self._any_column(name), condition)
        if not keep.any():
            said = ", ".join(f"{name}={value!r}" for name, value in conditions.items())
            raise DataError(
                f"{self.origin}: no run has {said or 'a mask that is true'}",
                hint="; ".join(range_of(name, self._any_column(name)) for name in conditions),
            )
        return self._take(keep)

    def split(self, column: str, at: float) -> tuple[Self, Self]:
        """Split the rows by size, such as small runs to fit from large ones to predict.

        Args:
            column: column of numbers.
            at: largest value of the first part.

        Returns:
            Rows with values up to `at`, and those above.

        Raises:
            DataError: no such column, or one part would be empty.
        """
        values = np.asarray(self._any_column(column), dtype=np.float64)
        if not values.min() <= at < values.max():
            raise DataError(
                f"{column} runs from {values.min():g} to {values.max():g}; a split at {at:g} "
                f"leaves one side empty"
            )
        return self._take(values <= at), self._take(values > at)

    def groups(self, column: str) -> dict[str, Self]:
        """Split the rows by a column of words, numbers or a convention.

        Args:
            column: name of the column.

        Returns:
            One table per value, in order of first appearance; numbers are written as with `%g`.

        Raises:
            DataError: no such column.
        """
        values = self._any_column(column)
        found = [
            f"{value:g}" if isinstance(value, float) else str(value) for value in values.tolist()
        ]
        return {
            label: self._take(np.array([item == label for item in found]))
            for label in dict.fromkeys(found)
        }

    def _any_column(self, name: str) -> Array | Words:
        """Find a column of numbers, of words, or a convention; FLOPs not stated are 6 N D."""
        if name in self.words:
            return self.words[name]
        if name not in self.numbers:
            if name in ALLOWED:
                return getattr(self.conventions, name)
            if name == "flops" and {"parameters", "tokens"} <= set(self.numbers):
                return 6.0 * self["parameters"] * self["tokens"]
        return self[pick(name, [*self.numbers, *self.words, *ALLOWED], self.origin)]

    def _take(self, keep: NDArray[np.bool_]) -> Self:
        return replace(
            self,
            numbers={name: column[keep] for name, column in self.numbers.items()},
            words={name: column[keep] for name, column in self.words.items()},
            conventions=self.conventions.take(keep),
            rows=self.rows[keep],
        )

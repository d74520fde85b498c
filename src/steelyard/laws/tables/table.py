"""A table of runs whose columns know what they mean, and refuse to be mixed with what they are not."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import DataError
from steelyard.laws.fitting.terms import Array
from steelyard.laws.tables import conversions
from steelyard.laws.tables import counts as counting
from steelyard.laws.tables.conditions import Condition, labels, meets, range_of
from steelyard.laws.tables.conventions import ALLOWED, UNSTATED, Conventions, Words
from steelyard.laws.tables.frames import (
    POSITIVE,
    number_columns,
    pick,
    positive_rows,
    read_frame,
    refuse_flops,
    store_frame,
    word_columns,
)

if TYPE_CHECKING:
    import polars

    from steelyard.catalog import Architecture
    from steelyard.laws.registry import PublishedLaw
    from steelyard.runs import RunStore

__all__ = ["RunTable", "UnknownColumnError"]

_UNITS = {
    "parameters": "parameter",
    "tokens": "token",
    "samples": "sample",
    "bytes": "byte",
    "flops": "FLOP",
}
_QUANTITY_CONVENTIONS = {
    "model.parameters": ("counts", "total"),
    "model.parameters_non_embedding": ("counts", "non-embedding"),
    "eval.loss": ("loss_unit", "nat/token"),
    "eval.bits_per_byte": ("loss_unit", "bit/byte"),
    "train.loss": ("loss_unit", "nat/token"),
}


class UnknownColumnError(DataError, KeyError):
    """A column that the table does not have; near names are in the hint."""

    __str__ = Exception.__str__


@dataclass(frozen=True, kw_only=True, eq=False)
class RunTable(Mapping[str, Array]):
    """Runs, one per row.

    A mapping from column to float64 values [n] that `fit` and the decisions take as it is.

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
    """

    numbers: dict[str, Array]
    words: dict[str, Words]
    conventions: Conventions
    origin: str
    rows: NDArray[np.int64]
    estimated: tuple[str, ...] = ()
    num_dropped: int = 0
    _names: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def read(
        cls,
        data: "Path | str | Mapping[str, ArrayLike] | polars.DataFrame",
        *,
        counts: str = UNSTATED,
        loss_unit: str = UNSTATED,
        tokenizer: str = UNSTATED,
        schedule: str = UNSTATED,
        flops_factor: float = 2.0,
        drop_invalid: bool = False,
        source: str = "",
        **columns: str,
    ) -> "RunTable":
        """Read runs, one per row, from a file or from columns in memory.

        Args:
            data: a CSV, Parquet or JSON-lines file (.jsonl), CSV and JSON lines also gzipped; or
                columns, [n] each; or a Polars frame.
            counts: which parameters are counted: "total", "non-embedding", "non-embedding+head",
                "active", "active-non-embedding"; here and below the name of a column in the data
                says that each row states its own.
            loss_unit: "nat/token", "bit/token", "bit/byte", "nat/byte" or "error fraction".
            tokenizer: any name.
            schedule: "finished" or "unfinished" learning-rate schedules; a column may also hold
                true and false. A column of words that is called like one of these four needs no
                mention.
            flops_factor: how far flops may lie from 6 parameters * tokens; `math.inf` never minds.
            drop_invalid: leave out rows whose loss or size is not a positive number, such as
                diverged runs, and count them.
            source: where the runs come from; the file's name unless given.
            **columns: name in the data by the name it is to have, such as `parameters="params"`; a
                column already called parameters, tokens, samples, bytes, loss or flops needs no
                mention.

        Returns:
            The table.

        Raises:
            DataError: the file cannot be read, a column is missing (near names are given) or holds
                text; rows are named.
            FitError: numbers that are not positive, contradicting FLOPs, or an unknown convention;
                rows are named.

        Example:
            >>> RunTable.read("runs.csv", parameters="params", loss="val_loss", counts="total")  # doctest: +SKIP
        """
        stated = {
            "counts": counts,
            "loss_unit": loss_unit,
            "tokenizer": tokenizer,
            "schedule": schedule,
        }
        source = source or (
            Path(data).name if isinstance(data, Path | str) else "columns in memory"
        )
        return cls._of_frame(read_frame(data), columns, stated, source, flops_factor, drop_invalid)

    @classmethod
    def from_store(
        cls,
        store: "RunStore",
        *,
        kind: str = "train",
        status: str = "done",
        tokenizer: str = UNSTATED,
        schedule: str = UNSTATED,
        flops_factor: float = 2.0,
        drop_invalid: bool = False,
        **columns: str,
    ) -> "RunTable":
        """Make a table of the runs in a store.

        Counting and loss unit follow from the quantities that were measured.

        Args:
            store: holds the runs.
            kind: of the runs to take; empty for all.
            status: of the runs to take; empty for all.
            tokenizer: one name, or the name of one of `columns`.
            schedule: as in `read`; a run that is done need not have finished its learning-rate
                schedule.
            flops_factor: as in `read`.
            drop_invalid: as in `read`.
            **columns: quantity ("eval.bits_per_byte") or place in the recipe
                ("recipe.model.hidden_size") by the name it is to have; parameters, tokens, loss and
                flops are model.parameters, train.tokens, eval.loss and train.flops.

        Returns:
            The table, with the words "run" and "name" and the number "seed".

        Raises:
            DataError: no run matches, or one lacks a value; run and column are named.
            FitError: as in `read`.
        """
        frame, places = store_frame(store, columns, kind=kind, status=status)
        stated = {"tokenizer": tokenizer, "schedule": schedule}
        stated |= dict(
            _QUANTITY_CONVENTIONS[place]
            for place in places.values()
            if place in _QUANTITY_CONVENTIONS
        )
        return cls._of_frame(
            frame, {}, stated, f"run store {store.folder}", flops_factor, drop_invalid
        )

    @classmethod
    def _of_frame(
        cls,
        frame: "polars.DataFrame",
        columns: Mapping[str, str],
        stated: Mapping[str, str],
        source: str,
        flops_factor: float,
        drop_invalid: bool,
    ) -> "RunTable":
        """Check a frame at the boundary and make it a table."""
        for role, name in columns.items():
            if name not in frame.columns and any(name in allowed for allowed in ALLOWED.values()):
                near = next(key for key, allowed in ALLOWED.items() if name in allowed)
                raise DataError(
                    f"{source} has no column {name!r} for {role}",
                    hint=f"to state a convention write {near}={name!r}",
                )
        roles = {
            name: name for name in POSITIVE if name in frame.columns and name not in columns
        } | dict(columns)
        numbers = number_columns(frame, roles, source)
        words = word_columns(frame, numbers)
        rows = np.arange(1, frame.height + 1)
        stated = {
            **stated,
            **{
                name: name
                for name in ALLOWED
                if name in words and stated.get(name, UNSTATED) == UNSTATED
            },
        }
        given = {
            name: words.get(
                value, np.array(numbers[value], dtype=np.str_) if value in numbers else value
            )
            for name, value in stated.items()
        }
        table = cls(
            numbers=numbers,
            words=words,
            conventions=Conventions.checked(len(rows), given, rows),
            origin=source,
            rows=rows,
            _names={role: name for role, name in roles.items() if role != name},
        )
        keep = positive_rows(numbers, table._names, rows, source, drop_invalid)
        table = table if keep.all() else replace(table._take(keep), num_dropped=int((~keep).sum()))
        refuse_flops(table.numbers, table.rows, source, flops_factor)
        return table

    def __getitem__(self, name: str) -> Array:
        """Return a column, [n]; `UnknownColumnError` names near columns, `FitError` the rows that do not compare."""
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
        return f"RunTable({self.source}; columns {', '.join(columns[:12])}{more})"

    @property
    def num_runs(self) -> int:
        """Rows of the table."""
        return len(self.rows)

    @property
    def source(self) -> str:
        """Where the runs come from and what their numbers mean, unstated conventions included; a fit keeps it."""
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
        return (
            [*found, ("dropped", f"{self.num_dropped} runs without a positive number")]
            if self.num_dropped
            else found
        )

    def unit(self, name: str) -> str:
        """Name the unit of a column; empty for columns without a known one.

        Args:
            name: of a column.

        Returns:
            Such as "token" or "nat/token", "unstated" for a loss nobody described.
        """
        return (
            self.conventions.one("loss_unit", self.rows) if name == "loss" else _UNITS.get(name, "")
        )

    def where(self, mask: NDArray[np.bool_] | None = None, **conditions: Condition) -> "RunTable":
        """Keep the rows that meet all conditions.

        Args:
            mask: rows to keep, [n]; None for all.
            **conditions: per column or convention a value, a sequence of values, a pair (low, high)
                that holds both ends and may leave one open with None, or a function of the whole
                column that gives a mask.

        Returns:
            The rows kept, with their numbers in the source.

        Raises:
            DataError: no such column, or no row is left.
        """
        keep = (
            np.ones(self.num_runs, dtype=np.bool_)
            if mask is None
            else np.array(mask, dtype=np.bool_)
        )
        if keep.shape != self.rows.shape:
            raise DataError(
                f"mask has shape {keep.shape}, the table {self.num_runs} rows",
                hint="give one truth value per run",
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

    def split(self, column: str, at: float) -> tuple["RunTable", "RunTable"]:
        """Split the rows by size, such as small runs to fit from large ones to predict.

        Args:
            column: of numbers.
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

    def groups(self, column: str) -> dict[str, "RunTable"]:
        """Split the rows by a column of words, numbers or a convention.

        Args:
            column: its name.

        Returns:
            One table per value, in order of first appearance; numbers are written as with `%g`.

        Raises:
            DataError: no such column.
        """
        values = self._any_column(column)
        found = labels(values)
        return {
            label: self._take(np.array([item == label for item in found]))
            for label in dict.fromkeys(found)
        }

    def to_counts(
        self,
        counts: str,
        *,
        architectures: "str | Sequence[Architecture | str] | None" = None,
        hidden_size: str = "",
        vocab_size: int | str = 0,
        tied: bool = True,
        embedding_scale: float | None = None,
    ) -> "RunTable":
        """Count parameters by another convention; FLOPs stay as they were measured.

        Args:
            counts: "total", "non-embedding" or "non-embedding+head".
            architectures: a catalog name or record per row, or the column of words that names them;
                exact.
            hidden_size: in place of it the column of widths; exact up to position tables, which it
                does not know.
            vocab_size: rows of the token table, or the column that holds them.
            tied: whether the head is the token table again, with `hidden_size`.
            embedding_scale: in place of both h of the estimate h N^(1/3), such as
                `CHINCHILLA_EMBEDDING_SCALE`; the table then lists "parameters" as estimated.

        Returns:
            The table with converted parameters.

        Raises:
            FitError: a row does not state what it counts, not exactly one way to convert was given,
                or a count would not be positive (rows are named).
            CatalogError: an architecture is not in the catalog.
        """
        named = (
            self._any_column(architectures).tolist()
            if isinstance(architectures, str)
            else architectures
        )
        return counting.to_counts(
            self,
            counts,
            counting.parts_for(self, named, hidden_size, vocab_size, tied, embedding_scale),
        )

    def to_loss_unit(
        self, loss_unit: str, *, bytes_per_token: float | str | Mapping[str, float] | None = None
    ) -> "RunTable":
        """Return losses in another unit.

        Args:
            loss_unit: "nat/token", "bit/token", "nat/byte" or "bit/byte"; per byte, losses of
                different tokenizers compare.
            bytes_per_token: mean UTF-8 bytes per token of the evaluation text: one number, a
                column, or a number per tokenizer; needed between per token and per byte.

        Returns:
            The table with converted losses.

        Raises:
            FitError: a row does not state its unit, a tokenizer has no number, or the units do not
                convert.
        """
        return conversions.to_loss_unit(self, loss_unit, bytes_per_token)

    @classmethod
    def concat(cls, tables: "Sequence[RunTable]") -> "RunTable":
        """Put tables below each other that state the same conventions; see `conversions.concat`."""
        return conversions.concat(tables)

    def for_published(self, law: "PublishedLaw") -> "RunTable":
        """Return the table if it may be compared with a published law.

        Same parameters counted, unit of loss and, per token, tokenizer.

        Args:
            law: of `published`.

        Returns:
            The table itself.

        Raises:
            FitError: a convention differs, or the table does not state it.
        """
        conversions.refuse_other_conventions(self, law)
        return self

    def _any_column(self, name: str) -> Array | Words:
        """Find a column of numbers, of words, or a convention; FLOPs that are not given are 6 N D."""
        if name in self.words:
            return self.words[name]
        if (
            name == "flops"
            and name not in self.numbers
            and {"parameters", "tokens"} <= set(self.numbers)
        ):
            return 6.0 * self["parameters"] * self["tokens"]
        return (
            getattr(self.conventions, name)
            if name in ALLOWED and name not in self.numbers
            else self[pick(name, self._all_names(), self.origin)]
        )

    def _all_names(self) -> list[str]:
        return [*self.numbers, *self.words, *ALLOWED]

    def _take(self, keep: NDArray[np.bool_]) -> "RunTable":
        return replace(
            self,
            numbers={name: column[keep] for name, column in self.numbers.items()},
            words={name: column[keep] for name, column in self.words.items()},
            conventions=self.conventions.take(keep),
            rows=self.rows[keep],
        )

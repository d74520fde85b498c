"""A table of runs: read from files and stores, put together, converted between conventions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import DataError, FitError
from steelyard.laws.tables import conversions
from steelyard.laws.tables.columns import RunColumns, UnknownColumnError
from steelyard.laws.tables.conventions import ALLOWED, COLUMN_OF, UNSTATED, Conventions
from steelyard.laws.tables.files import read_frame
from steelyard.laws.tables.frames import (
    POSITIVE,
    derived_size,
    number_columns,
    positive_rows,
    refuse_flops,
    store_frame,
    word_columns,
)

if TYPE_CHECKING:
    import polars

    from steelyard.catalog import Architecture
    from steelyard.runs import RunStore

__all__ = ["RunTable", "UnknownColumnError"]

_QUANTITY_CONVENTIONS = {
    "model.parameters": ("counts", "total"),
    "model.parameters_non_embedding": ("counts", "non-embedding"),
    "eval.loss": ("loss_unit", "nat/token"),
    "eval.bits_per_byte": ("loss_unit", "bit/byte"),
    "train.loss": ("loss_unit", "nat/token"),
}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RunTable(RunColumns):
    """Runs, one per row, which `fit` and the decisions take as they are; see `RunColumns`."""

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
            counts: parameters that are counted: "total", "non-embedding", "non-embedding+head",
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
            **columns: name in the data by the wanted name, such as `parameters="params"`; a column
                already called parameters, tokens, samples, bytes, loss or flops needs no mention.
                Of parameters, tokens and flops two are enough: parameters or tokens are derived
                from 6 parameters * tokens = flops, which `facts` says.

        Returns:
            The table.

        Raises:
            DataError: the file cannot be read, a column is missing (near names are given) or holds
                text; rows are named.
            FitError: numbers that are not positive, contradicting FLOPs, or an unknown convention;
                rows are named.

        Example:
            >>> RunTable.read("runs.csv", parameters="params", loss="val_loss")  # doctest: +SKIP
        """
        stated = {
            "counts": counts,
            "loss_unit": loss_unit,
            "tokenizer": tokenizer,
            "schedule": schedule,
        }
        place = Path(data).name if isinstance(data, Path | str) else "columns in memory"
        return cls._of_frame(
            read_frame(data), columns, stated, source or place, flops_factor, drop_invalid
        )

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
            store: store that holds the runs.
            kind: kind of the runs to take; empty for all.
            status: status of the runs to take; empty for all.
            tokenizer: one name, or the name of one of `columns`.
            schedule: see `read`; a run that is done need not have finished its learning-rate
                schedule.
            flops_factor: see `read`.
            drop_invalid: see `read`.
            **columns: quantity ("eval.bits_per_byte") or place in the recipe
                ("recipe.model.hidden_size") by the wanted name; parameters, tokens, loss and flops
                are model.parameters, train.tokens, eval.loss and train.flops.

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
            # A convention written as if it were a column, such as loss="nat/token".
            near = next((key for key, allowed in ALLOWED.items() if name in allowed), "")
            if near and name not in frame.columns:
                raise DataError(
                    f"{source} has no column {name!r} for {role}",
                    hint=f"to state a convention write {near}={name!r}",
                )
        own = [name for name in POSITIVE if name in frame.columns and name not in columns]
        roles = dict(zip(own, own, strict=True)) | dict(columns)
        numbers = number_columns(frame, roles, source)
        words = word_columns(frame, numbers)
        rows = np.arange(1, frame.height + 1)
        # A column of words that is called like a convention states it, unless the caller did.
        given = {name: words[name] for name in ALLOWED if name in words} | {
            name: words.get(
                value, np.array(numbers[value], dtype=np.str_) if value in numbers else value
            )
            for name, value in stated.items()
            if value != UNSTATED
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
        table = table._derived()
        refuse_flops(table.numbers, table.rows, source, flops_factor)
        return table

    def _derived(self) -> "RunTable":
        """Add the tokens or parameters that FLOPs and the other of the two give."""
        found = derived_size(self.numbers)
        added = {
            name: self.numbers["flops"]
            / (6 * self.numbers["tokens" if name == "parameters" else "parameters"])
            for name in found
        }
        return replace(self, numbers={**self.numbers, **added}, derived=found)

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
            hidden_size: column of widths, in place of architectures; exact up to position tables,
                which it does not know.
            vocab_size: rows of the token table, or the column that holds them.
            tied: whether the head is the token table again, with `hidden_size`.
            embedding_scale: h of the estimate h N^(1/3), in place of both, such as
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
        return conversions.to_counts(
            self,
            counts,
            conversions.parts_for(self, named, hidden_size, vocab_size, tied, embedding_scale),
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
        """Put tables below each other that state the same conventions.

        Args:
            tables: tables, at least one; columns that not all have are left out.

        Returns:
            All rows; their numbers count on from 1.

        Raises:
            FitError: a convention differs, or is unstated in one of several tables.
        """
        if not tables:
            raise FitError("no tables to put together", hint="pass at least one")
        _refuse_different(tables)
        first = tables[0]
        numbers = [name for name in first.numbers if all(name in table.numbers for table in tables)]
        words = [name for name in first.words if all(name in table.words for table in tables)]
        return replace(
            first,
            numbers={
                name: np.concatenate([table.numbers[name] for table in tables]) for name in numbers
            },
            words={name: np.concatenate([table.words[name] for table in tables]) for name in words},
            conventions=Conventions(
                **{
                    name: np.concatenate([getattr(table.conventions, name) for table in tables])
                    for name in ALLOWED
                }
            ),
            origin="; ".join(table.origin for table in tables),
            rows=np.arange(1, 1 + sum(table.num_runs for table in tables)),
            estimated=tuple(dict.fromkeys(name for table in tables for name in table.estimated)),
            num_dropped=sum(table.num_dropped for table in tables),
            derived={name: how for table in tables for name, how in table.derived.items()},
        )


def _refuse_different(tables: "Sequence[RunTable]") -> None:
    """Refuse tables whose conventions are not known to be the same."""
    for name in ALLOWED:
        holders = [table for table in tables if COLUMN_OF[name] in table]
        said = [table.conventions.one(name, table.rows) for table in holders]
        # Losses per byte compare whatever the tokenizer.
        if name == "tokenizer" and all(table.unit("loss").endswith("/byte") for table in holders):
            continue
        if len(said) > 1 and (UNSTATED in said or len(set(said)) > 1):
            shown = ", ".join(
                f"{word} ({table.origin})" for word, table in zip(said, holders, strict=True)
            )
            raise FitError(
                f"tables with different or unstated {name} cannot be put together: {shown}",
                hint=f"state {name}= when reading each; convert with to_counts or to_loss_unit "
                f"where they differ",
            )

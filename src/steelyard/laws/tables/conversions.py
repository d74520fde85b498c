"""Tables of runs in other units of loss, and tables put together."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.fitting.terms import Array
from steelyard.laws.tables.conventions import ALLOWED, UNSTATED, Conventions, name_rows

if TYPE_CHECKING:
    from steelyard.laws.registry import PublishedLaw
    from steelyard.laws.tables.table import RunTable

__all__ = ["concat", "convert_loss", "refuse_other_conventions", "to_loss_unit"]


def convert_loss(loss: Array, source: str, target: str, bytes_per_token: Array | None) -> Array:
    """Turn losses of one unit into another.

    Args:
        loss: losses in units of `source`, [n].
        source: "nat/token", "bit/token", "nat/byte" or "bit/byte".
        target: one of the same.
        bytes_per_token: mean UTF-8 bytes per token of the evaluation text, [n]; needed between per
            token and per byte.

    Returns:
        Losses in units of `target`, [n].

    Raises:
        FitError: a unit that is no cross-entropy, or bytes per token are missing.
    """
    able = ("nat/token", "bit/token", "nat/byte", "bit/byte")
    if source not in able or target not in able:
        raise FitError(
            f"cannot turn a loss in {source} into {target}", hint=f"convertible: {', '.join(able)}"
        )
    (number, per), (wanted, wanted_per) = source.split("/"), target.split("/")
    nats = loss * (np.log(2) if number == "bit" else 1.0)
    if per != wanted_per:
        if bytes_per_token is None:
            raise FitError(
                f"{source} into {target} needs the bytes per token of the evaluation text",
                hint="pass bytes_per_token=4.3",
            )
        nats = nats / bytes_per_token if per == "token" else nats * bytes_per_token
    return nats / (np.log(2) if wanted == "bit" else 1.0)


def to_loss_unit(
    table: "RunTable", loss_unit: str, bytes_per_token: float | str | Mapping[str, float] | None
) -> "RunTable":
    """Return a table's losses in another unit.

    Args:
        table: table that states its unit in every row.
        loss_unit: "nat/token", "bit/token", "nat/byte" or "bit/byte".
        bytes_per_token: mean UTF-8 bytes per token of the evaluation text: one number, a column of
            the table, a number per tokenizer, or None where per token and per byte do not meet.

    Returns:
        The table with converted losses.

    Raises:
        FitError: a row does not state its unit, or the units do not convert.
    """
    units = table.conventions.loss_unit
    silent = table.rows[units == UNSTATED]
    if len(silent):
        raise FitError(
            f"{table.origin}: {name_rows(silent)} do not state the unit of their loss",
            hint="state it: loss_unit='nat/token'",
        )
    ratio = _bytes_per_token(table, bytes_per_token)
    converted = table.numbers["loss"].copy()
    for source in np.unique(units):
        rows = units == source
        converted[rows] = convert_loss(
            converted[rows], str(source), loss_unit, None if ratio is None else ratio[rows]
        )
    return replace(
        table,
        numbers={**table.numbers, "loss": converted},
        conventions=table.conventions.with_word("loss_unit", loss_unit),
    )


def _bytes_per_token(
    table: "RunTable", given: float | str | Mapping[str, float] | None
) -> Array | None:
    """Resolve bytes per token to one number per row."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        words = table.conventions.tokenizer.tolist()
        missing = [word for word in dict.fromkeys(words) if word not in given]
        if missing:
            raise FitError(
                f"no bytes per token for tokenizer {', '.join(missing)}",
                hint=f"given: {', '.join(given)}",
            )
        ratio = np.array([given[word] for word in words], dtype=np.float64)
    else:
        ratio = table[given] if isinstance(given, str) else np.full(table.num_runs, float(given))
    if not (np.isfinite(ratio) & (ratio > 0)).all():
        raise FitError("bytes per token must be positive", hint="English text has about 4")
    return ratio


def concat(tables: "Sequence[RunTable]") -> "RunTable":
    """Put tables that state the same conventions below each other.

    Args:
        tables: at least one; columns that not all have are left out.

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
    )


def _refuse_different(tables: "Sequence[RunTable]") -> None:
    """Refuse tables whose conventions are not known to be the same."""
    for name in ALLOWED:
        owner = "parameters" if name == "counts" else "loss"
        holders = [table for table in tables if owner in table]
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


def refuse_other_conventions(table: "RunTable", law: "PublishedLaw") -> None:
    """Refuse a table that does not state the conventions of a published law.

    Args:
        table: table whose conventions are asked for.
        law: one of `published`; tokenizers matter only to losses per token.

    Raises:
        FitError: a convention differs, or the table does not state it.
    """
    tokenizer = law.tokenizer if law.loss_unit.endswith("/token") else ""
    for name, wanted, owner, hint in (
        ("counts", law.counts, "parameters", f"convert with table.to_counts({law.counts!r}, ...)"),
        (
            "loss_unit",
            law.loss_unit,
            "loss",
            f"convert with table.to_loss_unit({law.loss_unit!r}, ...)",
        ),
        (
            "tokenizer",
            tokenizer,
            "loss",
            "losses per token of two tokenizers do not compare; fit a law of your own",
        ),
    ):
        word = table.conventions.one(name, table.rows) if wanted and owner in table else wanted
        if word != wanted:
            hint = f"state {name}= when reading" if word == UNSTATED else hint
            raise FitError(f"{law.name} has {name} {wanted}, {table.origin} has {word}", hint=hint)

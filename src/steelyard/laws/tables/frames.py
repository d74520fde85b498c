"""Runs from files and run stores as plain columns of numbers and words."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import DataError, FitError
from steelyard.laws.fitting.terms import Array
from steelyard.laws.tables.conventions import Words, name_rows

if TYPE_CHECKING:
    import polars

    from steelyard.runs import RunStore
    from steelyard.runs.record import RunRecord

__all__ = [
    "POSITIVE",
    "derived_size",
    "number_columns",
    "pick",
    "positive_rows",
    "refuse_flops",
    "store_frame",
    "word_columns",
]

POSITIVE = ("parameters", "tokens", "samples", "bytes", "loss", "flops")
"""Columns that hold positive numbers."""

_STORE_COLUMNS = {
    "parameters": "model.parameters",
    "tokens": "train.tokens",
    "loss": "eval.loss",
    "flops": "train.flops",
}


def pick(wanted: str, names: Iterable[str], where: str) -> str:
    """Return `wanted` when it is one of `names`; refuse it with the nearest names otherwise.

    Args:
        wanted: name of a column.
        names: names of all columns.
        where: what holds them, for the message.

    Returns:
        The name.

    Raises:
        DataError: no such column.
    """
    known = list(names)
    if wanted in known:
        return wanted
    lower = {name.lower(): name for name in known}
    near = [
        lower[name] for name in difflib.get_close_matches(wanted.lower(), lower, n=3, cutoff=0.5)
    ]
    shown = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")
    raise DataError(
        f"{where} has no column {wanted!r}",
        hint=f"did you mean {' or '.join(near)}?" if near else f"it has {shown or 'none'}",
    )


def number_columns(
    frame: "polars.DataFrame", roles: Mapping[str, str], where: str
) -> dict[str, Array]:
    """Take the columns of numbers as float64.

    Args:
        frame: the table.
        roles: name of a column here, by the name it is to have; these must hold numbers in every
            row.
        where: what the table is, for messages.

    Returns:
        The columns of `roles`, then all other numeric ones under their own names; a missing number
        there is NaN.

    Raises:
        DataError: a column of `roles` is missing, or holds text or nothing in some row.
    """
    found = {
        role: _numbers(frame, pick(name, frame.columns, where), role, where)
        for role, name in roles.items()
    }
    taken = set(roles.values())
    for name in frame.columns:
        if (
            name not in taken
            and name not in found
            and (frame[name].dtype.is_numeric() or str(frame[name].dtype) == "Boolean")
        ):
            found[name] = _plain(frame, name)
    return found


def word_columns(frame: "polars.DataFrame", numbers: Mapping[str, Array]) -> dict[str, Words]:
    """Take all columns of text; a missing word is empty.

    Args:
        frame: the table.
        numbers: columns that were already taken.

    Returns:
        The columns, [n] words each.
    """
    return {
        name: np.array(frame[name].cast(str).fill_null("").to_list(), dtype=np.str_)
        for name in frame.columns
        if name not in numbers and str(frame[name].dtype).startswith(("String", "Categorical"))
    }


def _numbers(frame: "polars.DataFrame", name: str, role: str, where: str) -> Array:
    """Take a column that must be numbers, or name the rows that are not."""
    column = frame[name]
    called = name if name == role else f"{name} ({role})"
    if str(column.dtype) == "String":
        numbers = column.str.strip_chars().cast(float, strict=False)
        bad = np.flatnonzero((numbers.is_null() & column.is_not_null()).to_numpy())
        if len(bad):
            raise DataError(
                f"{where}: column {called} holds text in {name_rows(bad + 1)} (first: "
                f"{column[int(bad[0])]!r}; the first row is 1)",
                hint="remove units and words from it",
            )
        frame = frame.with_columns(numbers.alias(name))
    elif not column.dtype.is_numeric():
        raise DataError(
            f"{where}: column {called} holds {column.dtype}, not numbers",
            hint="choose another column",
        )
    values = _plain(frame, name)
    empty = np.flatnonzero(frame[name].is_null().to_numpy())
    if len(empty):
        raise DataError(
            f"{where}: column {called} is empty in {name_rows(empty + 1)} (the first row is 1)",
            hint="fill or drop these rows",
        )
    return values


def _plain(frame: "polars.DataFrame", name: str) -> Array:
    """Turn a numeric or boolean column into float64, missing as NaN."""
    return np.array(frame[name].cast(float).fill_null(float("nan")).to_numpy(), dtype=np.float64)


def store_frame(
    store: "RunStore", columns: Mapping[str, str], *, kind: str, status: str
) -> tuple["polars.DataFrame", dict[str, str]]:
    """Make a table of a run store, one row per run, oldest first.

    Args:
        store: store that holds the runs.
        columns: measured quantity ("eval.loss") or place in the recipe ("recipe.data.tokens") by
            the wanted name; parameters, tokens, loss and flops are their quantities unless given.
        kind: kind of the runs; empty for all.
        status: status of the runs, such as "done"; empty for all.

    Returns:
        The table with run, name, seed and the columns, and by column what it was taken from.

    Raises:
        DataError: no run matches, or a run lacks a value that was asked for; run and column are
            named.
    """
    import polars

    runs = [run for run in reversed(store.list(kind=kind)) if not status or run.status == status]
    if not runs:
        raise DataError(
            f"the store holds no {kind or 'run'} with status {status or 'any'}",
            hint="see: steelyard runs list",
        )
    places = {**_STORE_COLUMNS, **columns}
    body = {name: [_value(run, place) for run in runs] for name, place in places.items()}
    for name, place in list(places.items()):
        # A default column that no run measured is left out, and FLOPs too when some did not: they
        # are 6 N D then. What the caller named must be there.
        missing = [run.id for run, value in zip(runs, body[name], strict=True) if value is None]
        if missing and (name in columns or (len(missing) < len(runs) and name != "flops")):
            raise DataError(
                f"run {missing[0]}{f' and {len(missing) - 1} more' if len(missing) > 1 else ''} "
                f"has no {place} for column {name}",
                hint="choose runs with kind= that all measured it, or name another quantity",
            )
        if missing:
            del places[name], body[name]
    head = {
        "run": [run.id for run in runs],
        "name": [run.name for run in runs],
        "seed": [run.seed for run in runs],
    }
    return polars.DataFrame({**head, **body}, strict=False), places


def _value(run: "RunRecord", place: str) -> Any:
    """Look a value up: the last measurement of a quantity, or a dotted place of the recipe."""
    for measurement in reversed(run.measurements):
        if measurement.quantity == place:
            return measurement.value
    if not place.startswith("recipe."):
        return None
    value: Any = run.recipe
    for key in place.split(".")[1:]:
        value = value.get(key) if isinstance(value, Mapping) else None
    return None if isinstance(value, Mapping | Sequence) and not isinstance(value, str) else value


def positive_rows(
    numbers: Mapping[str, Array],
    called: Mapping[str, str],
    rows: NDArray[np.int64],
    where: str,
    drop: bool,
) -> NDArray[np.bool_]:
    """Say which rows have positive sizes and losses.

    Args:
        numbers: columns, [n] each.
        called: names in the source, for columns that have another one here.
        rows: numbers of the rows, for messages.
        where: what the table is.
        drop: whether other rows may be left out.

    Returns:
        True for the rows to keep, [n].

    Raises:
        FitError: a row has to be left out and may not be; column and rows are named.
        DataError: no row is left.
    """
    keep = np.ones(len(rows), dtype=np.bool_)
    for name in (name for name in POSITIVE if name in numbers):
        good = np.isfinite(numbers[name]) & (numbers[name] > 0)
        bad = np.flatnonzero(~good)
        if len(bad) and not drop:
            raise FitError(
                f"{where}: {called.get(name, name)} must be positive and finite; it is not in "
                f"{name_rows(rows[bad])} "
                f"(first: {numbers[name][bad[0]]:g}; the first row is 1)",
                hint="a loss of NaN is a diverged run: drop_invalid=True leaves such rows out and "
                "counts them",
            )
        keep &= good
    if not keep.any():
        raise DataError(
            f"{where} holds no run with positive sizes and losses",
            hint="a table needs one run per row below its heads",
        )
    return keep


def derived_size(numbers: Mapping[str, Array]) -> dict[str, str]:
    """Name the size that a table lacks and its FLOPs give.

    Args:
        numbers: columns, [n] each.

    Returns:
        "parameters" or "tokens" with the formula, where the other and "flops" are there.
    """
    pair = ("parameters", "tokens")
    missing = [name for name in pair if name not in numbers]
    if len(missing) != 1 or "flops" not in numbers:
        return {}
    other = pair[1 - pair.index(missing[0])]
    return {missing[0]: f"flops / (6 {other})"}


def refuse_flops(
    numbers: Mapping[str, Array], rows: NDArray[np.int64], where: str, factor: float
) -> None:
    """Refuse FLOPs far from 6 parameters * tokens.

    Args:
        numbers: columns, [n] each.
        rows: numbers of the rows, for messages.
        where: what the table is.
        factor: how far is too far, at least 1.

    Raises:
        FitError: a row's FLOPs are too far off; rows are named.
    """
    if not {"flops", "parameters", "tokens"} <= set(numbers):
        return
    ratio = numbers["flops"] / (6 * numbers["parameters"] * numbers["tokens"])
    bad = np.flatnonzero(np.abs(np.log(ratio)) > np.log(factor) + 1e-9)
    if len(bad):
        raise FitError(
            f"{where}: flops is not within a factor {factor:g} of 6 parameters * tokens in "
            f"{name_rows(rows[bad])} "
            f"(first: {ratio[bad[0]]:.3g} times)",
            hint="check units (FLOP, tokens, not billions) and which parameters are counted, or "
            "pass flops_factor=math.inf",
        )

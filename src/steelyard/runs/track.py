"""How good a forecaster has been on this machine so far, read from the user's own ledger."""

import contextlib
import math
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard.files import user_dir

__all__ = ["FormPast", "FormsBefore", "replay_forms", "track_record"]

_SHARE = 0.9
_QUERY = "SELECT quantity, value, measured FROM checks WHERE forecaster = ? AND machine = ?"


_LOSS = "eval.loss"
_PREFIX = "laws."
_JOINT = "laws.forecast"
"""Forecaster that joins the forms, and is none of them."""
_FORMS = """
SELECT run_id, forecaster, value, low, high, measured, time_s FROM checks
WHERE quantity = ? AND substr(forecaster, 1, ?) = ? AND forecaster != ?
ORDER BY MIN(time_s) OVER (PARTITION BY run_id), MIN("row") OVER (PARTITION BY run_id), "row"
"""


@dataclass(frozen=True, slots=True)
class FormPast:
    """How one form of a law has done.

    Attributes:
        runs: runs it forecast.
        held: those whose loss fell into its 80 % interval.
        contests: those that other forms forecast too.
        wins: those of them where it was nearest.
    """

    runs: int = 0
    held: int = 0
    contests: int = 0
    wins: int = 0

    def __str__(self) -> str:
        """Say it in words."""
        nearest = f"nearest in {self.wins} of {self.contests}, " if self.contests else ""
        return f"{nearest}held {self.held} of {self.runs}"

    def after(self, *, held: bool, rivals: int, nearest: bool) -> "FormPast":
        """Count one run more.

        Args:
            held: whether its interval held the loss.
            rivals: other forms that forecast the run.
            nearest: whether none was nearer.

        Returns:
            The new counts.
        """
        contest = rivals > 0
        return FormPast(
            self.runs + 1,
            self.held + held,
            self.contests + contest,
            self.wins + (contest and nearest),
        )


@dataclass(frozen=True, slots=True)
class FormsBefore:
    """What stood before a run was measured.

    Attributes:
        run_id: the run.
        time_s: when it was measured.
        past: counts by form.
    """

    run_id: str
    time_s: float
    past: dict[str, FormPast]


def track_record(forecaster: str) -> dict[str, str]:
    """Sum up how near a forecaster has come to what was measured on this machine.

    The store's own reader loads libraries that take longer than most answers, and makes tables
    where there are none; this one reads a file that is there and leaves everything as it was.

    Args:
        forecaster: name in the ledger, such as "cost.training_step".

    Returns:
        By quantity, such as "within 12 % in 9 of 10 so far"; empty without a record.
    """
    errors: dict[str, list[float]] = {}
    for quantity, value, measured in _read(None, _QUERY, (forecaster, "this-machine")):
        if measured:
            errors.setdefault(quantity, []).append(abs(value / measured - 1))
    return {quantity: _words(sorted(found)) for quantity, found in errors.items()}


def replay_forms(store: Path | None = None) -> list[FormsBefore]:
    """Tell run by run how each form of a law had done on the loss before that run was measured.

    A form wins a run where its forecast was nearest among two forms or more; forms that lie equally
    near win both. Runs are taken in the order in which they were measured, whatever the order in
    which they were written down.

    Args:
        store: folder of the run store; None for the user's own.

    Returns:
        One entry per measured run, oldest first, and a last one without a name: what stands now.
    """
    runs: dict[str, list[tuple[str, float, float, float, float, float]]] = {}
    for run_id, *row in _read(store, _FORMS, (_LOSS, len(_PREFIX), _PREFIX, _JOINT)):
        runs.setdefault(run_id, []).append(tuple(row))  # pyright: ignore[reportArgumentType]
    past: dict[str, FormPast] = {}
    found: list[FormsBefore] = []
    for run_id, rows in runs.items():
        found.append(FormsBefore(run_id, min(row[-1] for row in rows), dict(past)))
        off = [abs(value - measured) for _, value, _, _, measured, _ in rows]
        for (forecaster, _, low, high, measured, _), error in zip(rows, off, strict=True):
            name = forecaster.removeprefix(_PREFIX)
            past[name] = past.get(name, FormPast()).after(
                held=low <= measured <= high, rivals=len(rows) - 1, nearest=error == min(off)
            )
    return [*found, FormsBefore("", math.inf, past)]


def _read(store: Path | None, query: str, given: tuple[str | int, ...]) -> list[tuple[Any, ...]]:
    """Ask a store's database without changing it; nothing where there is none to ask."""
    place = (store or user_dir() / "runs") / "runs.sqlite"
    if not place.is_file():
        return []
    # A ledger that is locked, damaged or of another version is no reason to withhold an answer.
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(
            sqlite3.connect(f"{place.resolve().as_uri()}?mode=ro", uri=True, timeout=0.1)
        ) as connection,
    ):
        return connection.execute(query, given).fetchall()
    return []


def _words(errors: list[float]) -> str:
    """Say within what nine tenths of the errors lie."""
    count = math.ceil(_SHARE * len(errors))
    return f"within {100 * errors[count - 1]:.2g} % in {count} of {len(errors)} so far"

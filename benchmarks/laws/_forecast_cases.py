"""One question to a forecaster per table and cut, asked with what was known below the cut."""

import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
from benchmarks.laws._forecast_tables import Table
from numpy.typing import NDArray

from steelyard.errors import FitError, SteelyardWarning
from steelyard.laws.decisions.forecasting.entrants import LARGEST_RUN
from steelyard.laws.decisions.forecasting.forecast import ensemble
from steelyard.laws.decisions.forecasting.scale import doubt
from steelyard.laws.fitting.terms import Array

__all__ = ["Answer", "Case", "answers", "cases"]

_FEWEST_BELOW = 8
_REACH = 3.0
_EDGE = 1e-9
_MOST_TARGETS = 60
"""Runs beyond a cut that are asked for; more of one table would be checkpoints of the same runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A cut of a table.

    Attributes:
        table: the runs.
        cut: largest size that is known.
        known: rows below the cut, [n].
        asked: rows at three times the cut or more, [n].
    """

    table: Table
    cut: float
    known: NDArray[np.bool_]
    asked: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What came of one case.

    Attributes:
        case: the question.
        error: log forecast minus log measured, [m].
        doubt: what the interval is made of, on the side of the error, [m].
        reach: factors of e beyond the largest known run, [m].
        alone: log errors of each form fitted alone to the known runs, and of the largest run, [m].
    """

    case: Case
    error: Array
    doubt: Array
    reach: Array
    alone: dict[str, Array]


def cases(tables: list[Table], most_cuts: int) -> list[Case]:
    """List the cuts with eight runs below and a run at three times the size or more.

    Args:
        tables: what is asked about.
        most_cuts: cuts per table, evenly in the log of size.

    Returns:
        The cases; ladders have one each, their larger run.
    """
    return [case for table in tables for case in _cases_of(table, most_cuts)]


def answers(asked: list[Case], processes: int) -> list[Answer]:
    """Ask the forecaster, a case per process at a time.

    Args:
        asked: the cases.
        processes: worker processes.

    Returns:
        The answers; a case that no form can be fitted to is left out and printed.
    """
    with ProcessPoolExecutor(processes) as pool:
        found = list(pool.map(_answer, asked, chunksize=4))
    for case, answer in zip(asked, found, strict=True):
        if answer is None:
            print(f"no answer: {case.table.name} at {case.cut:.3g}")
    return [answer for answer in found if answer is not None]


def _cases_of(table: Table, most_cuts: int) -> list[Case]:
    """List one table's cases."""
    if not table.targets.all():
        rows = np.flatnonzero(table.targets)
        cut = float(table.size[~table.targets].max())
        return [Case(table=table, cut=cut, known=~table.targets, asked=rows)]
    found = []
    for cut in np.unique(table.size):
        known = table.size <= cut * (1 + _EDGE)
        rows = np.flatnonzero(table.size >= _REACH * cut * (1 - _EDGE))
        if known.sum() >= _FEWEST_BELOW and len(rows):
            found.append(Case(table=table, cut=float(cut), known=known, asked=_some(table, rows)))
    if len(found) <= most_cuts:
        return found
    cuts = np.log([case.cut for case in found])
    wanted = np.linspace(cuts[0], cuts[-1], most_cuts) if most_cuts > 1 else [cuts.mean()]
    return [
        found[index]
        for index in np.unique(np.abs(cuts[:, None] - np.asarray(wanted)).argmin(axis=0))
    ]


def _some(table: Table, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Keep rows evenly by size where there are many."""
    if len(rows) <= _MOST_TARGETS:
        return rows
    order = rows[np.argsort(table.size[rows], kind="stable")]
    return order[np.linspace(0, len(rows) - 1, _MOST_TARGETS).round().astype(np.int64)]


def _answer(case: Case) -> Answer | None:
    """Forecast one case."""
    table = case.table
    at = {name: column[case.asked] for name, column in table.inputs.items()}
    points = {name: column[case.known] for name, column in table.inputs.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SteelyardWarning)
        try:
            found = ensemble(points, table.loss[case.known])
            found.predict(at)
        except FitError:
            return None
    at = {name: at[name] for name in found.rolling.inputs}
    measured = np.log(table.loss[case.asked])
    said = found.rolling.ask(at)
    reach = found.reach(at)
    low, high = doubt(found.stacked, said, reach)
    error = found.stacked.weights @ np.nan_to_num(said) - measured
    plain = said - found.rolling.shift[-1][:, None]
    alone = {
        item.name: own - measured
        for item, own in zip(found.rolling.entrants, plain, strict=True)
        if not item.fall and (item.law is not None or item.name == LARGEST_RUN)
    }
    return Answer(
        case=case, error=error, doubt=np.where(error > 0, low, high), reach=reach, alone=alone
    )

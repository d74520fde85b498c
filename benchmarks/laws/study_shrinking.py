"""How much of published studies a forecast of their largest run could have done without.

Every published table of runs in parameters and tokens is asked for its largest run: the other
runs are the study, `laws.studies.shrink` leaves out what the forecast can spare, and the
forecast from the rest is compared with what was measured. A table is asked once more as a study
from which one still extrapolates: only runs of a third of the largest one's compute or less.
Tables of checkpoints take part where more than eight runs were trained; a run goes with all of its
checkpoints. What the largest run came to is not used by the search. With `quick` four tables of
about thirty runs take part, in the first way only.
"""

import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
from benchmarks.common import Check
from benchmarks.laws._forecast_tables import Table, read_tables

from steelyard.errors import FitError, SteelyardWarning
from steelyard.laws.decisions.forecasting.shrink import shrink

PAPER = []

_INPUTS = {"parameters", "tokens"}
_REACH = 3.0
_FEWEST = 8
_QUICK = 4
_QUICK_ROWS = 35
_EDGE = 1e-9
_WAYS = {"all others": 1.0, "a third or less": _REACH}


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """What came of one table.

    Attributes:
        table: its name.
        way: which runs were the study.
        runs: how many they were.
        saved: share of their compute that could go.
        whole_held: whether the interval of the whole study held the largest run.
        held: whether that of the smaller study did.
        error: relative error of the smaller study's forecast.
        whole_error: that of the whole study's.
        wider: how many times as wide the interval became.
    """

    table: str
    way: str
    runs: int
    saved: float
    whole_held: bool
    held: bool
    error: float
    whole_error: float
    wider: float


def run(quick: bool) -> list[Check]:
    """Shrink every study and look whether the largest run still lies in the interval."""
    tables = [item for item in read_tables() if {*item.inputs} == _INPUTS and item.targets.all()]
    tables = [item for item in tables if len(np.unique(item.runs.astype(str))) > _FEWEST]
    if quick:
        small = [item for item in tables if len(item.loss) <= _QUICK_ROWS]
        tables = small[:: max(len(small) // _QUICK, 1)][:_QUICK]
    ways = list(_WAYS)[:1] if quick else list(_WAYS)
    asked = [(item, way) for way in ways for item in tables]
    with ProcessPoolExecutor(2) as pool:
        found = [answer for answer in pool.map(_ask, asked) if answer is not None]
    checks = []
    for way in ways:
        own = [answer for answer in found if answer.way == way]
        _print(own)
        checks += _checks(own, way)
    return checks


def _ask(asked: tuple[Table, str]) -> _Answer | None:
    """Shrink one study; None where it is too small to forecast from."""
    table, way = asked
    largest = int(table.size.argmax())
    known = table.size <= table.size[largest] / _WAYS[way] * (1 + _EDGE)
    known &= table.runs != table.runs[largest]
    points = {name: column[known] for name, column in table.inputs.items()}
    at = {name: float(column[largest]) for name, column in table.inputs.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SteelyardWarning)
        try:
            found = shrink(
                {**points, "flops": table.size[known]},
                table.loss[known],
                at=at,
                runs=table.runs[known].astype(str),
            )
        except FitError as error:
            print(f"{table.name}, {way}: {error}")
            return None
    measured = float(table.loss[largest])
    ends = [np.log(said.high[0] / said.low[0]) for said in (found.shrunk, found.whole)]
    held = [bool(said.low[0] <= measured <= said.high[0]) for said in (found.shrunk, found.whole)]
    errors = [abs(said.value[0] / measured - 1) for said in (found.shrunk, found.whole)]
    return _Answer(
        table=table.name,
        way=way,
        runs=len(set(found.runs.tolist())),
        saved=found.saved_fraction,
        held=held[0],
        whole_held=held[1],
        error=float(errors[0]),
        whole_error=float(errors[1]),
        wider=float(ends[0] / ends[1]),
    )


def _print(found: list[_Answer]) -> None:
    """Show a line per table."""
    print(f"{found[0].way:55s} runs  saved  wider  error (whole)    held (whole)")
    for item in found:
        print(
            f"{item.table:55s} {item.runs:4d} {item.saved:6.0%} {item.wider:6.2f} {item.error:6.2%}"
            f" ({item.whole_error:6.2%}) {item.held!s:>6s} ({item.whole_held})"
        )


def _checks(found: list[_Answer], way: str) -> list[Check]:
    """Score the tables of one way to ask."""
    held = float(np.mean([item.held for item in found]))
    whole = float(np.mean([item.whole_held for item in found]))
    print(
        f"{way}: {len(found)} tables, median {np.median([item.saved for item in found]):.0%} of "
        f"the compute saved; largest run inside {held:.0%} of the intervals, {whole:.0%} of those "
        f"of the whole studies"
    )
    spared = float(np.mean([item.saved >= 0.3 for item in found]))
    checks = [Check(f"tables that save 30 % of compute [{way}]", spared, 0.5, "higher")]
    if len(found) > _QUICK:
        checks += [
            Check(f"largest run held by the smaller study, at least [{way}]", held, 0.7, "higher"),
            Check(f"largest run held by the smaller study, at most [{way}]", held, 0.9, "lower"),
        ]
    return checks

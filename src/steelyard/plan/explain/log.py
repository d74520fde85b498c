"""Measured steps of a job: step by step, and where it is known rank by rank and term by term."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import DataError, SteelyardError, merged
from steelyard.laws.tables.files import read_frame
from steelyard.plan.explain.terms import TERMS
from steelyard.units import pretty

if TYPE_CHECKING:
    import polars

__all__ = ["LEAST_STEPS", "StepLog", "read_step_log"]

Array = NDArray[np.float64]

LEAST_STEPS = 8
"""Fewer steps say nothing of what is usual."""
_TIMES = ("step_time_s", *TERMS, "product_s")
_OVERFULL = 1.02
_SLOW_CLOCK, _WRONG_CLOCK = 0.01, 0.05
_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class StepLog:
    """Times of S steps on R ranks; a log without ranks has one column, the mean of all ranks.

    Attributes:
        steps: [S] numbers of the steps, rising.
        ranks: [R] numbers of the ranks; empty for a log without ranks.
        step_s: [S, R] seconds of each step.
        terms: [S, R] seconds by term, those that were logged; "product_s" is a part of "compute_s".
        notes: what was left out or looks odd.
    """

    steps: NDArray[np.int64]
    ranks: NDArray[np.int64]
    step_s: Array
    terms: dict[str, Array] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def job_step_s(self) -> Array:
        """Seconds of each step, the median of its ranks, [S]: they end it together."""
        return np.median(self.step_s, axis=1)

    @property
    def rest_s(self) -> Array:
        """Seconds of each step that no term accounts for, [S, R]."""
        return self.step_s - sum((self.terms[name] for name in TERMS if name in self.terms), 0.0)


def read_step_log(path: Path) -> StepLog:
    """Read the measured steps of a job.

    A file has a column `step` and `step_time_s`, or `start_s` (when the step began, seconds of any
    clock); with `rank` it has one row per step and rank. Terms of a step may stand beside, in
    seconds that exclude one another: those of `TERMS`, and `product_s`, the part of `compute_s` in
    matrix products. Names ending in `_ms` are milliseconds. A folder is that of a run of this
    package's trainer.

    Args:
        path: CSV, JSON-lines or Parquet file, or the folder of a run.

    Returns:
        The steps that all ranks have.

    Raises:
        DataError: columns are missing, values are no times, ranks have no common steps, terms
            add up to more than their step, or clocks contradict each other.
    """
    if path.is_dir():
        return _own_run(path)
    if not path.exists():
        raise DataError(
            f"no such log: {path}", hint="name a CSV or JSON-lines file, or the folder of a run"
        )
    frame, notes = _renamed(read_frame(path))
    _check_columns(frame.columns, str(path))
    table = {name: _numbers(frame, name, str(path)) for name in _used(frame.columns)}
    return _checked(_by_step(table, notes, str(path)), str(path))


def _own_run(folder: Path) -> StepLog:
    """Read the step times of this package's trainer from a run's last checkpoint."""
    from steelyard.train.checkpoint import CheckpointStore, load_checkpoint

    store = CheckpointStore(folder)
    if not store.steps():
        raise DataError(
            f"{folder} holds no checkpoint of a run", hint="name the folder of `train run --out`"
        )
    found = load_checkpoint(store.path(store.steps()[-1])).tensors
    if "history.step_times_s" not in found:
        raise DataError(f"the checkpoint in {folder} has no step times", hint="train it anew")
    warm = ~found["history.cold"].numpy()
    log = StepLog(
        steps=np.flatnonzero(warm),
        ranks=np.zeros(0, dtype=np.int64),
        step_s=found["history.step_times_s"].numpy()[warm][:, None],
        notes=(f"{int((~warm).sum())} first steps after a start were left out",),
    )
    return _checked(log, str(folder))


def _renamed(frame: "polars.DataFrame") -> "tuple[polars.DataFrame, list[str]]":
    """Turn milliseconds into seconds, and say which columns are not used."""
    import polars

    for name in frame.columns:
        other = f"{name.removesuffix('_ms')}_s"
        if name.endswith("_ms") and other in (*_TIMES, "start_s") and other not in frame.columns:
            column = polars.col(name).cast(polars.Float64, strict=False) / 1000
            frame = frame.with_columns(column.alias(other)).drop(name)
    unused = [name for name in frame.columns if name not in _used(frame.columns)]
    return frame, [f"columns that are not used: {', '.join(unused)}"] if unused else []


def _used(names: Sequence[str]) -> list[str]:
    return [name for name in ("step", "rank", "start_s", *_TIMES) if name in names]


def _check_columns(names: Sequence[str], where: str) -> None:
    """Refuse a table that does not say which step took how long."""
    wrong: list[SteelyardError] = []
    told = f"it has {', '.join(names) or 'none'}"
    if "step" not in names:
        wrong.append(DataError(f"no column step; {told}", hint="number the steps"))
    if not {"step_time_s", "start_s"} & set(names):
        hint = "log step_time_s, seconds, or step_time_ms, or start_s"
        wrong.append(DataError(f"no column step_time_s; {told}", hint=hint))
    if wrong:
        raise merged(wrong, where=where)


def _numbers(frame: "polars.DataFrame", name: str, where: str) -> Array:
    """Return a column as numbers, or refuse what is none."""
    import polars

    column = frame[name].cast(polars.Float64, strict=False).fill_null(np.nan)
    values = column.to_numpy()
    good = np.isfinite(values)
    if name in ("step", "rank"):
        good &= (values >= 0) & (values == np.floor(values))
        allowed = "a whole number of at least 0"
    else:
        good &= values > 0 if name == "step_time_s" else values >= 0
        allowed = "seconds above 0" if name == "step_time_s" else "seconds of 0 or more"
    bad = np.flatnonzero(~good)
    if len(bad):
        rows = ", ".join(f"row {place + 2}: {frame[name][int(place)]!r}" for place in bad[:_SHOWN])
        raise DataError(
            f"{where}: {len(bad)} of {len(values)} values of {name} are not {allowed} ({rows})",
            hint="correct or remove these rows",
        )
    return values


def _by_step(table: dict[str, Array], notes: list[str], where: str) -> StepLog:
    """Lay rows out by step and rank; of a step that is there twice the last row counts."""
    has_ranks = "rank" in table
    rank = table.get("rank", np.zeros(len(table["step"])))
    # A run that is resumed repeats steps: the later row is the one that counts.
    keys = np.stack([table["step"], rank], axis=1)[::-1]
    _, first = np.unique(keys, axis=0, return_index=True)
    kept = np.sort(len(rank) - 1 - first)
    if len(kept) < len(rank):
        notes = [*notes, f"{len(rank) - len(kept)} rows repeat a step, and the last one counts"]
    table = {name: values[kept] for name, values in table.items()}
    steps, row = np.unique(table["step"].astype(np.int64), return_inverse=True)
    ranks, column = np.unique(rank[kept].astype(np.int64), return_inverse=True)
    full = np.bincount(row, minlength=len(steps)) == len(ranks)
    if not full.all():
        notes = [*notes, f"{int((~full).sum())} steps are left out, as not all ranks have them"]

    def grid(values: Array) -> Array:
        found = np.full((len(steps), len(ranks)), np.nan)
        found[row, column] = values
        return found[full]

    times = {name: grid(values) for name, values in table.items() if name not in ("step", "rank")}
    if full.sum() < LEAST_STEPS:
        missing = [
            f"rank {ranks[place]} has {count}"
            for place, count in enumerate(np.bincount(column, minlength=len(ranks)))
        ]
        told = f" ({', '.join(missing[:8])})" if has_ranks else ""
        raise DataError(
            f"{where}: {int(full.sum())} of {len(steps)} steps are there for all ranks{told}, but "
            f"at least {LEAST_STEPS} are needed",
            hint="log more steps, the same ones on every rank",
        )
    return _timed(steps[full], ranks if has_ranks else ranks[:0], times, notes, where)


def _timed(
    steps: NDArray[np.int64],
    ranks: NDArray[np.int64],
    times: dict[str, Array],
    notes: list[str],
    where: str,
) -> StepLog:
    """Check the clocks, and take the times of steps from them where none were logged."""
    start = times.pop("start_s", None)
    if start is not None:
        backwards = np.argwhere(np.diff(start, axis=0) < 0)
        if len(backwards):
            row, column = backwards[0]
            who = f"rank {ranks[column]}" if len(ranks) else "the log"
            raise DataError(
                f"{where}: start_s of {who} goes back from step {steps[row]} to step "
                f"{steps[row + 1]}, so its clock was set",
                hint="log a clock that only goes forward, such as time.monotonic",
            )
        notes = [*notes, *_clock_notes(start, ranks)]
    step_s = times.pop("step_time_s", None)
    if step_s is None:
        assert start is not None  # one of the two is there, as the columns were checked
        # The last step has no end; gaps in the numbers hide other steps.
        near = np.diff(steps) == 1
        step_s = np.diff(start, axis=0)[near]
        steps = steps[:-1][near]
        times = {name: values[:-1][near] for name, values in times.items()}
    return StepLog(steps=steps, ranks=ranks, step_s=step_s, terms=times, notes=tuple(notes))


def _clock_notes(start: Array, ranks: NDArray[np.int64]) -> list[str]:
    """Say which ranks' clocks are ahead of the others' or behind them."""
    if start.shape[1] < 2:
        return []
    ahead = np.median(start - np.median(start, axis=1, keepdims=True), axis=0)
    usual = float(np.median(np.diff(start, axis=0)))
    return [
        f"the clock of rank {ranks[place]} is {pretty(abs(float(ahead[place])), 's')} "
        f"{'ahead' if ahead[place] > 0 else 'behind'}: its times are compared within the rank"
        for place in np.flatnonzero(np.abs(ahead) > 0.5 * usual)
    ]


def _checked(log: StepLog, where: str) -> StepLog:
    """Refuse clocks that run at other rates, and terms that overlap."""
    wrong: list[SteelyardError] = []
    notes = list(log.notes)
    if len(log.steps) < LEAST_STEPS:
        wrong.append(
            DataError(
                f"{len(log.steps)} steps, but at least {LEAST_STEPS} are needed",
                hint="log more steps",
            )
        )
    still = int((log.step_s <= 0).sum())
    if still:
        wrong.append(DataError(f"{still} steps begin when the one before does", hint="log seconds"))
    rate = log.step_s.sum(axis=0) / max(float(log.job_step_s.sum()), 1e-300)
    for place in np.flatnonzero(np.abs(rate - 1) > _SLOW_CLOCK).tolist() if len(log.ranks) else ():
        told = f"steps of rank {log.ranks[place]} last {rate[place]:.3f} times as long as others'"
        # Ranks of a synchronous job end every step together.
        if abs(rate[place] - 1) > _WRONG_CLOCK:
            hint = "check that all ranks are of one job and log whole steps"
            wrong.append(DataError(f"{told}, though ranks end steps together", hint=hint))
        else:
            notes.append(f"{told}: its clock runs at another rate")
    parts: Any = sum((log.terms[name] for name in TERMS if name in log.terms), np.zeros(1))
    overfull = np.median(parts / np.maximum(log.step_s, 1e-12)) if len(log.steps) else 0.0
    if overfull > _OVERFULL:
        wrong.append(
            DataError(
                f"terms add up to {overfull:.2f} times their step",
                hint="log what a rank waits for or works on, without what runs beside it",
            )
        )
    if wrong:
        raise merged(wrong, where=where)
    return replace(log, notes=tuple(notes))

"""What a study will take: a few steps of each model are timed, in the way the study runs them."""

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from steelyard import files
from steelyard.config import convert, to_plain
from steelyard.quantity import Forecast
from steelyard.train.config import TrainConfig
from steelyard.train.study.cells import Cell
from steelyard.train.study.order import makespan
from steelyard.train.study.processes import TrainProcesses

__all__ = ["CellPace", "forecast_time", "probe"]

_PROBE_STEPS = 16
_SAVED_AT = 8
_COMMON_Z = 1.28
_LEAST_SPREAD = 0.08
"""Relative deviation of a long run's speed from that of a short probe, at the least (assumed)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellPace:
    """How fast a model trains here.

    Attributes:
        step_s: seconds of a step, median.
        spread: robust standard deviation of it, over the median.
        overhead_s: seconds of a run beside what else is named here: model, first steps, result.
        evaluation_s: seconds of an evaluation, averages included.
        save_s: seconds of a checkpoint.
    """

    step_s: float
    spread: float
    overhead_s: float
    evaluation_s: float
    save_s: float

    def seconds(self, cell: Cell) -> float:
        """Return what a cell takes, evaluations and checkpoints included."""
        return self.beside_s(cell) + cell.steps * self.step_s

    def beside_s(self, cell: Cell) -> float:
        """Return what a cell takes beside its steps."""
        config = cell.config
        evaluations, saves = 1, 1 + len(config.checkpoint_at)
        if config.eval_every:
            evaluations = max(-(-config.steps // config.eval_every), 1)
        if config.checkpoint_every:
            saves += cell.steps // config.checkpoint_every
        return self.overhead_s + evaluations * self.evaluation_s + saves * self.save_s


def probe(
    cells: Sequence[Cell], directory: Path, processes: TrainProcesses, pool: Executor, *, jobs: int
) -> dict[str, CellPace]:
    """Time a few steps of every model, as many at once as the study will run.

    Args:
        cells: the study.
        directory: where the times are kept; a later call reads them.
        processes: what trains.
        pool: runs `jobs` at once.
        jobs: cells that the study runs at once.

    Returns:
        Pace by folder of the cell.
    """
    # Other batches, types or numbers of threads have other times; rates and seeds do not.
    keys = {cell.folder: _key(cell.config, jobs) for cell in cells}
    kept = directory / "times.json"
    known = (
        convert(files.read_json(kept), dict[str, CellPace], where=str(kept))
        if kept.exists()
        else {}
    )
    missing = {keys[cell.folder]: cell for cell in cells if keys[cell.folder] not in known}
    timed = list(pool.map(lambda cell: _timed(cell, directory, processes), missing.values()))
    known |= dict(zip(missing, timed, strict=True))
    if missing:
        files.write_json(kept, to_plain(known))
    return {folder: known[key] for folder, key in keys.items()}


def _short(config: TrainConfig) -> TrainConfig:
    """Return a run of a few steps that computes each as the whole one does."""
    # Windows that end within these steps: else there would be no average to evaluate.
    averages = tuple(replace(item, window=min(item.window, 4)) for item in config.averages)
    return replace(
        config,
        averages=averages,
        steps=_PROBE_STEPS,
        warmup_steps=0,
        cooldown_steps=0,
        schedule="1-sqrt",
        checkpoint_every=0,
        checkpoint_at=(_SAVED_AT,),
        eval_every=0,
    )


def _key(config: TrainConfig, jobs: int) -> str:
    """Return what tells one way to time from another, with the name of the model."""
    alike = replace(_short(config), learning_rate=1e-3, seed=0, unique_tokens=0)
    plain = msgspec.json.encode([to_plain(alike), jobs], order="deterministic")
    return f"{config.architecture.name} {hashlib.sha256(plain).hexdigest()[:16]}"


def _timed(cell: Cell, directory: Path, processes: TrainProcesses) -> CellPace:
    """Time a few steps of one model."""
    ends_s: list[float] = []
    # A folder of its own: one that a killed probe left would answer without training.
    with TemporaryDirectory(prefix="probe-", dir=directory) as folder:
        begin_s = time.perf_counter()
        result = processes.train(
            _short(cell.config),
            Path(folder),
            pool=cell.pool,
            on_step=lambda now: ends_s.append(time.perf_counter()),
        )
        wall_s = time.perf_counter() - begin_s
    step_s = result.step_time_s
    # What a step took longer than others do is the checkpoint that it wrote, and at the end the
    # evaluation before it.
    save_s, last_s = (
        max(ends_s[at - 1] - ends_s[at - 2] - step_s, 0.0) for at in (_SAVED_AT, _PROBE_STEPS)
    )
    evaluation_s = max(last_s - save_s, 0.0)
    return CellPace(
        step_s=step_s,
        spread=result.step_time_spread_s / step_s,
        overhead_s=max(wall_s - _PROBE_STEPS * step_s - 2 * save_s - evaluation_s, 0.0),
        evaluation_s=evaluation_s,
        save_s=save_s,
    )


def forecast_time(cells: Sequence[Cell], paces: Mapping[str, CellPace], *, jobs: int) -> Forecast:
    """Forecast the wall time of a study.

    Args:
        cells: cells that are still to run.
        paces: by folder of the cell.
        jobs: cells at once.

    Returns:
        Seconds, with an 80 % interval from the spread of the timed steps; it covers the steps of a
        machine whose load stays as it was.
    """
    seconds = {cell.folder: paces[cell.folder].seconds(cell) for cell in cells}
    step_s = {cell.folder: paces[cell.folder].step_s for cell in cells}
    value = makespan(cells, seconds, step_s, jobs=jobs)
    spread = max((pace.spread for pace in paces.values()), default=0.0)
    # One speed for all cells: their errors go together, and do not average out.
    width = _COMMON_Z * math.hypot(_LEAST_SPREAD, spread / math.sqrt(_PROBE_STEPS))
    return Forecast(
        quantity="study.wall_time",
        value=value,
        low=value / (1 + width),
        high=value * (1 + width),
        provenance="simulated",
        source=f"{_PROBE_STEPS} timed steps of {len({*paces.values()})} kinds, {jobs} at once",
    )

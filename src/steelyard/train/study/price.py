"""What a study will take: a few steps of each model are timed, in the way the study runs them."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

import msgspec

from steelyard import files
from steelyard.config import convert, to_plain
from steelyard.quantity import Forecast
from steelyard.train.config import TrainConfig
from steelyard.train.pace import TIMED_STEPS, RunPace, shortened, time_few_steps
from steelyard.train.result import OnStep, TrainResult
from steelyard.train.study.cells import Cell
from steelyard.train.study.order import makespan
from steelyard.train.study.processes import CellTrainer

__all__ = ["cell_seconds", "forecast_time", "probe"]

_COMMON_Z = 1.28
_LEAST_SPREAD = 0.08
"""Relative deviation of a long run's speed from that of a short probe, at the least (assumed)."""


def probe(
    cells: Sequence[Cell], directory: Path, trainer: CellTrainer, pool: Executor, *, jobs: int
) -> dict[str, RunPace]:
    """Time a few steps of every model, as many at once as the study will run.

    Args:
        cells: the study.
        directory: where the times are kept; a later call reads them.
        trainer: what trains.
        pool: runs `jobs` at once.
        jobs: cells that the study runs at once.

    Returns:
        Pace by folder of the cell.
    """
    # Other batches, types or numbers of threads have other times; rates and seeds do not.
    keys = {cell.folder: _key(cell.config, jobs) for cell in cells}
    kept = directory / "paces.json"
    known = (
        convert(files.read_json(kept), dict[str, RunPace], where=str(kept)) if kept.exists() else {}
    )
    missing = {keys[cell.folder]: cell for cell in cells if keys[cell.folder] not in known}
    timed = list(pool.map(lambda cell: _timed(cell, directory, trainer), missing.values()))
    known |= dict(zip(missing, timed, strict=True))
    if missing:
        files.write_json(kept, to_plain(known))
    return {folder: known[key] for folder, key in keys.items()}


def _key(config: TrainConfig, jobs: int) -> str:
    """Return what tells one way to time from another, with the name of the model."""
    alike = replace(shortened(config), learning_rate=1e-3, seed=0, unique_tokens=0)
    plain = msgspec.json.encode([to_plain(alike), jobs], order="deterministic")
    return f"{config.architecture.name} {hashlib.sha256(plain).hexdigest()[:16]}"


def _timed(cell: Cell, directory: Path, trainer: CellTrainer) -> RunPace:
    """Time a few steps of one model."""

    def train(short: TrainConfig, folder: Path, on_step: OnStep) -> TrainResult:
        return trainer.train(short, folder, pool=cell.pool, on_step=on_step)

    return time_few_steps(cell.config, directory, train)


def cell_seconds(cells: Sequence[Cell], paces: Mapping[str, RunPace]) -> dict[str, float]:
    """Return what each cell takes by its pace, seconds by folder."""
    return {cell.folder: paces[cell.folder].seconds(cell.config, cell.start) for cell in cells}


def forecast_time(cells: Sequence[Cell], paces: Mapping[str, RunPace], *, jobs: int) -> Forecast:
    """Forecast the wall time of a study.

    Args:
        cells: cells that are still to run.
        paces: pace of each cell, by its folder.
        jobs: cells at once.

    Returns:
        Seconds, with an 80 % interval from the spread of the timed steps; it covers the steps of a
        machine whose load stays as it was.
    """
    seconds = cell_seconds(cells, paces)
    step_s = {cell.folder: paces[cell.folder].step_s for cell in cells}
    value = makespan(cells, seconds, step_s, jobs=jobs)
    spread = max((pace.spread for pace in paces.values()), default=0.0)
    # One speed for all cells: their errors go together, and do not average out.
    width = _COMMON_Z * math.hypot(_LEAST_SPREAD, spread / math.sqrt(TIMED_STEPS))
    return Forecast(
        quantity="study.wall_time",
        value=value,
        low=value / (1 + width),
        high=value * (1 + width),
        provenance="simulated",
        source=f"{TIMED_STEPS} timed steps of {len({*paces.values()})} kinds, {jobs} at once",
    )

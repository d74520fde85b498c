"""What a study will take: a few steps of each model are timed, in the way the study runs them."""

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from steelyard import files
from steelyard.config import convert, to_plain
from steelyard.quantity import Forecast
from steelyard.train.config import TrainConfig
from steelyard.train.result import TrainResult
from steelyard.train.study.cells import Cell
from steelyard.train.study.order import makespan
from steelyard.train.study.processes import TrainProcesses

__all__ = ["CellPace", "forecast_time", "probe"]

_PROBE_STEPS = 16
_EVAL_SHARE = 1 / 3
"""Cost of a token in an evaluation over one in training: forward without backward."""

_COMMON_Z = 1.28
_LEAST_SPREAD = 0.08
"""Relative deviation of a long run's speed from that of a short probe, at the least (assumed)."""

Probe = Callable[[TrainConfig, Path], TrainResult]


@dataclass(frozen=True, kw_only=True, slots=True)
class CellPace:
    """How fast a model trains here.

    Attributes:
        step_s: seconds of a step, median.
        spread: robust standard deviation of it, over the median.
        overhead_s: seconds of a run beside its steps and evaluations: model, checkpoint, result.
    """

    step_s: float
    spread: float
    overhead_s: float

    def seconds(self, cell: Cell) -> float:
        """Return what a cell takes, evaluations included."""
        config = cell.config
        evaluations = max(config.steps // config.eval_every, 1) if config.eval_every else 1
        return (
            self.overhead_s
            + cell.steps * self.step_s
            + evaluations * _evaluation_s(config, self.step_s)
        )


def _evaluation_s(config: TrainConfig, step_s: float) -> float:
    """Return what an evaluation takes."""
    return step_s * _EVAL_SHARE * config.eval_tokens / config.tokens_per_step


def probe(
    cells: Sequence[Cell], directory: Path, processes: TrainProcesses, pool: Executor, *, jobs: int
) -> dict[str, CellPace]:
    """Time a few steps of every model, as many at once as the study will run.

    Args:
        cells: the study.
        directory: where the times are kept; a later call reads them.
        processes: what trains; they are started here where something is to be timed.
        pool: runs `jobs` at once.
        jobs: cells that the study runs at once.

    Returns:
        Pace by name of the architecture.
    """
    models = {cell.config.architecture.name: _short(cell.config) for cell in cells}
    # Other batches, types or numbers of threads have other times: they are timed anew.
    keys = {name: f"{name} {_digest(config, jobs)}" for name, config in models.items()}
    kept = directory / "paces.json"
    known = (
        convert(files.read_json(kept), dict[str, CellPace], where=str(kept))
        if kept.exists()
        else {}
    )
    missing = [name for name in models if keys[name] not in known]
    if missing:
        # What a process loads before its first run is no part of a run.
        list(pool.map(lambda _: processes.warm(), range(jobs)))
    timed = list(pool.map(lambda name: _timed(models[name], directory, processes.train), missing))
    known |= {keys[name]: pace for name, pace in zip(missing, timed, strict=True)}
    if missing:
        files.write_json(kept, to_plain(known))
    return {name: known[key] for name, key in keys.items()}


def _short(config: TrainConfig) -> TrainConfig:
    """Return a run of a few steps that computes each as the whole one does."""
    return replace(
        config,
        steps=_PROBE_STEPS,
        warmup_steps=0,
        cooldown_steps=0,
        schedule="1-sqrt",
        checkpoint_every=0,
        checkpoint_at=(),
        eval_every=0,
    )


def _digest(config: TrainConfig, jobs: int) -> str:
    """Return what tells one way to time from another."""
    plain = msgspec.json.encode([to_plain(config), jobs], order="deterministic")
    return hashlib.sha256(plain).hexdigest()[:16]


def _timed(short: TrainConfig, directory: Path, run: Probe) -> CellPace:
    """Time a few steps of one model."""
    # A folder of its own: one that a killed probe left would answer without training.
    with TemporaryDirectory(prefix="probe-", dir=directory) as folder:
        begin_s = time.perf_counter()
        result = run(short, Path(folder))
        wall_s = time.perf_counter() - begin_s
    spread = result.step_time_spread_s / result.step_time_s
    beside_s = wall_s - result.total_time_s - _evaluation_s(short, result.step_time_s)
    overhead_s = max(beside_s, 0.0)
    return CellPace(step_s=result.step_time_s, spread=spread, overhead_s=overhead_s)


def forecast_time(cells: Sequence[Cell], paces: dict[str, CellPace], *, jobs: int) -> Forecast:
    """Forecast the wall time of a study.

    Args:
        cells: cells that are still to run.
        paces: of every architecture.
        jobs: cells at once.

    Returns:
        Seconds, with an 80 % interval from the spread of the timed steps; it covers the steps of a
        machine whose load stays as it was.
    """
    by_cell = {cell.folder: paces[cell.config.architecture.name] for cell in cells}
    seconds = {cell.folder: by_cell[cell.folder].seconds(cell) for cell in cells}
    step_s = {folder: pace.step_s for folder, pace in by_cell.items()}
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
        source=f"{_PROBE_STEPS} timed steps of each of {len(paces)} models, {jobs} at once",
    )

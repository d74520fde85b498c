"""Train what the ladder says: probe the step times, climb the rungs, train the larger model.

The rungs' runs are kept as a table that `steelyard laws` reads.
"""

import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from steelyard.data.shards import TokenShards
from steelyard.errors import DivergedError
from steelyard.files import write_bytes
from steelyard.runs.progress import Advance
from steelyard.train.config import TrainConfig
from steelyard.train.result import Progress, TrainResult
from steelyard.train.source import TokenSource
from steelyard.train.study import CellRunner, InProcess, StudyRecipe, cell_keeper, study_cells
from steelyard.train.trainer import open_session, train
from steelyard.weigh.forecast import RungPoint
from steelyard.weigh.ladder import (
    BASE,
    BATCH_SIZE,
    COOLDOWN_FRACTION,
    LEAST_SHAPES,
    SEQUENCE_LENGTH,
    Ladder,
    parameters,
    rung_architecture,
)
from steelyard.weigh.pace import Pace, Pacer
from steelyard.weigh.settings import QuickstartConfig

__all__ = [
    "climb",
    "ladder_recipe",
    "probe_step_times",
    "rung_config",
    "train_target",
    "write_table",
]

_WARMUP_STEPS = 40
_CHECKPOINT_EVERY = 100
_PROBE_STEPS = 12
_LEAST_PROBE_STEPS = 3
_PROBE_SHARE = 0.1
_EVAL_TOKENS = 256 * SEQUENCE_LENGTH


def rung_config(
    shape: tuple[int, int], steps: int, config: QuickstartConfig, *, cooled: bool
) -> TrainConfig:
    """Return the training recipe of one model of the ladder.

    The learning rate is 0.45 / width, near the best of 400-step runs of the default text at widths
    32 to 128.

    Args:
        shape: (hidden_size, num_layers).
        steps: optimizer steps.
        config: choices of the user; seed and threads count here.
        cooled: whether the last fifth of the steps cools down.

    Returns:
        A recipe of `BATCH_SIZE` sequences of `SEQUENCE_LENGTH` tokens per step.
    """
    return TrainConfig(
        architecture=rung_architecture(*shape),
        steps=steps,
        batch_size=BATCH_SIZE,
        sequence_length=SEQUENCE_LENGTH,
        learning_rate=0.45 / shape[0],
        warmup_steps=min(_WARMUP_STEPS, steps // 16),
        cooldown_steps=round(steps * COOLDOWN_FRACTION) if cooled else 0,
        seed=config.seed,
        checkpoint_every=_CHECKPOINT_EVERY,
        eval_tokens=_EVAL_TOKENS,
        threads=config.threads,
    )


def probe_step_times(
    shapes: Sequence[tuple[int, int]],
    shards: TokenSource,
    config: QuickstartConfig,
    advance: Advance,
) -> dict[tuple[int, int], float]:
    """Time a few optimizer steps of each shape, within a tenth of the job's time.

    On a machine too slow for that, fewer steps are timed, and only of the shapes that the smallest
    ladder needs.

    Args:
        shapes: (hidden_size, num_layers), small to large.
        shards: tokens to train on.
        config: choices of the user.
        advance: callback for progress.

    Returns:
        Median seconds of a step by shape, the first steps left out.
    """
    limit_s = _PROBE_SHARE * 60 * config.minutes
    begin_s = time.perf_counter()
    times: dict[tuple[int, int], float] = {}
    for index, shape in enumerate(shapes):
        if index >= LEAST_SHAPES and time.perf_counter() - begin_s > limit_s:
            break
        advance(index / len(shapes), f"step time of a {shape[0]}-wide model")
        session = open_session(rung_config(shape, _PROBE_STEPS, config, cooled=False), shards)
        until_s = begin_s + limit_s * (index + 1) / len(shapes)
        seconds: list[float] = []
        while len(seconds) < _LEAST_PROBE_STEPS or (
            len(seconds) < _PROBE_STEPS and time.perf_counter() < until_s
        ):
            seconds.append(session.step()[1])
        # The first steps allocate and warm caches.
        times[shape] = median(seconds[min(4, len(seconds) - 1) :])
    return times


def ladder_recipe(ladder: Ladder, config: QuickstartConfig) -> StudyRecipe:
    """Return the study whose cells are the rungs at every token count."""
    steps = ladder.branch_steps[-1]
    common = rung_config((BASE.hidden_size, BASE.num_layers), steps, config, cooled=False)
    return StudyRecipe(
        train=replace(common, architecture=BASE),
        shapes=ladder.rungs,
        lengths=tuple(length / steps for length in ladder.branch_steps),
        cooldown_fractions=(COOLDOWN_FRACTION,),
    )


def climb(
    ladder: Ladder, shards: TokenShards, config: QuickstartConfig, advance: Advance
) -> list[RungPoint]:
    """Train every rung at every token count, or go on where an earlier call was killed.

    The rungs are a study in the folder `ladder`; `steelyard laws` reads its store of runs.

    Args:
        ladder: shapes of the rungs, and the steps they are measured at.
        shards: tokens to train and evaluate on.
        config: choices of the user.
        advance: callback for progress.

    Returns:
        One point per rung and token count.

    Raises:
        DivergedError: the loss of a rung is no longer finite.
    """
    folder, cells = config.out / "ladder", study_cells(ladder_recipe(ladder, config))
    # What they cost, near enough for their order and the bar.
    costs = {item.folder: float(item.steps * parameters(_shape(item.config))) for item in cells}
    pacers = {shape: Pacer() for shape in ladder.rungs}
    here = InProcess(shards.directory, on_step=lambda run, _: pacers[_shape(run)].tick())
    runner = CellRunner(cells, shards.directory, folder, here, costs, advance=advance)
    # Kept at the end: a database at work between the cells would count as their memory and time.
    points, keep = list[RungPoint](), cell_keeper(folder)
    for item in runner.until_done(here, 1):
        if item.result is None:
            raise DivergedError(f"{item.cell.folder}: {item.failure}")
        if not item.cell.is_trunk:
            keep(item)
            shape = _shape(item.cell.config)
            points.append(_point(shape, item.result, pacers[shape].pace()))
    return points


def _shape(config: TrainConfig) -> tuple[int, int]:
    """Return (hidden_size, num_layers) of a run's model."""
    return config.architecture.hidden_size, config.architecture.num_layers


def train_target(
    ladder: Ladder, shards: TokenSource, config: QuickstartConfig, advance: Advance
) -> tuple[TrainResult, Pace]:
    """Train the larger model to its end, or go on where an earlier call was killed.

    Args:
        ladder: shape and steps of the larger model.
        shards: tokens to train and evaluate on.
        config: choices of the user.
        advance: callback for progress.

    Returns:
        The result, and the machine's pace during the steps of this call.
    """
    pacer = Pacer()
    done = itertools.count(1)

    def step(now: Progress) -> None:
        words = f"loss {now.loss:.2f}  {now.tokens_per_s:,.0f} tokens/s"
        # A run that was killed may repeat steps: the fraction is cut at the end.
        advance(min(next(done) / ladder.target_steps, 1.0), words)
        # Between the steps the machine's pace is taken.
        pacer.tick()

    recipe = rung_config(ladder.target, ladder.target_steps, config, cooled=True)
    result = train(recipe, shards, config.out / "target", on_step=step)
    return result, pacer.pace()


def _point(shape: tuple[int, int], result: TrainResult, pace: Pace) -> RungPoint:
    """Keep of a finished run what forecasts need."""
    return RungPoint(
        hidden_size=shape[0],
        num_layers=shape[1],
        parameters=result.parameters,
        steps=result.steps,
        tokens=result.tokens,
        loss=result.eval_loss,
        step_time_s=result.step_time_s,
        step_time_spread_s=result.step_time_spread_s,
        total_time_s=result.total_time_s,
        pace=pace,
        peak_memory_bytes=result.peak_memory_bytes,
    )


def write_table(points: Sequence[RungPoint], path: Path, tokenizer: str) -> None:
    """Write the cooled-down runs as CSV, one per row, with the conventions of their numbers.

    Args:
        points: runs of the ladder.
        path: file to write, replaced as a whole.
        tokenizer: name of the tokenizer that cut the text.
    """
    rows = [
        {
            "hidden_size": point.hidden_size,
            "num_layers": point.num_layers,
            "parameters": point.parameters,
            "tokens": point.tokens,
            "flops": 6 * point.parameters * point.tokens,
            "loss": point.loss,
            "steps": point.steps,
            "batch_tokens": BATCH_SIZE * SEQUENCE_LENGTH,
            "step_time_s": point.step_time_s,
            "counts": "total",
            "loss_unit": "nat/token",
            "tokenizer": tokenizer,
            "schedule": "finished",
        }
        for point in points
    ]
    lines = [",".join(map(str, row)) for row in (rows[0], *(row.values() for row in rows))]
    write_bytes(path, ("\n".join(lines) + "\n").encode())

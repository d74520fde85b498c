"""Train what the ladder says: probe the step times, climb the rungs, train the larger model.

The rungs' runs are kept as a table that `steelyard laws` reads.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from steelyard.files import write_bytes
from steelyard.train.config import TrainConfig
from steelyard.train.result import Progress, TrainResult
from steelyard.train.source import TokenSource
from steelyard.train.study import ladder_tokens, run_ladder_rung
from steelyard.train.trainer import open_session, train
from steelyard.weigh.forecast import RungPoint
from steelyard.weigh.ladder import (
    BATCH_SIZE,
    COOLDOWN_FRACTION,
    LEAST_SHAPES,
    SEQUENCE_LENGTH,
    Ladder,
    parameters,
    rung_architecture,
)
from steelyard.weigh.pace import Pace, Pacer
from steelyard.weigh.progress import Advance
from steelyard.weigh.settings import QuickstartConfig, target_model

__all__ = [
    "climb",
    "model_directory",
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


def climb(
    ladder: Ladder, shards: TokenSource, config: QuickstartConfig, advance: Advance
) -> list[RungPoint]:
    """Train every rung at every token count, or go on where an earlier call was killed."""
    points: list[RungPoint] = []
    lengths = list(ladder.branch_steps)
    configs = [rung_config(shape, lengths[-1], config, cooled=False) for shape in ladder.rungs]
    tokens = [ladder_tokens(item, lengths, cooldown_fraction=COOLDOWN_FRACTION) for item in configs]
    costs = [parameters(shape) * count for shape, count in zip(ladder.rungs, tokens, strict=True)]
    for index, (shape, recipe) in enumerate(zip(ladder.rungs, configs, strict=True)):
        pacer = Pacer()
        on_step = _tally(
            advance,
            pacer,
            begin=sum(costs[:index]) / sum(costs),
            share=costs[index] / sum(costs),
            steps=tokens[index] // recipe.tokens_per_step,
            name=f"{shape[0]} wide, {shape[1]} layers",
        )
        directory = config.out / "ladder" / f"{shape[0]}x{shape[1]}"
        results = run_ladder_rung(
            recipe,
            lengths,
            shards,
            directory,
            cooldown_fraction=COOLDOWN_FRACTION,
            on_step=on_step,
        )
        points += [_point(shape, result, pacer.pace()) for result in results]
    return points


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
    on_step = _tally(advance, pacer, begin=0.0, share=1.0, steps=ladder.target_steps)
    recipe = rung_config(ladder.target, ladder.target_steps, config, cooled=True)
    result = train(recipe, shards, config.out / "target", on_step=on_step)
    return result, pacer.pace()


def _tally(
    advance: Advance, pacer: Pacer, *, begin: float, share: float, steps: int, name: str = ""
) -> Callable[[Progress], None]:
    """Turn the trainer's steps into a fraction, from `begin` on by `share`, of a stage.

    Between the steps the machine's pace is taken.
    """
    done = itertools.count(1)

    def step(progress: Progress) -> None:
        words = f"{name}  loss {progress.loss:.2f}  {progress.tokens_per_s:,.0f} tokens/s".strip()
        # A resumed run reports only the steps it still does, and a restarted one may repeat some:
        # the fraction is cut at the stage's end.
        advance(begin + share * min(next(done) / steps, 1.0), words)
        pacer.tick()

    return step


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


def model_directory(config: QuickstartConfig) -> Path:
    """Return the folder of the larger model's final weights."""
    return target_model(config.out)


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

"""Train what the ladder says: probe the step times, climb the rungs, train the larger model.

The rungs' runs are kept as a table that `steelyard laws` reads.
"""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from steelyard.files import write_bytes
from steelyard.train.config import TrainConfig
from steelyard.train.result import Progress, TrainResult
from steelyard.train.session import Session
from steelyard.train.source import TokenSource
from steelyard.train.study import ladder_tokens, run_ladder_rung
from steelyard.train.trainer import train
from steelyard.weigh.forecast import RungPoint
from steelyard.weigh.ladder import (
    BATCH_SIZE,
    COOLDOWN_FRACTION,
    SEQUENCE_LENGTH,
    Ladder,
    parameters,
    rung_architecture,
)
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
) -> list[float]:
    """Time a few optimizer steps of each shape, seconds each, medians without the first ones."""
    times: list[float] = []
    for index, shape in enumerate(shapes):
        advance(index / len(shapes), f"step time of a {shape[0]}-wide model")
        session = Session(rung_config(shape, _PROBE_STEPS, config, cooled=False), shards)
        seconds = [session.step()[1] for _ in range(_PROBE_STEPS)]
        # The first steps allocate and warm caches.
        times.append(median(seconds[4:]))
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
        on_step = _tally(
            advance,
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
        points += [_point(shape, result) for result in results]
    return points


def train_target(
    ladder: Ladder, shards: TokenSource, config: QuickstartConfig, advance: Advance
) -> TrainResult:
    """Train the larger model to its end, or go on where an earlier call was killed."""
    on_step = _tally(advance, begin=0.0, share=1.0, steps=ladder.target_steps)
    recipe = rung_config(ladder.target, ladder.target_steps, config, cooled=True)
    return train(recipe, shards, config.out / "target", on_step=on_step)


def _tally(
    advance: Advance, *, begin: float, share: float, steps: int, name: str = ""
) -> Callable[[Progress], None]:
    """Turn the trainer's steps into a fraction, from `begin` on by `share`, of a stage."""
    done = itertools.count(1)

    def step(progress: Progress) -> None:
        words = f"{name}  loss {progress.loss:.2f}  {progress.tokens_per_s:,.0f} tokens/s".strip()
        # A resumed run reports only the steps it still does, and a restarted one may repeat some:
        # the fraction is cut at the stage's end.
        advance(begin + share * min(next(done) / steps, 1.0), words)

    return step


def _point(shape: tuple[int, int], result: TrainResult) -> RungPoint:
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

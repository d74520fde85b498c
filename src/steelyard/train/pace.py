"""How fast a run goes here: a few of its steps, a checkpoint and an evaluation, timed."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from steelyard.train.config import TrainConfig
from steelyard.train.result import OnStep, TrainResult

__all__ = ["TIMED_STEPS", "RunPace", "choose_compile", "shortened", "time_few_steps"]

TIMED_STEPS = 16
"""Steps that are timed; the first, a checkpoint, an evaluation and the end are set apart."""

_COLD_STEPS = 4
_SAVED_AT, _EVALUATED_AT = TIMED_STEPS - 4, TIMED_STEPS - 2
_WINDOW = 4
"""Steps of the shortest window of an average that ends within the timed steps."""

Train = Callable[[TrainConfig, Path, OnStep], TrainResult]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPace:
    """How fast a run goes here.

    Attributes:
        step_s: seconds of a step.
        save_s: seconds of a checkpoint.
        evaluation_s: seconds of an evaluation, averages included.
        overhead_s: seconds of a run beside these: model, first steps, result.
        power_w: watts while it trained, as measured; None where they cannot be read.
        spread: robust standard deviation of a step's time, over its median.
    """

    step_s: float
    save_s: float
    evaluation_s: float
    overhead_s: float
    power_w: float | None = None
    spread: float = 0.0

    def seconds(self, config: TrainConfig, first_step: int = 0) -> float:
        """Return what a run takes.

        Args:
            config: the run.
            first_step: steps that were trained before, by the run that it goes on from.

        Returns:
            Seconds, evaluations and checkpoints included.
        """
        return (
            self.overhead_s
            + (config.steps - first_step) * self.step_s
            + _times(config, first_step, config.checkpoint_every, config.checkpoint_at)
            * self.save_s
            + _times(config, first_step, config.eval_every) * self.evaluation_s
        )


def _times(config: TrainConfig, first_step: int, every: int, extra: tuple[int, ...] = ()) -> int:
    """Count the steps at which something is done: every so many, some more, and at the end."""
    steps = {config.steps, *extra}
    if every:
        steps.update(range(every, config.steps, every))
    return sum(step > first_step for step in steps)


def shortened(config: TrainConfig) -> TrainConfig:
    """Return a run of a few steps that computes each as the whole one does.

    Args:
        config: the whole run.

    Returns:
        The same with a checkpoint and an evaluation on its way. Its batch stays that of the recipe:
        one that follows the noise has grown by nothing in so few steps.
    """
    # Windows that end within these steps: else there would be no average to evaluate. Two that
    # become the same are one.
    averages = [
        replace(item, window=min(item.window, _WINDOW + number))
        for number, item in enumerate(config.averages)
    ]
    return replace(
        config,
        averages=tuple({item.name: item for item in averages}.values()),
        steps=TIMED_STEPS,
        warmup_steps=0,
        cooldown_steps=0,
        schedule="1-sqrt",
        checkpoint_every=0,
        checkpoint_at=(_SAVED_AT,),
        eval_every=_EVALUATED_AT,
        adaptive_batch=None,
    )


def time_few_steps(config: TrainConfig, directory: Path, train: Train) -> RunPace:
    """Train a few steps as the run will, with a checkpoint and an evaluation between them.

    Args:
        config: the run.
        directory: where a folder is made for it, and removed again.
        train: trains a run in a process that is ready; what memory it took leaves with it.

    Returns:
        The pace.
    """
    directory.mkdir(parents=True, exist_ok=True)
    # A folder of its own: one that a killed call left would answer without training.
    with TemporaryDirectory(prefix="pace-", dir=directory) as folder:
        marks: list[float] = []
        begin_s = time.perf_counter()
        result = train(shortened(config), Path(folder), lambda _: marks.append(time.perf_counter()))
        wall_s = time.perf_counter() - begin_s
    gaps = np.diff([begin_s, *marks])
    plain = np.delete(gaps, [_SAVED_AT - 1, _EVALUATED_AT - 1, TIMED_STEPS - 1])[_COLD_STEPS:]
    # The mean is what many steps add up to; of so few, one that something else held up is left out.
    step_s = float(np.sort(plain)[:-1].mean())
    save_s = max(float(gaps[_SAVED_AT - 1]) - step_s, 0.0)
    evaluation_s = max(float(gaps[_EVALUATED_AT - 1]) - step_s, 0.0)
    # The end saves and evaluates once more.
    beside_s = wall_s - TIMED_STEPS * step_s - 2 * save_s - 2 * evaluation_s
    energy, duration = result.energy_j, result.duration_s
    return RunPace(
        step_s=step_s,
        save_s=save_s,
        evaluation_s=evaluation_s,
        overhead_s=max(beside_s, 0.0),
        power_w=energy / duration if energy and duration else None,
        spread=result.step_time_spread_s / result.step_time_s,
    )


def choose_compile(
    config: TrainConfig, directory: Path, train: Train
) -> tuple[TrainConfig, RunPace]:
    """Time a few steps with and without torch.compile, and take what ends the run sooner.

    Args:
        config: the run; its `compile` does not matter.
        directory: folder that `time_few_steps` takes.
        train: training settings that `time_few_steps` takes.

    Returns:
        The run with the choice made, and its pace; what the compiler takes counts.
    """
    choices = [replace(config, compile=False), replace(config, compile=True)]
    paces = [time_few_steps(choice, directory, train) for choice in choices]
    best = min((0, 1), key=lambda place: paces[place].seconds(config))
    return choices[best], paces[best]

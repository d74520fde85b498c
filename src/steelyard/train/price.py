"""What a run will take, before it runs: a few of its steps are timed in a process of their own."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from steelyard.catalog.hardware import Accelerator, Site
from steelyard.cost.bill import bill
from steelyard.quantity import Check, Forecast
from steelyard.train.config import TrainConfig
from steelyard.train.result import Progress, TrainResult

__all__ = ["FORECASTER", "RunPace", "RunPrice", "choose_compile", "price_run", "time_few_steps"]

FORECASTER = "train.price"
"""Name of these forecasts in the ledger."""

_LEAST_STEPS, _MOST_STEPS = 10, 24
_COLD_STEPS = 4
_PAST = 10
"""Checked forecasts that count; older ones tell of another load of the machine."""

_ENOUGH = 8

_ASSUMED_SPREAD = 0.08
_ASSUMED_SCORES = (0.25, 0.67, 1.15, 1.96)
"""Absolute deviations at the 20, 50, 75 and 95 % of a normal distribution: they stand in for four
checked forecasts before there are any."""

_LEVEL = 0.8

Train = Callable[[TrainConfig, Path, Callable[[Progress], None]], TrainResult]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPace:
    """How fast a run goes here.

    Attributes:
        step_s: seconds of a step.
        save_s: seconds of a checkpoint.
        evaluation_s: seconds of an evaluation.
        overhead_s: seconds of a run beside these: model, start, result.
        power_w: watts while it trained, as measured; None where they cannot be read.
        steps: steps that were timed.
    """

    step_s: float
    save_s: float
    evaluation_s: float
    overhead_s: float
    power_w: float | None
    steps: int

    def seconds(self, config: TrainConfig) -> float:
        """Return what a whole run takes."""
        steps, every = config.steps, config.checkpoint_every
        saves = {steps, *config.checkpoint_at, *(range(every, steps, every) if every else ())}
        evaluations = -(-steps // config.eval_every) if config.eval_every else 1
        return (
            self.overhead_s
            + steps * self.step_s
            + len(saves) * self.save_s
            + evaluations * self.evaluation_s
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPrice:
    """What a run is forecast to take.

    Attributes:
        forecasts: run.duration, run.energy, and run.cost and run.carbon where they are known.
        unknown: quantities without a forecast, each with what is missing.
        usd_per_hour: price of an hour of the machine; None where it is unknown.
        power_w: average power, watts: measured, or derived from the record of the machine.
        is_rented: whether the money follows from the hours alone, so that a run measures it.
    """

    forecasts: tuple[Forecast, ...]
    unknown: dict[str, str]
    usd_per_hour: float | None
    power_w: float
    is_rented: bool

    def derived(self, duration_s: float) -> list[Forecast]:
        """Return energy and money that follow from a measured duration, and cannot be measured."""
        said = {item.quantity: item for item in self.forecasts}
        scale = duration_s / said["run.duration"].value
        names = [name for name in ("run.energy", "run.cost") if name in said]
        return [
            replace(
                said[name],
                value=said[name].value * scale,
                low=said[name].low * scale,
                high=said[name].high * scale,
                source=f"{said[name].source}; duration measured",
            )
            for name in names
        ]


def time_few_steps(config: TrainConfig, directory: Path, train: Train) -> RunPace:
    """Train a few steps as the run will, with a checkpoint and an evaluation between them.

    Args:
        config: the run.
        directory: where a folder is made for it, and removed again.
        train: trains a run in a process that is ready; what memory it took leaves with it.

    Returns:
        The pace; steps of less than a microsecond are refused by no one.
    """
    steps = min(max(config.steps // 10, _LEAST_STEPS), _MOST_STEPS)
    save, evaluation = steps - 4, steps - 2
    short = replace(
        config,
        steps=steps,
        warmup_steps=0,
        cooldown_steps=0,
        schedule="1-sqrt",
        checkpoint_every=0,
        checkpoint_at=(save,),
        eval_every=evaluation,
    )
    directory.mkdir(parents=True, exist_ok=True)
    # A folder of its own: one that a killed call left would answer without training.
    with TemporaryDirectory(prefix="price-", dir=directory) as folder:
        marks: list[float] = []
        begin_s = time.perf_counter()
        result = train(short, Path(folder), lambda _: marks.append(time.perf_counter()))
        wall_s = time.perf_counter() - begin_s
    gaps = np.diff([begin_s, *marks])
    plain = np.delete(gaps, [save - 1, evaluation - 1, steps - 1])[_COLD_STEPS:]
    # The mean is what many steps add up to; of so few, one that something else held up is left out.
    step_s = float(np.sort(plain)[: max(len(plain) - 1, 1)].mean())
    save_s = max(float(gaps[save - 1]) - step_s, 0.0)
    evaluation_s = max(float(gaps[evaluation - 1]) - step_s, 0.0)
    beside_s = wall_s - steps * step_s - 2 * save_s - 2 * evaluation_s
    energy, duration = result.energy_j, result.duration_s
    return RunPace(
        step_s=step_s,
        save_s=save_s,
        evaluation_s=evaluation_s,
        overhead_s=max(beside_s, 0.0),
        power_w=energy / duration if energy and duration else None,
        steps=steps,
    )


def choose_compile(
    config: TrainConfig, directory: Path, train: Train
) -> tuple[TrainConfig, RunPace]:
    """Time a few steps with and without torch.compile, and take what ends the run sooner.

    Args:
        config: the run; its `compile` does not matter.
        directory: as for `time_few_steps`.
        train: as for `time_few_steps`.

    Returns:
        The run with the choice made, and its pace; what the compiler takes counts.
    """
    choices = [replace(config, compile=False), replace(config, compile=True)]
    paces = [time_few_steps(choice, directory, train) for choice in choices]
    best = min((0, 1), key=lambda place: paces[place].seconds(config))
    return choices[best], paces[best]


def price_run(
    config: TrainConfig,
    pace: RunPace,
    *,
    machine: Accelerator,
    site: Site,
    past: Sequence[Check] = (),
) -> RunPrice:
    """Forecast time, energy and money of a run.

    The interval of the time is the quantile of how far earlier such forecasts on this machine were
    off (split conformal prediction, Lei et al. 2018, arXiv 1604.04173); an assumed spread stands in
    for the first few. Energy is from measured power where it can be read, else from the rated power
    of the machine's record, and then marked as derived or assumed.

    Args:
        config: the run.
        pace: a few timed steps of it.
        machine: record of the machine, with its power and prices.
        site: place with its price of electricity and its grid.
        past: checked forecasts of run.duration by this function, oldest first.

    Returns:
        The price.
    """
    duration_s = pace.seconds(config)
    width = math.expm1(_log_width(past))
    said = f"{pace.steps} timed steps, a checkpoint and an evaluation"
    duration = Forecast.about(
        "run.duration", duration_s, relative=width, provenance="derived", source=said
    )
    found = bill(
        duration_s=duration_s,
        num_accelerators=1,
        accelerator=machine,
        site=site,
        rent_usd=config.usd_per_hour or None,
        duration_relative=width,
    )
    by_name = {item.quantity: item for item in found.forecasts}
    if pace.power_w is not None:
        by_name["run.energy"] = Forecast.about(
            "run.energy",
            pace.power_w * duration_s,
            relative=1.05 * (1 + width) - 1,
            provenance="derived",
            source=f"power measured over {said}",
        )
    hour = found.hour
    return RunPrice(
        forecasts=(duration, *by_name.values()),
        unknown=found.unknown,
        usd_per_hour=hour.total_usd if hour else None,
        power_w=by_name["run.energy"].value / duration_s,
        is_rented=hour is not None and hour.method == "rented",
    )


def _log_width(past: Sequence[Check]) -> float:
    """Return the half-width of an 80 % interval of the logarithm of a duration."""
    errors = [
        abs(math.log(item.measurement.value / item.forecast.value))
        for item in past[-_PAST:]
        if item.measurement.value > 0 and item.forecast.value > 0
    ]
    if len(errors) < _ENOUGH:
        errors += [_ASSUMED_SPREAD * score for score in _ASSUMED_SCORES]
    # The next error is one more draw: of n values below it, the quantile is taken of n + 1.
    rank = _LEVEL * (len(errors) + 1) / len(errors)
    return float(np.quantile(errors, min(rank, 1.0)))

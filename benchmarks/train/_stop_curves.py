"""Finished runs whose curves are published, to replay a rule that stops runs early.

Schedules are those the sources state: the multi-power law's runs carry their rates; the runs of
Gemstones have a constant rate; those of OLMo, GPT-3, OPT and the routed language models a cosine to
a tenth.
"""

import csv
import gzip
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from steelyard.laws.curves import LearningRates

__all__ = ["FinishedRun", "finished_runs"]

_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
_STEPS, _PEAK, _WARMUP = 500, 3e-4, 0.01
_LEAST_POINTS = 10
_TUNED = ("gemstones", "schedules 25m")


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """One run to its end.

    Attributes:
        family: runs whose losses may be compared.
        name: the run.
        rates: rate of every step.
        steps: steps at which the loss was measured, [n].
        losses: nats per token, [n].
        is_tuned: whether the widths of intervals were chosen on it.
    """

    family: str
    name: str
    rates: LearningRates
    steps: np.ndarray
    losses: np.ndarray
    is_tuned: bool = False

    @property
    def final(self) -> float:
        """Loss at the end: the last points together, where they scatter."""
        return float(np.median(self.losses[-3:])) if len(self.losses) > 100 else self.losses[-1]


def finished_runs() -> list[FinishedRun]:
    """Read all runs with ten points or more."""
    found = [*_multi_power(), *_ladders(), *_routed()]
    long = [run for run in found if len(run.steps) >= _LEAST_POINTS]
    # Every other routed model: of one family those aside tell no more than that.
    routed = {run.name for run in [run for run in long if run.family == "routed"][::2]}
    return [
        replace(run, is_tuned=run.family.startswith(_TUNED) or run.name in routed) for run in long
    ]


def _multi_power() -> Iterator[FinishedRun]:
    """Runs of two sizes under nine schedules, rates from the file; the warm-up was cut off."""
    for size in ("25m", "100m"):
        rows = defaultdict(list)
        with (_DATA / "lr-schedule-curves" / f"curves_{size}.csv").open() as file:
            for row in csv.DictReader(file):
                key = ("step", "lr", "loss")
                rows[row["schedule"]].append([float(row[name]) for name in key])
        for name, points in rows.items():
            step, lr, loss = np.array(sorted(points)).T
            every = np.arange(int(step[-1]) + 1)
            warm = lr[0] * (every + 1) / step[0]
            rates = np.where(every < step[0], warm, np.interp(every, step, lr))
            yield FinishedRun(f"schedules {size}", name, LearningRates(rates), step, loss)


def _ladders() -> Iterator[FinishedRun]:
    """Runs against tokens seen."""
    for file, schedule in (
        ("gemstones", "constant"),
        ("olmo-ladder", "cosine"),
        ("gpt3-curves", "cosine"),
        ("opt-curves", "cosine"),
    ):
        curves = defaultdict(list)
        with (_DATA / "scaling-runs" / f"{file}.csv").open() as handle:
            for row in csv.DictReader(handle):
                family = f"{file} {row['group']}" if file == "gemstones" else file
                key = (family, row["run_id"] + row.get("rerun", ""))
                curves[key].append((float(row["tokens"]), float(row["loss"])))
        for (family, name), points in curves.items():
            # A branch is no run of its own: its beginning is another run's.
            if "cooldown" not in family:
                yield _against(family, name, points, schedule)


def _routed() -> Iterator[FinishedRun]:
    """Routed and dense models, evaluated 25 times."""
    curves = defaultdict(list)
    with gzip.open(_DATA / "routed-lm-curves" / "curves.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            if row["loss_validation"] and float(row["step"]) > 0:
                point = (float(row["step"]), float(row["loss_validation"]))
                curves[row["hyper_id"]].append(point)
    longest = max(max(points)[0] for points in curves.values())
    for name, points in curves.items():
        if max(points)[0] >= 0.9 * longest:
            yield _against("routed", name, points, "cosine")


def _against(
    family: str, name: str, points: list[tuple[float, float]], schedule: str
) -> FinishedRun:
    """Make a run of points (amount done, loss) under a usual schedule."""
    done, loss = np.array(sorted(dict(points).items())).T
    make = LearningRates.constant if schedule == "constant" else LearningRates.cosine
    rates = make(_STEPS, _PEAK, warmup=round(_WARMUP * _STEPS))
    return FinishedRun(family, name, rates, done / done[-1] * _STEPS - 1, loss)

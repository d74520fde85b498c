"""What the search would have chosen for published runs that interleave or split sequences."""

import csv
from dataclasses import fields

import numpy as np
from benchmarks.common import Check
from benchmarks.plan._published_runs import (
    ROWS_FILE,
    PublishedRun,
    PublishedStep,
    published_machine,
    read_step,
)

from steelyard.cost.step import training_step
from steelyard.plan.layouts import LayoutSearch, search_layouts
from steelyard.plan.types import layout_words

__all__ = ["choice_checks"]

_LLAMA = "llama3"
"""Source of runs whose parts of sequences are published, but not their chunks of layers
(arXiv 2407.21783, table 4)."""


def choice_checks(runs: list[PublishedRun]) -> list[Check]:
    """Search the layouts of as many accelerators, sequences and tokens as published runs had.

    Nothing is fitted: the forecast of the published layout is held against that of the best one,
    and its degrees against those of the best one.

    Args:
        runs: forecast runs, of which those with several chunks or parts of a sequence are taken.

    Returns:
        Checks.
    """
    layouts = [(item.step, item.step.layout) for item in runs]
    wide = [step for step, held in layouts if held.virtual_stages > 1 or held.context > 1]
    chips = {id(item.step): item.chip for item in runs}
    rates, apart = [], []
    for step in wide:
        found, best = _searched(step, chips[id(step)])
        rates.append(_rate(step, chips[id(step)]) / float(found.tokens_per_s[best]))
        apart.append(_apart(step, found, best, ("tensor", "pipeline", "virtual_stages")))
    for chip, step in _llama_steps():
        found, best = _searched(step, chip)
        apart.append(_apart(step, found, best, ("tensor", "pipeline", "context")))
    near = float(np.mean(np.array(apart) <= 2))
    return [
        Check("7 published layout over the best, rate", float(np.median(rates)), 0.9, "higher"),
        Check("7 its degrees within 2x of the best, share", near, 0.8, "higher"),
    ]


def _llama_steps() -> list[tuple[str, PublishedStep]]:
    """Return chip and step of the runs of Llama 3, with micro-batches of one sequence."""
    rows = csv.DictReader(ROWS_FILE.read_text().splitlines())
    own = [row | {"micro_batch": "1"} for row in rows if row["source"] == _LLAMA and row["pp"]]
    return [(row["chip"], step) for row in own if (step := read_step(row)) is not None]


def _searched(step: PublishedStep, chip: str) -> tuple[LayoutSearch, int]:
    """Search the layouts of a step's model, accelerators and batch."""
    batch = step.layout.data * step.micro_batch * step.accumulation
    found = search_layouts(
        step.arch,
        published_machine(chip),
        counts=[int(step.layout.num_accelerators)],
        global_batch=round(batch),
        sequence_length=step.sequence_length,
    )
    return found, found.best(found.fits)


def _rate(step: PublishedStep, chip: str) -> float:
    """Forecast tokens per second of the layout as it was published."""
    settings = {item.name: getattr(step, item.name) for item in fields(step)}
    cost = training_step(settings.pop("arch"), machine=published_machine(chip), **settings)
    return cost.tokens / cost.time_s


def _apart(step: PublishedStep, found: LayoutSearch, best: int, axes: tuple[str, ...]) -> float:
    """Return the largest ratio between a published degree and the best one."""
    choice = found.choice(best)
    theirs = {name: int(getattr(step.layout, name)) for name in axes}
    ratios = [max(theirs[name] / choice[name], choice[name] / theirs[name]) for name in axes]
    told = ", ".join(f"{size} {name}" for name, size in theirs.items())
    print(f"{step.arch.name}, {step.sequence_length:,} tokens: {told}; best {layout_words(choice)}")
    return max(ratios)

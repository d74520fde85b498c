"""How a study foretells its largest model: from two smaller sizes, of one seed and of two.

Studies are made of the stored ladders of `_ladders.py`, whose largest rung is held out, one seed
each, or two seeds of one text together; of the own studies of other benchmarks, one has two seeds
and short runs, one three smaller sizes. Seeds of the stored ladders differ in their held-out
documents too, which adds to their scatter.
"""

from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, cast

import numpy as np
from benchmarks.common import Check
from benchmarks.train._own_recipes import ladder_runs, size_runs
from benchmarks.weigh._ladders import FRESH, POINTS, SHORT, LadderRun, read_ladders

from steelyard.quantity import Check as Said
from steelyard.weigh.held_out import forecast_largest

PAPER: list[str] = []

_QUICK = 6


@dataclass(frozen=True, slots=True)
class _Run:
    """What a forecast needs of a run."""

    parameters: int
    tokens: int
    eval_loss: float
    seed: int


def run(quick: bool) -> list[Check]:
    """Hold the largest rung out of every stored ladder, and the largest size out of own studies."""
    ladders = [item for path in (POINTS, FRESH, SHORT) for item in read_ladders(path)]
    if quick:
        ladders = ladders[:_QUICK]
    alone = [_foretold([item]) for item in ladders]
    ordered = sorted(ladders, key=lambda item: (item.text, item.points[0].steps, item.seed))
    pairs = [
        _foretold([one, two])
        for one, two in pairwise(ordered)
        if (one.text, one.points[0].steps) == (two.text, two.points[0].steps)
    ]
    checks = [*_scored("one seed", alone), *_scored("two seeds", pairs)]
    for name, runs in (
        ("short runs of two seeds", ladder_runs(quick)),
        ("sizes", size_runs(quick)),
    ):
        if not runs:
            continue
        said = _said(
            [
                _Run(item.parameters, item.tokens, item.loss, item.seed)
                for item in runs
                if not item.is_trunk
            ]
        )
        print(
            f"  {name}: {said.forecast.value:.3f} [{said.forecast.low:.3f}, "
            f"{said.forecast.high:.3f}], measured {said.measurement.value:.3f}; "
            f"{said.forecast.source}"
        )
        checks.append(
            Check(f"2 {name}: inside the 80 % interval", float(said.covered), 1.0, "higher")
        )
    return checks


def _foretold(ladders: list[LadderRun]) -> Said:
    """Forecast the largest rung's longest run from the smaller rungs."""
    return _said(
        [
            _Run(point.parameters, point.tokens, point.loss, item.seed)
            for item in ladders
            for point in item.points
        ]
    )


def _said(runs: list[_Run]) -> Said:
    """Forecast the largest of some runs."""
    found = forecast_largest(cast("Any", runs))
    assert found is not None
    return found


def _scored(name: str, said: list[Said]) -> list[Check]:
    """Count what intervals hold, and compare their widths with the errors."""
    errors = [abs(item.relative_error) for item in said]
    widths = [
        (item.forecast.high - item.forecast.low) / 2 / item.measurement.value for item in said
    ]
    held = float(np.mean([item.covered for item in said]))
    print(
        f"  {name}: {len(said)} studies, median error {median(errors):.2%}, half-width "
        f"{median(widths):.2%}, {held:.0%} inside"
    )
    return [
        Check(f"1 {name}: share inside 80 % intervals, at least", held, 0.7, "higher"),
        Check(f"1 {name}: share inside 80 % intervals, at most", held, 0.9, "lower"),
        Check(
            f"1 {name}: half-width over median error", median(widths) / median(errors), 2.5, "lower"
        ),
    ]

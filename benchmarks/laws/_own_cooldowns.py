"""Own runs of cooldowns and cosines: two shapes, two shares, three lengths, three rates, two seeds.

Every cosine falls to a tenth of its peak, every cooldown to 0; each schedule is judged at its own
best rate. Averages are those of the constant trunk, held against the 20 % cooldown of its length.
"""

import numpy as np
from benchmarks.common import Check
from benchmarks.train._own_recipes import cooldown_runs
from benchmarks.train._own_study import OwnRun

__all__ = ["own_cooldowns"]

_BEST, _COSINE = "cooldown-1-sqrt-0.2", "whole"


def own_cooldowns(quick: bool) -> list[Check]:
    """Compare schedules at their best rates, their sensitivity, and averages with cooldowns."""
    runs = cooldown_runs(quick)
    trunks = {run.folder.partition("/")[0]: run for run in runs if run.is_trunk}
    cells = [run for run in runs if not run.is_trunk]
    return [*_schedules(cells), *_averages(trunks, cells, _BEST)] if cells else []


def _kind(run: OwnRun) -> str:
    """Return shape and share of a run's schedule, such as "cooldown-linear-0.05"."""
    return run.folder.partition("/")[2].rpartition("-")[0]


def _by_rate(cells: list[OwnRun], kind: str, steps: int) -> dict[float, float]:
    """Return the mean loss over seeds by rate, at one length."""
    chosen = [run for run in cells if _kind(run) == kind and run.steps == steps]
    rates = sorted({run.learning_rate for run in chosen})
    return {
        rate: float(np.mean([run.loss for run in chosen if run.learning_rate == rate]))
        for rate in rates
    }


def _schedules(cells: list[OwnRun]) -> list[Check]:
    """Compare cooldowns with cosines and shapes with one another."""
    lengths = sorted({run.steps for run in cells})
    kinds = sorted({_kind(run) for run in cells})
    found = {(kind, steps): _by_rate(cells, kind, steps) for kind in kinds for steps in lengths}
    for (kind, steps), losses in found.items():
        shown = ", ".join(f"{rate:.3g}: {loss:.4f}" for rate, loss in losses.items())
        print(f"  {kind:<24} {steps:>5} steps, loss by rate {shown}")
    best = {key: min(losses.values()) for key, losses in found.items()}
    over = [best[_BEST, steps] / best[_COSINE, steps] - 1 for steps in lengths]
    spreads = {
        kind: [max(found[kind, steps].values()) / best[kind, steps] for steps in lengths]
        for kind in (_BEST, _COSINE)
    }
    shapes = [
        found["cooldown-1-sqrt-0.2", steps][rate] / found["cooldown-linear-0.2", steps][rate]
        for steps in lengths
        for rate in found[_BEST, steps]
    ]
    short = best["cooldown-1-sqrt-0.05", lengths[-1]] / best[_COSINE, lengths[-1]] - 1
    return [
        Check(
            "1 own runs: 20 % 1-sqrt over cosine, worst of three lengths", max(over), 0.005, "lower"
        ),
        Check(
            "1 own runs: worst over best rate, 1-sqrt over cosine, mean of lengths",
            float(np.mean(spreads[_BEST]) / np.mean(spreads[_COSINE])),
            1.0,
            "lower",
        ),
        Check("2 own runs: 1-sqrt over linear, mean", float(np.mean(shapes)), 1.0, "lower"),
        Check("2 own runs: 5 % 1-sqrt over cosine, longest", short, 0.01, "lower"),
    ]


def _averages(trunks: dict[str, OwnRun], cells: list[OwnRun], kind: str) -> list[Check]:
    """Measure what averages recover of the gap between a trunk and its cooled-down runs."""
    shares: dict[str, list[float]] = {}
    for run in cells:
        trunk = trunks[run.folder.partition("/")[0]]
        if _kind(run) != kind:
            continue
        raw = dict(trunk.curve)[run.steps]
        for name, pairs in trunk.averages.items():
            gap = (raw - dict(pairs)[run.steps]) / (raw - run.loss)
            shares.setdefault(name.partition("-")[0], []).append(gap)
    for name, found in shares.items():
        print(
            f"  {name} of the trunk recovers {min(found):.0%} to {max(found):.0%} of a cooldown's "
            f"gain, median {np.median(found):.0%}"
        )
    return [
        Check(
            "4 own runs: share of the gap that SWA recovers, least",
            min(shares["swa"]),
            0.4,
            "higher",
        ),
        Check(
            "4 own runs: the same, best average, least",
            max(map(min, shares.values())),
            0.4,
            "higher",
        ),
    ]

"""Own runs whose batch follows their noise, against the best constant batch at equal updates.

A target is what the best small constant batch reaches after a part of the tokens. Constant batches
at their best rates draw a line of examples over updates; a run whose batch adapts spares what it
needs fewer than that line at as many updates (McCandlish et al. 2018, arXiv 1812.06162, appendix
D). Rates are the best for each target, on both sides. Both sides are judged by the weights of the
moment, and once more by the better of these and two averages of them. Batches count sequences of 64
bytes.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from benchmarks.common import Check
from benchmarks.train._own_recipes import adaptive_runs
from benchmarks.train._own_study import OwnRun, steps_to

__all__ = ["own_adaptive"]

_SHARES = (1 / 8, 1 / 4, 3 / 8)
"""Targets: what the best small batch reaches after these parts of the tokens."""
_SMALL = 8
"""Largest batch that may set a target."""


def own_adaptive(quick: bool) -> list[Check]:
    """Compare examples at equal updates: by weights of the moment, then by averages too."""
    constant, adaptive = adaptive_runs(quick)
    if not constant or not all(adaptive.values()):
        return []
    checks = _compared(_plain(constant), {key: _plain(runs) for key, runs in adaptive.items()}, "")
    return [*checks, *_compared(constant, adaptive, ", averages too")]


def _plain(runs: list[OwnRun]) -> list[OwnRun]:
    """Return runs without their averages."""
    return [replace(run, averages={}) for run in runs]


def _compared(
    constant: list[OwnRun], adaptive: dict[float, list[OwnRun]], words: str
) -> list[Check]:
    """Compare every exchange rate with the constant batches at every target."""
    targets, gains = [_target(constant, share) for share in _SHARES], []
    for exchange, grown in adaptive.items():
        found = [_gain(constant, grown, target) for target in targets]
        # No number where no constant batch gets there in so few updates.
        shown = ", ".join(f"{100 * gain:.1f} %" for gain in found)
        print(f"  exchange {exchange:g}{words}: spares {shown}")
        gains += [gain for gain in found if np.isfinite(gain)]
    name = f"5 own runs{words}: examples spared over the best constant batch"
    return [
        Check(f"{name}, median", float(np.median(gains)), 0.10, "higher"),
        Check(f"{name}, least", min(gains), -0.05, "higher"),
    ]


def _target(runs: list[OwnRun], share: float) -> float:
    """Return the least mean loss of a small batch over its seeds after a part of the tokens."""
    found: dict[tuple[int, float], list[float]] = defaultdict(list)
    for run in runs:
        if run.batch_size <= _SMALL:
            steps, losses = run.best_curve
            at = np.interp(np.log(share * run.steps), np.log(steps), losses)
            found[run.batch_size, run.learning_rate].append(float(at))
    return min(float(np.mean(losses)) for losses in found.values())


def _gain(constant: list[OwnRun], adaptive: list[OwnRun], target: float) -> float:
    """Return the part of the examples that the best rate spares; NaN beyond the constant line."""
    needed: dict[int, float] = {}
    for (batch, _), runs in _by_rate(constant):
        steps = _mean(steps_to(run, target) for run in runs)
        needed[batch] = min(needed.get(batch, np.inf), steps)
    line = sorted((steps, steps * batch) for batch, steps in needed.items() if steps < np.inf)
    updates, examples = np.log(np.array(line).T)
    gains = []
    for (batch, _), runs in _by_rate(adaptive):
        steps = [steps_to(run, target) for run in runs]
        if np.isfinite(steps).all():
            made = _mean(map(_updates_at, runs, steps))
            at = np.interp(np.log(made), updates, examples, left=np.nan, right=np.nan)
            gains.append(1 - batch * _mean(steps) / float(np.exp(at)))
    kept = [gain for gain in gains if np.isfinite(gain)]
    return max(kept, default=np.nan)


def _by_rate(runs: list[OwnRun]) -> Iterable[tuple[tuple[int, float], list[OwnRun]]]:
    """Return the runs of each batch and rate, one per seed."""
    found: dict[tuple[int, float], list[OwnRun]] = defaultdict(list)
    for run in runs:
        found[run.batch_size, run.learning_rate].append(run)
    return found.items()


def _updates_at(run: OwnRun, step: float) -> float:
    """Return the updates that an adaptive run had made after so many of its recipe's batches."""
    steps, updates = np.array([(0, 0), *run.updates], dtype=np.float64).T
    return float(np.interp(step, steps, updates))


def _mean(values: Iterable[float]) -> float:
    """Return the geometric mean: infinite where one of the values is."""
    return float(np.exp(np.mean(np.log(list(values)))))

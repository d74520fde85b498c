"""Own runs of four sizes at four lengths: a law of the smaller cells forecasts the largest."""

import numpy as np
from benchmarks.common import Check
from benchmarks.train._own_recipes import repeat_runs, size_runs
from benchmarks.train._own_study import OwnRun
from numpy.typing import NDArray

from steelyard.laws.decisions.forecasting.forecast import EnsembleForecast, ensemble

__all__ = ["own_sizes"]

_SMALL_SHARE = 0.8
_EXCESS = 0.02
"""Loss that few unique tokens may cost before they count as too few."""


def own_sizes(quick: bool) -> list[Check]:
    """Forecast the largest cells and the largest size; find the tokens that a size needs."""
    runs = [run for run in size_runs(quick) if not run.is_trunk]
    repeats = [run for run in repeat_runs(quick) if not run.is_trunk]
    if not runs or not repeats:
        return []
    runs.sort(key=lambda run: run.parameters * run.tokens)
    count = round(_SMALL_SHARE * len(runs))
    largest = max(run.parameters for run in runs)
    few = [run for run in runs if run.parameters < largest]
    many = [run for run in runs if run.parameters == largest]
    cells, sizes = _said(runs[:count], runs[count:]), _said(few, many)
    inside = np.mean(
        [
            low <= run.loss <= high
            for run, low, high in zip(many, sizes.low, sizes.high, strict=True)
        ]
    )
    return [
        Check(
            "5 own runs: largest cells from 80 %, worst error",
            _worst(cells, runs[count:]),
            0.02,
            "lower",
        ),
        Check(
            "5 own runs: largest size from smaller ones, worst error",
            _worst(sizes, many),
            0.02,
            "lower",
        ),
        Check("5 own runs: largest size, share in 80 % intervals", float(inside), 0.7, "higher"),
        *_tokens_needed(repeats),
    ]


def _said(seen: list[OwnRun], wanted: list[OwnRun]) -> EnsembleForecast:
    """Forecast runs from others."""
    names = ("parameters", "tokens")
    columns = [
        {name: np.array([getattr(run, name) for run in runs], dtype=float) for name in names}
        for runs in (seen, wanted)
    ]
    said = ensemble(columns[0], np.array([run.loss for run in seen])).predict(columns[1])
    for run, value, low, high in zip(wanted, said.value, said.low, said.high, strict=True):
        print(
            f"  {run.parameters} parameters, {run.tokens} tokens: said {value:.3f} "
            f"[{low:.3f}, {high:.3f}], {run.loss:.3f}"
        )
    return said


def _worst(said: EnsembleForecast, runs: list[OwnRun]) -> float:
    """Return the largest relative error."""
    return float(np.abs(said.value / np.array([run.loss for run in runs]) - 1).max())


def _tokens_needed(runs: list[OwnRun]) -> list[Check]:
    """Find how the unique tokens without overfitting grow with the size, at one length."""
    longest = max(run.tokens for run in runs)
    runs = [run for run in runs if run.tokens == longest]
    sizes = np.array(sorted({run.parameters for run in runs}), dtype=float)
    needed = np.array([_needed([run for run in runs if run.parameters == size]) for size in sizes])
    power = float(np.polyfit(np.log(sizes), np.log(needed), 1)[0])
    print(
        f"  unique tokens that cost {_EXCESS:.0%} at {longest} tokens: {np.round(needed)} by size "
        f"{sizes}, as its power {power:.2f}"
    )
    return [
        Check("5 own runs: power of D >= k N^p, at least", power, 0.5, "higher"),
        Check("5 own runs: power of D >= k N^p, at most", power, 1.0, "lower"),
    ]


def _needed(runs: list[OwnRun]) -> float:
    """Return the unique tokens at which one size's loss exceeds that of the most by so much."""
    runs = sorted(runs, key=lambda run: run.unique_tokens)
    logs: NDArray[np.float64] = np.log([run.unique_tokens for run in runs])
    excess = np.array([run.loss / runs[-1].loss - 1 for run in runs])
    at = int(np.flatnonzero(excess > _EXCESS)[-1])
    share = (excess[at] - _EXCESS) / (excess[at] - excess[at + 1])
    return float(np.exp(logs[at] + share * (logs[at + 1] - logs[at])))

"""Runs that are stopped early by a forecast of their final loss, replayed on finished runs.

Every run is shown to the rule at six moments; the limits are losses
at which runs of its own family ended: their quartiles. A stop is wrong where the run did not end
above the limit. The simple rule beside it takes the loss of the moment for the final one, and stops
above it. How wide the 80 % intervals are was chosen on runs that `_stop_curves.is_tuned` names;
those of all others are counted apart.
"""

import math
from itertools import compress

import numpy as np
from benchmarks.common import Check
from benchmarks.train._stop_curves import FinishedRun, finished_runs

from steelyard.train.stopping import FinalLoss, forecast_final

PAPER: list[str] = ["40-beyond-fixed-durations"]
_SHARES = (0.2, 0.3, 0.4, 0.5, 0.65, 0.8)
_QUARTILES = (0.25, 0.5, 0.75)

_Times = list[tuple[float, float, FinalLoss | None]]
"""Share done, loss of the moment, and forecast, at each time of asking."""


def run(quick: bool) -> list[Check]:
    """Replay the rule.

    Args:
        quick: every eighth run.

    Returns:
        Wrong stops, and the share of the runs above a limit that are stopped before half.
    """
    runs = finished_runs()
    limits = {
        family: np.quantile([item.final for item in runs if item.family == family], _QUARTILES)
        for family in {item.family for item in runs}
    }
    runs = runs[::8] if quick else runs
    asked = [_asked(item) for item in runs]
    rows = [
        _replayed(item, said, limits[item.family]) for item, said in zip(runs, asked, strict=True)
    ]
    below = [stop for row in rows for above, stop, _ in row if not above]
    above = [stop for row in rows for is_above, stop, _ in row if is_above]
    naive = [stop for row in rows for is_above, _, stop in row if not is_above]
    early = [share <= 0.5 for share in above]
    print(f"{len(rows)} runs, {len(below)} pairs that end below a limit, {len(above)} above")
    print(f"wrong stops by the loss of the moment: {sum(map(np.isfinite, naive))}")
    _families(runs, rows)
    checks = [
        Check("4 wrong stops", float(sum(map(np.isfinite, below))), 0.0, "lower"),
        Check("4 pairs that must not stop", float(len(below)), 10.0 if quick else 50.0, "higher"),
        Check("4 runs above stopped before half", float(np.mean(early)), 0.5, "higher"),
        *_intervals("all runs", runs, asked),
    ]
    # Of every eighth run too few are aside to tell.
    if not quick:
        aside = [not item.is_tuned for item in runs]
        told = list(compress(runs, aside)), list(compress(asked, aside))
        checks += _intervals("runs aside", *told)
    return checks


def _intervals(name: str, runs: list[FinishedRun], asked: list[_Times]) -> list[Check]:
    """Count the finals inside the 80 % intervals, and compare the widths with the errors."""
    pairs = [
        (item, found)
        for item, times in zip(runs, asked, strict=True)
        for _, _, found in times
        if found is not None
    ]
    errors = [abs(math.log(item.final / found.forecast.value)) for item, found in pairs]
    widths = [math.log(found.forecast.high / found.forecast.low) / 2 for _, found in pairs]
    inside = [found.forecast.low <= item.final <= found.forecast.high for item, found in pairs]
    above = [item.final > found.least for item, found in pairs]
    print(
        f"{name}: {len(runs)} runs, {len(pairs)} forecasts, median error {np.median(errors):.2%}, "
        f"half-width {np.median(widths):.2%}, {np.mean(inside):.1%} inside, {np.mean(above):.1%} "
        f"above the least"
    )
    for family in dict.fromkeys(item.family for item in runs):
        mine = [
            held for held, (item, _) in zip(inside, pairs, strict=True) if item.family == family
        ]
        print(f"  {family:<30}{len(mine):>6}{np.mean(mine):>8.1%} inside")
    held, wide = float(np.mean(inside)), float(np.median(widths) / np.median(errors))
    return [
        Check(f"4 finals inside the 80 % intervals, {name}, at least", held, 0.7, "higher"),
        Check(f"4 finals inside the 80 % intervals, {name}, at most", held, 0.9, "lower"),
        Check(f"4 half-width over median error, {name}", wide, 2.5, "lower"),
    ]


def _asked(run: FinishedRun) -> _Times:
    """Return (share done, loss of the moment, forecast) at each time of asking."""
    found = []
    for share in _SHARES:
        seen = run.steps + 1 <= share * run.rates.steps
        if seen.any():
            said = forecast_final(run.rates, run.steps[seen], run.losses[seen])
            found.append((float(share), float(run.losses[seen][-1]), said))
    return found


def _replayed(
    run: FinishedRun, asked: _Times, limits: np.ndarray
) -> list[tuple[bool, float, float]]:
    """Return per limit whether the run ends above it, and the shares at which two rules stop it."""
    rows = []
    for limit in limits:
        by_us = (share for share, _, said in asked if said is not None and said.least > limit)
        by_now = (share for share, now, _ in asked if now > limit)
        rows.append((run.final > limit, next(by_us, np.inf), next(by_now, np.inf)))
    return rows


def _families(runs: list[FinishedRun], rows: list[list[tuple[bool, float, float]]]) -> None:
    """Print what became of each family."""
    print(f"{'family':<32}{'runs':>6}{'wrong':>7}{'above':>7}{'stopped':>9}{'before half':>13}")
    for family in dict.fromkeys(item.family for item in runs):
        pairs = [
            pair
            for item, row in zip(runs, rows, strict=True)
            if item.family == family
            for pair in row
        ]
        above = [stop for is_above, stop, _ in pairs if is_above]
        wrong = sum(np.isfinite(stop) for is_above, stop, _ in pairs if not is_above)
        count = sum(item.family == family for item in runs)
        stopped, early = sum(map(np.isfinite, above)), sum(stop <= 0.5 for stop in above)
        print(f"{family:<32}{count:>6}{wrong:>7}{len(above):>7}{stopped:>9}{early:>13}")

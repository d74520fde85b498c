"""What a plan says of its own doubt, against the published sweep of layouts (arXiv:2311.05610).

Spreads of the forecast's parts and one factor for the accelerator are fitted on every second group
of one model, length, number of accelerators and kernel; all figures are of the other groups. Checks
"as shipped" ask the same of the spreads that the package carries, without the factor, which a user
of other machines does not have. The spread of measured times between runs is not published and
counts as error of the forecast.

Figures of serving are held against published points (`_served_points`): spreads are fitted on half
of them by a hash of their names, and all figures are of the other half. Points of one model, chip
and engine share errors, so that they count for fewer than they are.
"""

from dataclasses import dataclass, replace

import numpy as np
from benchmarks.common import Check
from benchmarks.plan._layout_sweep import SweepGroup, sweep_groups
from benchmarks.plan._served_beliefs import (
    SERVED_ON,
    beyond_groups,
    fit_other_chip,
    fit_queue,
    fit_served,
)
from benchmarks.plan._served_points import ServedPoint, served_points
from numpy.typing import NDArray

from steelyard.plan.advice import PUBLISHED_BELIEFS
from steelyard.plan.beliefs import Beliefs, Doubt, fit_beliefs
from steelyard.plan.intervals import OTHER_SERVED_CHIP, QUEUE, QUEUE_GROWTH, SERVED_BELIEFS
from steelyard.plan.probes import probes_of, with_answer
from steelyard.plan.regret import regret_of

PAPER: list[str] = []

Indices = NDArray[np.int64]
_FIXED = 0.35
"""Half-width that these forecasts had before, whatever they were of."""


@dataclass(frozen=True)
class _Told:
    """What was said of a group, and what came true: numbers of one group."""

    sure: float
    was_best: float
    regret: float
    lost: float


def run(quick: bool) -> list[Check]:
    """Fit on half of the groups, and hold the other half against what is said of them."""
    groups = sweep_groups()
    if not groups:
        print("the published sweep is not there: nothing was compared")
        return [Check("0 groups of measured layouts", 0.0, 1.0, "higher")]
    fitted = [group for group in groups if group.is_fitted]
    held = [group for group in groups if not group.is_fitted]
    factor = float(np.median(np.concatenate([group.errors for group in fitted])))
    beliefs = fit_beliefs([(group.shares, group.errors - factor) for group in fitted])
    print(
        f"{len(fitted)} groups fitted, {len(held)} held out; forecasts times {np.exp(factor):.3f}"
    )
    print(f"spreads of parts {np.round(beliefs.parts, 3).tolist()}, of a layout {beliefs.own:.3f}")
    parts = 1 if quick else 20
    checks = _held_out(held, beliefs, factor, parts)
    print("as shipped, without the factor:")
    shipped = _held_out(held, PUBLISHED_BELIEFS, 0.0, parts)
    return [
        *checks,
        *(replace(check, name=f"{check.name}, as shipped") for check in shipped),
        *_served(),
    ]


def _held_out(held: list[SweepGroup], beliefs: Beliefs, factor: float, parts: int) -> list[Check]:
    """Hold all that is said of the groups against what was measured."""
    return [
        *_intervals(held, beliefs, factor),
        *_choices(held, beliefs, factor, parts),
        *_probes(held, beliefs, factor),
    ]


def _doubt(group: SweepGroup, beliefs: Beliefs) -> Doubt:
    return beliefs.doubt(group.shares)


def _intervals(held: list[SweepGroup], beliefs: Beliefs, factor: float) -> list[Check]:
    """Count how often the 80 % intervals hold, and how wide they are."""
    inside, widths, errors = [], [], []
    for group in held:
        forecast = group.forecast_s * np.exp(factor)
        middle, low, high = _doubt(group, beliefs).interval(forecast)
        inside += list((low <= group.measured_s) & (group.measured_s <= high))
        widths += list((high - low) / 2 / middle)
        errors += list(np.abs(group.measured_s / middle - 1))
    share, wide = float(np.mean(inside)), float(np.median(widths) / np.median(errors))
    print(f"median error {np.median(errors):.1%} of {len(errors)} layouts")
    return [
        Check("1 layouts inside 80 % intervals, at least", share, 0.7, "higher"),
        Check("1 layouts inside 80 % intervals, at most", share, 0.9, "lower"),
        Check("1 half-width over median error", wide, 2.5, "lower"),
    ]


def _choices(held: list[SweepGroup], beliefs: Beliefs, factor: float, parts: int) -> list[Check]:
    """Compare how sure the choices are, and what they should lose, with what they lose.

    Each group is asked as a whole and in random halves, which are other choices of the same runs.
    """
    rng = np.random.default_rng(0)
    told = []
    for group in held:
        count = len(group.words)
        subsets = [np.arange(count)]
        subsets += [rng.permutation(count)[: max(3, count // 2)] for _ in range(parts - 1)]
        told += [_choice(group, beliefs, factor, np.sort(subset)) for subset in subsets]
    sure, true = np.mean([item.sure for item in told]), np.mean([item.was_best for item in told])
    expected = np.mean([item.regret for item in told])
    lost = np.mean([item.lost for item in told])
    print(
        f"{len(told)} choices: the chosen one is said to be best in {sure:.0%}, and is in "
        f"{true:.0%}; {expected:.2%} of time is said to be lost, {lost:.2%} is"
    )
    return [
        Check("2 said to be best less is best, shares", float(abs(sure - true)), 0.15, "lower"),
        Check("2 regret said over regret, at least", float(expected / lost), 0.5, "higher"),
        Check("2 regret said over regret, at most", float(expected / lost), 2.0, "lower"),
    ]


def _choice(group: SweepGroup, beliefs: Beliefs, factor: float, places: Indices) -> _Told:
    """Choose among some layouts of a group, and see what came of it."""
    doubt = beliefs.doubt(group.shares[places])
    found = regret_of(group.forecast_s[places] * np.exp(factor), doubt)
    times = group.measured_s[places]
    chosen = times[found.chosen]
    return _Told(
        sure=float(found.wins[found.chosen]),
        was_best=float(chosen == times.min()),
        regret=found.lost_s,
        lost=float(chosen / times.min() - 1),
    )


def _probes(held: list[SweepGroup], beliefs: Beliefs, factor: float) -> list[Check]:
    """Answer each group's best step probe and every other one, from rows that were hidden."""
    best, others, before, narrower, inside = [], [], [], [], []
    for group in held:
        forecast = group.forecast_s * np.exp(factor)
        target = int(forecast.argmin())
        doubt = _doubt(group, beliefs)
        probes = probes_of(doubt, target, forecast, names=group.words)
        left = []
        for probe in probes:
            after = with_answer(doubt, probe, float(group.measured_s[probe.layout]))
            middle, low, high = after.interval(forecast)
            left.append(abs(float(np.log(group.measured_s[target] / middle[target]))))
            if probe is probes[0]:
                inside.append(low[target] <= group.measured_s[target] <= high[target])
                narrower.append(after.spread[target] / doubt.spread[target])
        best.append(left[0])
        others.append(float(np.mean(left[1:])))
        before.append(abs(float(np.log(group.measured_s[target] / forecast[target]))))
    print(
        f"mean error of the chosen layout's time: {np.mean(before):.1%}, after the named probe "
        f"{np.mean(best):.1%}, after another one {np.mean(others):.1%}; its interval holds in "
        f"{np.mean(inside):.0%} of {len(inside)} groups"
    )
    return [
        Check(
            "3 error after the named probe over before",
            float(np.mean(best) / np.mean(before)),
            0.8,
            "lower",
        ),
        Check(
            "3 error after it over after another",
            float(np.mean(best) / np.mean(others)),
            1.0,
            "lower",
        ),
        Check("3 width after it over before, median", float(np.median(narrower)), 0.8, "lower"),
    ]


def _served() -> list[Check]:
    """Hold the intervals of serving against the held-out half of the published points."""
    points = served_points()
    if not points:
        print("the published points of serving are not there: nothing was compared")
        return [Check("4 published points of serving", 0.0, 1.0, "higher")]
    beliefs = fit_served(points)
    shipped = [*SERVED_BELIEFS.parts, SERVED_BELIEFS.own, OTHER_SERVED_CHIP, QUEUE, QUEUE_GROWTH]
    found = [*beliefs.parts, beliefs.own, fit_other_chip(points, beliefs), *fit_queue(points)]
    print(f"serving: spreads of parts, of a point, of another chip, queue {np.round(found, 3)}")
    drift = float(np.abs(np.array(found) - shipped).max())
    held = [item for item in points if not item.is_fitted]
    _print_groups(held)
    known = [item for item in held if item.chip.startswith(SERVED_ON)]
    other = [item for item in held if not item.chip.startswith(SERVED_ON)]
    first = [item for item in held if np.isfinite(item.first_s)]
    return [
        *_kept("4 time per token", _tokens(known)),
        *_kept("4 time per token, other chips", _tokens(other)),
        *_kept("4 time per token, group not fitted", _beyond(points)),
        *_kept("5 first token", np.array([_first(item) for item in first])),
        Check("4 package's spreads of serving less those fitted", drift, 0.02, "lower"),
    ]


def _tokens(points: list[ServedPoint]) -> NDArray[np.float64]:
    """Return measured times, and the ends of their intervals, over those forecast, [points, 3]."""
    ends = np.array([1 + item.relative for item in points])
    measured = np.exp([item.error for item in points])
    return np.stack([measured, 1 / ends, ends], axis=1)


def _beyond(points: list[ServedPoint]) -> NDArray[np.float64]:
    """Return the same where the spreads are of all groups but the point's own."""
    rows = [(np.exp(item.error), 1 + wide) for item, wide in beyond_groups(points)]
    return np.array([(measured, 1 / end, end) for measured, end in rows])


def _first(item: ServedPoint) -> list[float]:
    ends = (item.first_s, item.first_low_s, item.first_high_s)
    return [value / item.prompt_s for value in ends]


def _kept(name: str, rows: NDArray[np.float64]) -> list[Check]:
    """Count how often intervals hold, and compare their width with the errors."""
    measured, low, high = rows.T
    share = float(((low <= measured) & (measured <= high)).mean())
    error = float(np.median(np.abs(measured - 1)))
    wide = float(np.median((high - low) / 2))
    fixed = float((np.abs(np.log(measured)) <= np.log1p(_FIXED)).mean())
    print(
        f"{name}: {len(rows)} held-out points, median error {error:.0%}, half-width {wide:.0%}; "
        f"a fixed {_FIXED:.0%} would hold in {fixed:.0%}"
    )
    return [
        Check(f"{name}, held-out points", float(len(rows)), 50, "higher"),
        Check(f"{name}, inside 80 % intervals, at least", share, 0.7, "higher"),
        Check(f"{name}, inside 80 % intervals, at most", share, 0.9, "lower"),
        Check(f"{name}, half-width over median error", wide / error, 2.5, "lower"),
    ]


def _print_groups(points: list[ServedPoint]) -> None:
    """Print for each group how far times were off, and how many intervals held."""
    for group in sorted({item.group for item in points}):
        own = [item for item in points if item.group == group]
        off = np.exp([item.error for item in own])
        kept = np.mean([abs(item.error) <= np.log1p(item.relative) for item in own])
        low, middle, high = np.percentile(off, [10, 50, 90])
        told = f"published over forecast {middle:.2f} ({low:.2f} to {high:.2f}), {kept:.0%} inside"
        print(f"{' '.join(group)}: {len(own)} points, {told}")

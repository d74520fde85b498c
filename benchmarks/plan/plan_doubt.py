"""What a plan says of its own doubt, against the published sweep of layouts (arXiv:2311.05610).

Spreads of the forecast's parts and one factor for the accelerator are fitted on every second group
of one model, length, number of accelerators and kernel; all figures are of the other groups. Checks
"as shipped" ask the same of the spreads that the package carries, without the factor, which a user
of other machines does not have. The spread of measured times between runs is not published and
counts as error of the forecast.
"""

from dataclasses import dataclass, replace

import numpy as np
from benchmarks.common import Check
from benchmarks.plan._layout_sweep import SweepGroup, sweep_groups
from numpy.typing import NDArray

from steelyard.plan.advice import PUBLISHED_BELIEFS
from steelyard.plan.beliefs import Beliefs, Doubt, fit_beliefs
from steelyard.plan.probes import probes_of, with_answer
from steelyard.plan.regret import regret_of

PAPER: list[str] = []

Indices = NDArray[np.int64]


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

"""Scaling by a whole forecast: replicas of least expected loss against Kubernetes' own rule.

Real demands: forecaster and reactive target are chosen on what lies before the last week of each
series, and how the scaler works on the later half of that; the last week chooses nothing. Replicas
start within minutes (median 180 s), functions within the quantiles of Huawei's Region 2 (Custom
runtime).
"""

import numpy as np
import polars as pl
from benchmarks.common import Check
from benchmarks.laws._shared import shared
from benchmarks.operate._cloud_demand import RealDemand, cloud_demands, pod_demands
from benchmarks.operate._doubling import coverage_after_doubling
from benchmarks.operate._hierarchy import hierarchy_checks
from benchmarks.operate._scaling import (
    ALLOWED,
    BUDGETS,
    FUNCTIONS,
    REPLICAS,
    Contest,
    compete,
    pooled,
    reactive_at,
)
from benchmarks.operate._true_quantile import hours_over_truth

from steelyard.operate.forecast.bookkeeping import held_by_forecaster
from steelyard.sim.control import Latency

__all__ = ["PAPER", "run"]

PAPER = ["03-harmony-autoscaling"]
_FEWEST_WINDOWS = 500


def run(quick: bool) -> list[Check]:
    """Compare scalers on real weeks, intervals behind a doubled level, and joint forecasts."""
    demands = cloud_demands(shared("cloud-metrics-nab"))
    demands += pod_demands(shared("huawei-coldstart"))
    if quick:
        demands = [demands[place] for place in (9, -1)]
        demands = [
            RealDemand(d.name, d.history, d.week[: len(d.week) // 4], d.step_s) for d in demands
        ]
    checks: list[Check] = []
    for kind, startup in _startups().items():
        if quick and kind == FUNCTIONS:
            continue
        # Functions start within seconds: what starts within a step of an hour is never late.
        asked = [item for item in demands if kind == REPLICAS or item.step_s < 3600]
        budgets = BUDGETS if kind == REPLICAS and not quick else (ALLOWED,)
        contests = [compete(item, startup, budgets) for item in asked]
        _show(kind, contests)
        checks += _scaling_checks(kind, contests)
        if kind == REPLICAS:
            checks += _coverage(contests)
    checks.append(_truth(quick))
    return checks + _doubling(quick) + hierarchy_checks(quick)


def _startups() -> dict[str, Latency]:
    """Return start-up times by kind of service."""
    table = pl.read_csv(shared("huawei-coldstart") / "quantiles.csv.gz")
    rows = table.filter(
        (pl.col("metric") == "cold_start")
        & (pl.col("scope") == "runtime_region2")
        & (pl.col("group") == "Custom")
    ).drop_nulls("value")
    levels, values = rows["quantile"].to_list(), rows["value"].to_list()
    # Beyond the plotted quantiles the outermost ones hold.
    functions = Latency((0.0, *levels, 1.0), (values[0], *values, values[-1]))
    return {REPLICAS: Latency.lognormal(180.0, 0.3), FUNCTIONS: functions}


def _show(kind: str, contests: list[Contest]) -> None:
    """Print instance-hours and missed time of each rival on each demand."""
    rivals = ("bayesian", "on_steps", "each", "reactive", "hindsight")
    print(f"\n{kind}: instance-hours, share of the time missed (allowed {ALLOWED:.0%})")
    print(f"{'demand':40s} " + " ".join(f"{name:>16s}" for name in rivals) + "  target")
    for item in contests:
        cells = []
        for name in rivals:
            outcome = getattr(item, name).report.outcome
            cells.append(f"{outcome.details['instance_hours']:9.0f} {outcome.violation_rate:6.3f}")
        print(f"{item.name:40s} " + " ".join(f"{cell:>16s}" for cell in cells) + f"  {item.target}")


def _scaling_checks(kind: str, contests: list[Contest]) -> list[Check]:
    """Make the checks of one kind of service."""
    ours, missed = pooled([item.bayesian for item in contests])
    theirs, their_missed = pooled([item.reactive for item in contests])
    best, _ = pooled([item.hindsight for item in contests])
    rates = [item.bayesian.report.outcome.violation_rate / ALLOWED for item in contests]
    in_band = float(np.mean([0.5 <= rate <= 1.5 for rate in rates]))
    print(f"{kind}: within [.5, 1.5] of the allowed misses on {in_band:.0%} of the demands")
    print(f"{kind}: pooled misses ours {missed:.4f}, reactive {their_missed:.4f}")
    for group, part in _groups(contests).items():
        _show_group(f"{kind}, {group}", part)
    checks = [
        Check(f"3 misses over allowed, at most, {kind}", missed / ALLOWED, 1.5, "lower"),
        Check(f"3 misses over allowed, at least, {kind}", missed / ALLOWED, 0.5, "higher"),
        Check(f"3 instance-hours over reactive, {kind}", ours / theirs, 0.85, "lower"),
        Check(f"3 misses over reactive, {kind}", missed / max(their_missed, 1e-9), 1.0, "lower"),
        Check(
            f"3 instance-hours over the quantile in hindsight, {kind}", ours / best, 1.1, "lower"
        ),
    ]
    if len(contests[0].by_budget) > 1:
        alike = ours / reactive_at(contests, missed)
        name = f"3 instance-hours over reactive at equal misses, {kind}"
        checks.append(Check(name, alike, 0.85, "lower"))
    return checks


def _groups(contests: list[Contest]) -> dict[str, list[Contest]]:
    """Tell the hourly pods from the cloud metrics."""
    pods = [item for item in contests if item.name.startswith("pods")]
    cloud = [item for item in contests if not item.name.startswith("pods")]
    return {name: part for name, part in (("cloud", cloud), ("pods", pods)) if part}


def _show_group(title: str, contests: list[Contest]) -> None:
    """Print the ratios of one group of demands."""
    ours, missed = pooled([item.bayesian for item in contests])
    steps, steps_missed = pooled([item.on_steps for item in contests])
    theirs, their_missed = pooled([item.reactive for item in contests])
    print(
        f"{title}: hours over reactive {ours / theirs:.3f}, misses {missed:.4f} and "
        f"{their_missed:.4f}; deciding on steps alone {steps / theirs:.3f}, misses "
        f"{steps_missed:.4f}"
    )
    for budget in contests[0].by_budget:
        hours, share = pooled([item.by_budget[budget] for item in contests])
        print(
            f"  reactive, tuned to miss at most {budget:.0%}: hours over the one above "
            f"{hours / theirs:.3f}, misses {share:.4f}"
        )


def _coverage(contests: list[Contest]) -> list[Check]:
    """Check the intervals of all forecasts that were decided on, by forecaster."""
    held = held_by_forecaster(step for item in contests for step in item.steps)
    checks: list[Check] = []
    for name, (steps, share) in held.items():
        print(f"80 % intervals of {name}: {share:.3f} of {steps:,} steps held")
        # Fewer than 500 windows say little of a forecaster.
        if steps >= _FEWEST_WINDOWS:
            checks += [
                Check(f"ledger: 80 % intervals held, {name}, at least", share, 0.7, "higher"),
                Check(f"ledger: 80 % intervals held, {name}, at most", share, 0.9, "lower"),
            ]
    return checks


def _truth(quick: bool) -> Check:
    """Compare with the quantile that the generator knows."""
    ratios = [
        hours_over_truth(seed, steps=600 if quick else 2016) for seed in range(2 if quick else 8)
    ]
    print(f"\nover the true quantile, by seed: {[round(item, 3) for item in ratios]}")
    return Check("3 instance-hours over the true quantile", float(np.mean(ratios)), 1.1, "lower")


def _doubling(quick: bool) -> list[Check]:
    """Check intervals behind a doubled level, over seeds."""
    seeds = range(3 if quick else 5)
    found = np.array(
        [coverage_after_doubling(seed, steps=1000 if quick else 2016) for seed in seeds]
    )
    adapted, plain = found.mean(axis=0)
    print(f"\n90 % intervals behind the doubling: adapted {adapted:.3f}, not {plain:.3f}")
    return [
        Check("4 coverage adapted, at least", float(found[:, 0].min()), 0.85, "higher"),
        Check("4 coverage adapted, at most", float(found[:, 0].max()), 0.95, "lower"),
        Check("4 coverage not adapted, outside", float(found[:, 1].max()), 0.85, "lower"),
    ]

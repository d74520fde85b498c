"""Servers beyond a row's power budget, kept under it by two thresholds and two priorities.

A row whose budget was planned for 40 servers of eight A100 serves BLOOM to the published mix of
requests; 52 servers share that budget for six weeks, five times. Power of phases is fitted to
published measurements. Of the published row are known, and set here: the budget of a server (a row
in training reaches 97 % of it), thresholds, clocks, latencies and the mix. Not known are requests
per server at once, the load and its nights: 2, .7 and .3 were chosen of 1 to 4, .5 to .8, and .3 or
.5, on two days of one seed, looking at peak, rise and latencies; T2 by the rule is not used here.
"""

import time
from dataclasses import replace

import numpy as np
from benchmarks.common import Check
from benchmarks.plan._held_out import held_out

from steelyard.operate.power import (
    CapLadder,
    compare_policies,
    longer_than,
    no_cap,
    one_threshold,
    polca,
    replay_scenario,
    uncapped,
)
from steelyard.plan.power import plan_row, second_threshold
from steelyard.sim.control import simulate
from steelyard.sim.power import RowPlant, RowReplay, RowScenario

PAPER = ["04-polca"]

_WEEKS, _SEEDS = 6, (0, 1, 2, 3, 4)
_ADDED = 12
_PLANNED = RowScenario()


def run(quick: bool) -> list[Check]:
    """Check the planned row, the policies on the larger one, the power curve and the speed."""
    days = 1.0 if quick else 7.0 * _WEEKS
    seeds = _SEEDS[:1] if quick else _SEEDS
    return [
        *_planned(days, seeds),
        *_policies(days, seeds),
        *_hungrier(days, seeds),
        *_fits(),
        *_speed(quick),
        *_planner(quick),
    ]


def _planned(days: float, seeds: tuple[int, ...]) -> list[Check]:
    """Measure the planned row without caps, and what the rule makes of its rises."""
    rows = [replay_scenario(replace(_PLANNED, days=days, seed=seed), uncapped()) for seed in seeds]
    peak, rise = max(item.peak for item in rows), max(item.rise(40.0) for item in rows)
    row = _PLANNED.row()
    training = row.training_w / row.budget_w
    threshold = second_threshold(rise)
    print(
        f"40 servers: peak {peak:.1%} (published 79 %), 40 s rise {rise:.1%} (11.8 %), training "
        f"{training:.1%} (97 %, set), so T2 {threshold:.2f} (0.89)"
    )
    for change in ({"slots": 1}, {"slots": 4}, {"load": 0.6}, {"night": 0.5}):
        other = replay_scenario(replace(_PLANNED, days=min(days, 7.0), **change), uncapped())
        print(
            f"  with {change}, {min(days, 7.0):g} days: peak {other.peak:.1%}, rise "
            f"{other.rise(40.0):.1%}"
        )
    return [
        Check("1 peak of 40 servers over the budget", peak, 0.75, "higher"),
        Check("1 peak of 40 servers over the budget, at most", peak, 0.83, "lower"),
        Check("1 largest rise in 40 s over the budget", rise, 0.08, "higher"),
        Check("1 largest rise in 40 s over the budget, at most", rise, 0.15, "lower"),
        Check("1 peak of a row in training (set)", training, 0.93, "higher"),
        Check("1 peak of a row in training (set), at most", training, 1.0, "lower"),
        Check("4 second threshold by the rule", threshold, 0.87, "higher"),
        Check("4 second threshold by the rule, at most", threshold, 0.90, "lower"),
    ]


def _brakes(replay: RowReplay) -> float:
    return replay.report.outcome.details["brakes"]


def _policies(days: float, seeds: tuple[int, ...]) -> list[Check]:
    """Replay 52 servers under each policy."""
    brakes: dict[str, list[float]] = {"polca": [], "no cap": [], "one threshold": []}
    longer: list[dict[str, float]] = []
    for seed in seeds:
        scenario = replace(_PLANNED, days=days, seed=seed, added=_ADDED)
        # All of them once; where only brakes count, those that are compared.
        names = (*brakes, "all cap", "oracle") if seed == seeds[0] else tuple(brakes)
        answer = compare_policies(scenario, names)
        for item in answer.rows():
            print(
                f"seed {seed}, {item['policy']:13s} peak {item['peak']:6.1%}  mean "
                f"{item['mean']:.1%}  brakes {item['brakes']:6.0f}  over {item['over_s']:7.0f} s  "
                f"high p50 {item['high_p50_longer']:+.1%} p99 {item['high_p99_longer']:+.1%}  low "
                f"p50 {item['low_p50_longer']:+.1%} p99 {item['low_p99_longer']:+.1%}"
            )
        for name, found in brakes.items():
            found.append(_brakes(answer.replays[name]))
        longer.append(longer_than(answer.replays["polca"], answer.free))
    worst = {name: max(item[name] for item in longer) for name in longer[0]}
    weeks = "in six weeks" if days > 7 else "in a day"
    return [
        Check(f"2 brakes of polca {weeks}, +30 %, worst seed", max(brakes["polca"]), 0, "lower"),
        Check(f"2 brakes without caps {weeks}, least seed", min(brakes["no cap"]), 11, "higher"),
        Check(
            f"2 brakes with one threshold {weeks}, least seed",
            min(brakes["one threshold"]),
            11,
            "higher",
        ),
        Check("2 high priority, median longer by", worst["high_p50"], 0.01, "lower"),
        Check("2 high priority, 99th percentile longer by", worst["high_p99"], 0.05, "lower"),
        Check("2 low priority, median longer by", worst["low_p50"], 0.05, "lower"),
        Check("2 low priority, 99th percentile longer by", worst["low_p99"], 0.50, "lower"),
    ]


def _hungrier(days: float, seeds: tuple[int, ...]) -> list[Check]:
    """Let accelerators draw 5 % more than was planned with."""
    ours = theirs = 0.0
    for seed in seeds[:3]:
        scenario = replace(_PLANNED, days=days, seed=seed, added=_ADDED, hungrier=1.05)
        requests = scenario.requests()
        # The budget stays that of the row as planned: `hungrier` raises the powers alone.
        budget_w = scenario.row().budget_w
        ours += _brakes(replay_scenario(scenario, polca(budget_w), requests=requests))
        theirs += _brakes(replay_scenario(scenario, one_threshold(budget_w), requests=requests))
    print(f"5 % hungrier: {ours:.0f} brakes of polca, {theirs:.0f} of one threshold, three seeds")
    return [Check("3 brakes of polca, 5 % hungrier", ours, max(0.01 * theirs, 0.0), "lower")]


def _fits() -> list[Check]:
    """Fit the curve on half of the settings and look at the other half, both ways round."""
    errors = []
    for parity in (0, 1):
        pairs = held_out(parity)
        ratios = [
            (
                model.request(row.prompt_tokens, row.output_tokens, row.batch).power_w / row.mean,
                float(model.prompt_peak_w(row.prompt_tokens, row.batch)) / row.peak,
            )
            for row, model in pairs
        ]
        rated_w = np.array([model.curve.rated_w * model.tensor_parallel for _, model in pairs])
        errors.append(np.abs(np.array(ratios) / rated_w[:, None] - 1).mean(axis=0))
    mean, peak = np.max(errors, axis=0).tolist()
    return [
        Check("5 mean error of average power, worse half", mean, 0.05, "lower"),
        Check("5 mean error of peak power, worse half", peak, 0.08, "lower"),
    ]


def _speed(quick: bool) -> list[Check]:
    """Count the seconds of a core for six weeks of 52 servers; compare with the plain loop."""
    small = replace(_PLANNED, servers=4, added=2, days=1 / 12)
    row, requests = small.row(), small.requests()
    plant = RowPlant(row, requests)
    whole = simulate(
        polca(row.budget_w),
        plant,
        [small.meter()],
        small.actuators(),
        period_s=small.meter_period_s,
        duration_s=small.duration_s,
    )
    fast = replay_scenario(small, polca(row.budget_w))
    unequal = float(whole.landed != fast.report.landed or whole.outcome != fast.report.outcome)
    days = 1.0 if quick else 7.0 * _WEEKS
    scenario = replace(_PLANNED, days=days, added=_ADDED)
    requests = scenario.requests()
    start = time.process_time()
    replay_scenario(scenario, no_cap(scenario.row().budget_w), requests=requests)
    braked = time.process_time()
    replay_scenario(scenario, polca(scenario.row().budget_w), requests=requests)
    seconds = (braked - start, time.process_time() - braked)
    scaled = max(seconds) * 7 * _WEEKS / days
    print(f"{days:g} days of 52 servers: {seconds[0]:.1f} s with brakes alone, {seconds[1]:.1f} s")
    return [
        Check("6 skipping and plain loop differ", unequal, 0, "lower"),
        Check("6 a minute over the processor time of six weeks", 60.0 / scaled, 1.0, "higher"),
    ]


def _planner(quick: bool) -> list[Check]:
    """Ask how many servers the row carries: with the paper's thresholds, and by the rule."""
    scenario = replace(_PLANNED, days=0.5 if quick else 7.0)
    seeds = (0,) if quick else (0, 1, 2)

    def fixed(budget_w: float, low: float, high: float) -> CapLadder:
        return polca(budget_w)

    found: list[float] = []
    for load in (0.6, _PLANNED.load):
        for words, policy in (("published thresholds", fixed), ("thresholds by the rule", None)):
            made = plan_row(replace(scenario, load=load), seeds=seeds, policy=policy)
            found.append(made.share)
            print(
                f"planner, {scenario.days:g} days, load {load}, {words}: {made.added} more "
                f"({made.share:+.0%}), T2 {made.t2:.2f}; {made.binding}"
            )
    return [
        Check("2 servers added by the planner, published thresholds", found[-2], 0.30, "higher"),
        Check("2 servers added by the planner, thresholds by the rule", found[-1], 0.30, "higher"),
    ]

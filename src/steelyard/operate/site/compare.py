"""Controllers side by side on one site, trace and seed, with regrets."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from steelyard import catalog
from steelyard.catalog.hardware import Site
from steelyard.operate.battery import DayAheadBattery, best_battery_w
from steelyard.operate.cooling import (
    FixedSetpoint,
    SetpointPlan,
    TrimAndRespond,
    best_setpoints,
)
from steelyard.operate.shifting import DayAheadShifting, delayed_load
from steelyard.operate.site.account import SiteAccount, hourly_account
from steelyard.operate.site.recipe import SiteRecipe
from steelyard.sim.control.report import ControlReport, with_regret
from steelyard.sim.control.shapes import Outcome
from steelyard.sim.datacenter import (
    DataCenter,
    Plant,
    QueueRules,
    SitePolicy,
    SiteRun,
    SiteView,
    SiteYear,
    simulate_site,
    windows,
)

__all__ = ["LearnedFor", "SiteAnswer", "compare_controllers"]

_STEPS_PER_DAY, _STEPS_PER_HOUR = 96, 4
_LEAD = _STEPS_PER_DAY
"""Steps before those that are counted: policies that look a day back have one to look at."""
_MOST_PROGRAM_STEPS = 31 * _STEPS_PER_DAY
"""Steps up to which the best battery is worked out: its linear program grows with them."""

LearnedFor = Callable[[DataCenter, SiteYear, np.ndarray], SitePolicy]
"""Makes a controller that was trained for a site, from its year and load."""


@dataclass(frozen=True)
class SiteAnswer:
    """What each controller cost.

    Attributes:
        reports: a report per controller, cost in grams of carbon, with regret.
        runs: what each metered, by name.
        accounts: the same by hour.
        delayed: accounts without and with the flexible work delayed, over equal hours.
        carbon_g_per_kwh: intensity of the grid by step.
        source: where weather and carbon come from.
    """

    reports: list[ControlReport]
    runs: dict[str, SiteRun]
    accounts: dict[str, SiteAccount]
    delayed: dict[str, SiteAccount]
    carbon_g_per_kwh: np.ndarray
    source: str


@dataclass(frozen=True, slots=True)
class _Scripted:
    """Does what was worked out before, by step."""

    values: np.ndarray

    def decide(self, view: SiteView) -> np.ndarray:
        return self.values[view.step : view.step + 1]


def compare_controllers(recipe: SiteRecipe, learned: LearnedFor | None = None) -> SiteAnswer:
    """Run a site under each controller.

    Args:
        recipe: what is asked.
        learned: trains the learned controller that the recipe asks for.

    Returns:
        The answer; every controller had the same weather, carbon and load, and each begins with an
        empty battery and ends with no work waiting. A day before is simulated and not counted.

    Raises:
        CatalogError: a record is unknown or broken, or its price is.
        TraceError: a series cannot be used.
        CapacityError: the chiller is too small for a step.
    """
    spec, year = recipe.spec(), recipe.year()
    loads, is_metered = recipe.loads(Plant(spec))
    steps, first = recipe.days * _STEPS_PER_DAY, recipe.start_day * _STEPS_PER_DAY
    rules = QueueRules(flexible_share=recipe.flexible_share)
    drivers = windows([year], [first - _LEAD], [loads], steps + _LEAD)
    center = DataCenter(spec, drivers, rules=rules, is_metered=is_metered)
    price = catalog.site(recipe.site or spec.site)
    runs = _cooled(center, recipe)
    if recipe.ppo_steps and learned:
        runs["PPO"] = simulate_site(center, learned(center, year, loads), start_c=recipe.setpoint_c)
    runs |= _with_storage(center, recipe)
    runs = {name: run.after(_LEAD) for name, run in runs.items()}
    accounts = {name: hourly_account(run, price) for name, run in runs.items()}
    return SiteAnswer(
        reports=_reports(runs, accounts),
        runs=runs,
        accounts=accounts,
        delayed=_delayed(recipe, center, (year, loads, first, steps), price),
        carbon_g_per_kwh=center.drivers.carbon_g_per_kwh[_LEAD:, 0],
        source=year.source,
    )


def _cooled(center: DataCenter, recipe: SiteRecipe) -> dict[str, SiteRun]:
    """Run each controller of setpoints; battery and queue rest."""
    start = recipe.setpoint_c
    path, best = best_setpoints(center, start_c=start)
    policies: dict[str, SitePolicy] = {
        f"fixed {start:g} C": FixedSetpoint(setpoint_c=start),
        f"best fixed, {best:g} C": FixedSetpoint(setpoint_c=best),
        "trim and respond": TrimAndRespond(),
        "plan": SetpointPlan(),
        "oracle": _Scripted(path),
    }
    return {name: simulate_site(center, policy, start_c=start) for name, policy in policies.items()}


def _with_storage(center: DataCenter, recipe: SiteRecipe) -> dict[str, SiteRun]:
    """Run plans of setpoints with waiting work, the battery, and both; then the best battery."""
    shifting, battery, closing = DayAheadShifting(), DayAheadBattery(), 6 * _STEPS_PER_HOUR
    has_battery, may_wait = center.limits.capacity_j > 0, recipe.flexible_share > 0
    asked = {
        "plan, work waits": (shifting, None, may_wait),
        "plan, battery": (None, battery, has_battery),
        "plan, both": (shifting, battery, has_battery and may_wait),
    }
    runs = {
        name: simulate_site(
            center,
            SetpointPlan(),
            shifting=waits,
            battery=stores,
            start_c=recipe.setpoint_c,
            closing_steps=closing,
        )
        for name, (waits, stores, is_there) in asked.items()
        if is_there
    }
    # Only on the best setpoints: a battery on a worse plan would not bound the plans with storage.
    if has_battery and center.drivers.steps <= _MOST_PROGRAM_STEPS:
        path, _ = best_setpoints(center, start_c=recipe.setpoint_c)
        plain = simulate_site(center, _Scripted(path), start_c=recipe.setpoint_c)
        power = best_battery_w(
            center.drivers.carbon_g_per_kwh[_LEAD:, 0],
            plain.column("facility_w")[_LEAD:, 0],
            center.limits,
        )
        power = np.concatenate([np.zeros(_LEAD), power])
        runs["oracle, battery"] = simulate_site(
            center, _Scripted(path), battery=_Scripted(power), start_c=recipe.setpoint_c
        )
    return runs


def _reports(runs: dict[str, SiteRun], accounts: dict[str, SiteAccount]) -> list[ControlReport]:
    """Make the reports, with the regret of grams to the oracle of setpoints."""
    made = {
        name: ControlReport(
            name=name,
            outcome=Outcome(
                cost=float(run.carbon_g[0]),
                checked=run.rows.shape[0],
                violated=float(run.violations[0] + run.overdue[0]),
                details=accounts[name].totals() | {"pue": float(run.pue[0])},
            ),
            duration_s=run.rows.shape[0] * 3600.0 / _STEPS_PER_HOUR,
        )
        for name, run in runs.items()
    }
    fixed = [item for name, item in made.items() if "fixed" in name]
    return with_regret(list(made.values()), oracle=made["oracle"], fixed=fixed)


def _delayed(
    recipe: SiteRecipe,
    center: DataCenter,
    series: tuple[SiteYear, np.ndarray, int, int],
    price: Site,
) -> dict[str, SiteAccount]:
    """Account for the same work at once and delayed, over hours that hold both."""
    year, loads, first, steps = series
    delay = round(recipe.delay_h * _STEPS_PER_HOUR)
    if not (recipe.flexible_share and delay):
        return {}
    # The hours after the last one hold the work that was delayed: both accounts do equal work.
    drivers = windows([year], [first], [loads], steps + delay)
    moved = delayed_load(drivers.load[:, 0], recipe.flexible_share, delay)
    found = {}
    for name, load in (("at once", drivers.load), ("delayed", moved[:, None])):
        held = DataCenter(
            center.plant.spec, replace(drivers, load=load), is_metered=center.is_metered
        )
        run = simulate_site(held, SetpointPlan(), start_c=recipe.setpoint_c)
        found[name] = hourly_account(run, price)
    return found

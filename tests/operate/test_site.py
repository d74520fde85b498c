"""Controllers of a site: setpoints, battery, waiting work, learning, and the verb."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from steelyard import catalog
from steelyard.cli.main import main
from steelyard.config import load
from steelyard.errors import ConfigError, TraceError
from steelyard.operate.battery import DayAheadBattery, RuleBattery, best_battery_w
from steelyard.operate.cooling import (
    FixedSetpoint,
    SetpointPlan,
    TrimAndRespond,
    best_setpoints,
    perfect,
    setpoint_grid,
)
from steelyard.operate.shifting import DayAheadShifting, delayed_load
from steelyard.operate.site import SiteRecipe, compare_controllers
from steelyard.sim.datacenter import DataCenter, QueueRules, generated_year, simulate_site, windows

SPEC = catalog.datacenter("free-cooled-1mw")
LOAD = np.clip(0.5 + 0.2 * np.sin(np.arange(35040) * 2 * np.pi / 96), 0, 1)


@pytest.fixture(scope="module")
def center():
    drivers = windows([generated_year(3)], [96 * 100], [LOAD], 480)
    return DataCenter(SPEC, drivers, rules=QueueRules(flexible_share=0.3))


def test_trim_and_respond_climbs_to_the_limit_and_no_further(center):
    run = simulate_site(center, TrimAndRespond())
    assert run.violations[0] == 0
    assert run.column("inlet_c").max() > 26.4
    assert set(np.round(np.diff(run.setpoint_c[:, 0]), 6)) <= {-0.5, 0.0, 0.5}
    # With the limit itself as goal, every probe breaks it.
    assert simulate_site(center, TrimAndRespond(limit_c=27.0)).violations[0] > 0


def test_plans_emit_less_than_rules_and_no_less_than_the_oracle(center):
    path, best = best_setpoints(center)

    class Known:
        def decide(self, view):
            return path[view.step : view.step + 1]

    oracle = simulate_site(center, Known()).carbon_g[0]
    plan = simulate_site(center, SetpointPlan())
    informed = simulate_site(center, SetpointPlan(forecast=perfect, horizon_steps=16)).carbon_g[0]
    fixed = simulate_site(center, FixedSetpoint(setpoint_c=best), start_c=best).carbon_g[0]
    ruled = simulate_site(center, TrimAndRespond()).carbon_g[0]
    assert oracle <= informed * (1 + 1e-9) <= min(fixed, ruled)
    assert oracle <= plan.carbon_g[0] <= ruled
    assert plan.violations[0] == 0


def test_best_setpoints_equal_a_search_of_all_paths():
    drivers = windows([generated_year(3)], [2000], [LOAD], 4)
    small = DataCenter(replace(SPEC, setpoint_low_c=17.0, setpoint_high_c=19.0), drivers)
    grid = setpoint_grid(small, 1.0)
    path, _ = best_setpoints(small, spacing_c=1.0, start_c=18.0)

    def grams(setpoints):
        return sum(
            float(
                small.plant.meters(
                    value,
                    drivers.load[step, 0],
                    drivers.outdoor_c[step, 0],
                    drivers.wet_bulb_c[step, 0],
                ).facility_w
            )
            * drivers.carbon_g_per_kwh[step, 0]
            for step, value in enumerate(setpoints)
        )

    allowed = [
        item
        for item in np.array(np.meshgrid(*[grid] * 4)).reshape(4, -1).T
        if np.abs(np.diff(np.append(18.0, item))).max() <= 1.0
    ]
    assert grams(path) == pytest.approx(min(map(grams, allowed)))


def test_forecasts_read_nothing_after_the_present(center):
    drivers = center.drivers
    cut = 200
    later = drivers.carbon_g_per_kwh.copy()
    later[cut + 1 :] *= 3
    changed = DataCenter(SPEC, replace(drivers, carbon_g_per_kwh=later), rules=center.rules)
    policies = {
        "shifting": DayAheadShifting(),
        "battery": DayAheadBattery(),
    }
    one, two = (simulate_site(item, SetpointPlan(), **policies) for item in (center, changed))
    assert np.array_equal(one.setpoint_c[: cut + 1], two.setpoint_c[: cut + 1])
    for name in ("executed", "charge_w", "discharge_w"):
        assert np.array_equal(one.column(name)[: cut + 1], two.column(name)[: cut + 1])


def test_battery_and_waiting_work_save_carbon_and_finish(center):
    plain = simulate_site(center, FixedSetpoint())
    run = simulate_site(
        center,
        FixedSetpoint(),
        shifting=DayAheadShifting(),
        battery=DayAheadBattery(),
        closing_steps=24,
    )
    assert run.carbon_g[0] < plain.carbon_g[0]
    assert run.overdue[0] == 0 and run.column("waiting")[-1, 0] < 1e-9
    assert run.column("executed").sum() == pytest.approx(plain.column("executed").sum())
    ruled = simulate_site(center, FixedSetpoint(), battery=RuleBattery())
    assert ruled.column("charge_w").max() > 0


def test_the_best_battery_keeps_the_limits_and_beats_the_rest(center):
    plain = simulate_site(center, FixedSetpoint())
    carbon, facility = center.drivers.carbon_g_per_kwh[:, 0], plain.column("facility_w")[:, 0]
    power = best_battery_w(carbon, facility, center.limits)

    class Known:
        def decide(self, view):
            return power[view.step : view.step + 1]

    best = simulate_site(center, FixedSetpoint(), battery=Known())
    done = best.column("charge_w")[:, 0] - best.column("discharge_w")[:, 0]
    assert done == pytest.approx(power, abs=5.0)  # the simulator cuts nothing of the plan
    own = simulate_site(center, FixedSetpoint(), battery=DayAheadBattery(), closing_steps=24)
    assert best.carbon_g[0] < own.carbon_g[0] < plain.carbon_g[0]
    with pytest.raises(ConfigError, match="a battery"):
        best_battery_w(carbon, facility, center.limits._replace(capacity_j=0.0))


def test_a_delay_moves_work_and_keeps_its_sum():
    load = np.linspace(0.2, 0.6, 50)
    moved = delayed_load(load, 0.5, 10)
    assert moved.sum() == pytest.approx(load.sum())
    assert moved[:10] == pytest.approx(load[:10] / 2)
    with pytest.raises(ConfigError, match="has a load of"):
        delayed_load(np.full(40, 0.9) + np.repeat([0.0, -0.3], 20)[::-1], 0.9, 10)
    with pytest.raises(ConfigError, match="must be in"):
        delayed_load(load, 1.5, 10)


def test_an_answer_is_conserved_at_each_level():
    answer = compare_controllers(SiteRecipe(days=1))
    for account in [*answer.accounts.values(), *answer.delayed.values()]:
        cooling = account.crac_kwh + account.chiller_kwh + account.tower_kwh + account.pumps_kwh
        bought = account.it_kwh + cooling + account.battery_kwh
        assert account.grid_kwh == pytest.approx(bought, rel=1e-9)
        assert account.totals()["grid_kwh"] == pytest.approx(bought.sum())
        price = catalog.site(SPEC.site).price_usd_per_kwh
        assert account.usd == pytest.approx(account.grid_kwh * price)
    before, after = (answer.delayed[name].totals() for name in ("at once", "delayed"))
    assert after["it_kwh"] == pytest.approx(before["it_kwh"], rel=0.01)
    rows = {item.name: item for item in answer.reports}
    assert rows["oracle"].oracle_regret == 0
    assert rows["plan"].oracle_regret >= -1e-6
    assert rows["fixed 18 C"].oracle_regret > 0
    total = answer.runs["plan"].carbon_g[0]
    assert answer.accounts["plan"].carbon_kg.sum() * 1e3 == pytest.approx(total)


def test_power_of_racks_may_drive_a_site(tmp_path):
    path = tmp_path / "power.csv"
    path.write_text("it_w\n" + "600000\n700000\n" * 12)
    answer = compare_controllers(SiteRecipe(load=path, flexible_share=0.0))
    assert answer.accounts["plan"].it_kwh == pytest.approx([600, 700] * 12)
    path.write_text("it_w\n9e9\n")
    with pytest.raises(ConfigError, match="draw"):
        compare_controllers(SiteRecipe(load=path))
    path.write_text("cpu_utilisation\n0.5\n1.5\n")
    with pytest.raises(TraceError, match=r"row 2: cpu_utilisation is 1\.5"):
        compare_controllers(SiteRecipe(load=path))


def test_the_verb_prints_a_table_and_json(capsys, tmp_path):
    page = tmp_path / "site.html"
    with pytest.raises(SystemExit) as left:
        main(["operate", "datacenter", "--days", "1", "--report", str(page)])
    text = capsys.readouterr().out
    assert left.value.code == 0
    assert "trim and respond" in text and "ran 3 h later" in text
    assert "Warmest inlet" in page.read_text()
    with pytest.raises(SystemExit):
        main(["operate", "datacenter", "--delay-h", "0", "--datacenter", "leonardo-hall", "--json"])
    found = json.loads(capsys.readouterr().out)
    names = [item["controller"] for item in found["controllers"]]
    assert "plan, work waits" in names and "plan, battery" not in names
    assert found["delay"] == {}
    with pytest.raises(SystemExit) as left:
        main(["operate", "datacenter", "--days", "0"])
    assert left.value.code == 2
    assert "--days" in capsys.readouterr().err


def test_the_recipe_is_read():
    recipe = load(Path(__file__).parents[2] / "recipes" / "site-year.toml", SiteRecipe)
    assert recipe.days == 365


@pytest.mark.slow
def test_ppo_learns_to_leave_the_heat():
    from steelyard.operate.ppo import PPOConfig, train_ppo

    year = generated_year(3)

    def draw(rng):
        starts = rng.integers(0, 35000, 16).tolist()
        return DataCenter(SPEC, windows([year] * 16, starts, [LOAD] * 16, 96))

    center = draw(np.random.default_rng(7))
    first, last = (
        simulate_site(center, train_ppo(draw, PPOConfig(steps=steps, seed=1)), start_c=26.0)
        for steps in (512, 12_288)
    )
    # It begins above the limit: leaving it is worth most, and costs some carbon.
    assert last.violations.sum() < first.violations.sum() / 2
    again = train_ppo(draw, PPOConfig(steps=512, seed=1))
    assert np.array_equal(simulate_site(center, again, start_c=26.0).setpoint_c, first.setpoint_c)

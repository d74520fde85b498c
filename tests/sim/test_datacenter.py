"""The data center's plant, battery, queue and site-year."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard import catalog
from steelyard.catalog import RackGroup
from steelyard.errors import CapacityError, CatalogError, ConfigError, TraceError
from steelyard.sim.datacenter import (
    DEFER,
    DRAIN,
    RUN,
    STEP_S,
    BatteryLimits,
    DataCenter,
    Plant,
    QueueRules,
    SiteAction,
    generated_year,
    join_year,
    read_column,
    simulate_site,
    windows,
)
from steelyard.sim.datacenter.battery import battery_step, charge_limit_w, discharge_limit_w
from steelyard.sim.datacenter.equations import (
    chiller_capacity_ratio,
    chiller_power_w,
    free_share,
    server_power_ratio,
    tower_water_l_per_s,
)
from steelyard.sim.datacenter.queue import queue_step

SPEC = catalog.datacenter("pydcm-1mw")
FREE = catalog.datacenter("free-cooled-1mw")
PLANT = Plant(SPEC)
NAMES = catalog.names("datacenters")


def test_chiller_has_its_published_unit_values():
    assert chiller_power_w(0.944836, 35.0, 6.67, 1.0, 3.0) == pytest.approx(0.3192, rel=1e-3)
    ratio = chiller_capacity_ratio(20.0, 6.67)
    assert ratio == pytest.approx(1.307, rel=1e-3)
    power = chiller_power_w(ratio, 20.0, 6.67, 1.0, 3.0) * 3 / ratio
    assert power == pytest.approx(0.797, rel=1e-3)
    assert chiller_power_w(0.0, 35.0, 6.67, 1.0, 3.0) == 0
    # Below 5 % load it cycles: power is proportional to heat.
    low, lower = (chiller_power_w(heat, 35.0, 6.67, 1.0, 3.0) for heat in (0.02, 0.01))
    assert low == pytest.approx(2 * lower)


@settings(max_examples=200, deadline=None)
@given(
    st.floats(-30, 46), st.floats(15, 27), st.floats(0.0, 0.65), st.floats(0.0, 20), st.floats(0, 8)
)
def test_chiller_power_rises_with_heat_outdoors_and_load_and_falls_with_setpoint(
    outdoor, setpoint, heat, hotter, more
):
    def power(heat, outdoor, setpoint):
        return chiller_power_w(heat, outdoor, setpoint - 9.0, 1.0, 3.0)

    here = power(heat, outdoor, setpoint)
    assert power(heat, min(outdoor + hotter, 46.0), setpoint) >= here * (1 - 1e-12)
    assert power(heat * (1 + more / 100), outdoor, setpoint) >= here
    assert power(heat, outdoor, setpoint + more) <= here * (1 + 1e-12)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(NAMES),
    st.floats(15, 25),
    st.floats(0, 1),
    st.floats(-30, 46),
    st.floats(0, 15),
)
def test_all_power_becomes_heat_that_is_carried_away(name, setpoint, load, outdoor, dry):
    meters = Plant(catalog.datacenter(name)).meters(setpoint, load, outdoor, outdoor - dry)
    assert meters.gap <= 1e-6
    made = meters.it_w + meters.crac_w + meters.chiller_w
    assert meters.rejected_w == pytest.approx(made, rel=1e-9)
    parts = meters.it_w + meters.crac_w + meters.chiller_w + meters.tower_w + meters.pumps_w
    assert meters.facility_w == pytest.approx(parts)
    assert meters.chiller_share <= 1


def test_one_call_meters_what_single_calls_do():
    rng = np.random.default_rng(0)
    given_ = rng.uniform([15, 0, -10, -15], [27, 1, 40, 20], (50, 4)).T
    batch = Plant(FREE).meters(*given_)
    for place, values in enumerate(given_.T):
        single = Plant(FREE).meters(*values)
        assert single.facility_w == batch.facility_w[place]
        assert single.water_l_per_s == batch.water_l_per_s[place]


def test_meters_follow_the_equations_for_one_group():
    spec = replace(
        SPEC,
        racks=(RackGroup(racks=2, servers=10, server_full_w=100.0, server_idle_w=5.0),),
        crac_units=2,
    )
    meters = Plant(spec).meters(18.0, 0.5, 30.0, 20.0)
    flow = (0.225 - 0.01) / 12 * 23 + 0.225 - (0.225 - 0.01) / 12 * 28 + 0.215 * 0.25 / 0.75
    server = 100 * (0.02 / 12 * 23 + 0.03 - 0.02 / 12 * 28 + 0.99 * 0.5) + 10 * flow**3
    assert meters.inlet_c == 23.0
    assert meters.it_w == pytest.approx(20 * server)
    assert meters.outlet_c == pytest.approx(23 + server / (1.225 * 1006 * 0.051 * flow))
    assert meters.return_c == pytest.approx(
        18 + meters.heat_w / (1.225 * 1006 * 5.663e-5 * 20 * server)
    )
    assert meters.pumps_w == pytest.approx(2 * 3e5 * 2 * 1.1e-3 / 0.87)


def test_a_server_draws_its_rating_at_full_load():
    assert all(abs(server_power_ratio(inlet, 1.0) - 1) <= 0.03 for inlet in (16.0, 22.0, 28.0))


def test_free_cooling_takes_over_where_the_wet_bulb_is_low():
    assert free_share(2.0, 9.0, 10.0, 6.0) == 1
    assert free_share(8.0, 9.0, 10.0, 6.0) == pytest.approx(0.5)
    assert free_share(14.0, 9.0, 10.0, 6.0) == 0
    assert free_share(-20.0, 9.0, 10.0, 0.0) == 0
    assert Plant(FREE).meters(18, 0.5, 0.0, -2.0).chiller_w == 0


def test_water_grows_with_heat_and_wet_bulb():
    base = tower_water_l_per_s(1e6, 15.0, 14.3, 4.1e6)
    assert base == pytest.approx((0.044 * 15 + 0.3528 * 14.3 + 0.101) / 3.6 * 1.01 / 4.1)
    assert tower_water_l_per_s(2e6, 15.0, 14.3, 4.1e6) == pytest.approx(2 * base)
    assert tower_water_l_per_s(1e6, 20.0, 14.3, 4.1e6) > base
    assert tower_water_l_per_s(1e6, -300.0, 14.3, 4.1e6) == 0


def test_gpu_racks_take_power_from_the_catalog():
    chip = catalog.accelerator("H100-SXM5-80GB")
    parts = Plant(catalog.datacenter("h100-pod")).parts
    assert parts.full_w[0] == 8 * chip.tdp_w + 3500
    assert parts.idle_w[0] == 8 * chip.idle_w
    with pytest.raises(CatalogError, match="nobody"):
        Plant(replace(SPEC, racks=(_chips("nobody"),)))


def _chips(name):
    return RackGroup(racks=1, servers=1, accelerator=name, accelerators_per_server=1)


def test_warm_water_keeps_a_hall_below_its_published_overhead():
    hall = Plant(catalog.datacenter("leonardo-hall"))
    meters = hall.meters(20.0, 0.8, np.linspace(-5, 32, 9), np.linspace(-6, 24, 9))
    assert meters.pue.max() < 1.1
    assert meters.liquid_c.max() < 37
    assert hall.parts.rated_w == pytest.approx(7.5e6, rel=0.1)


def test_a_small_chiller_is_refused():
    with pytest.raises(CatalogError, match=r"chiller_w is 500000 W.*the room makes"):
        Plant(replace(SPEC, chiller_w=5e5))
    cool = Plant(replace(SPEC, chiller_w=1.35e6, design_outdoor_c=25.0))
    with pytest.raises(CapacityError, match=r"takes up only \d+%"):
        cool.meters(15, 1.0, 48.0, 30.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"setpoint_low_c": 28.0}, "setpoint_low_c.*below setpoint_high_c"),
        ({"racks": ()}, "racks"),
        ({"pump_efficiency": 1.2}, "pump_efficiency"),
        ({"liquid_share": 1.0}, "liquid_share"),
        ({"battery_j": -1.0}, "battery_j"),
        ({"racks": (RackGroup(racks=1, servers=1),)}, "racks"),
    ],
)
def test_impossible_records_are_refused(change, said):
    with pytest.raises(CatalogError, match=said):
        Plant(replace(SPEC, **change))


def test_loads_and_weather_outside_their_range_are_refused():
    with pytest.raises(ConfigError, match=r"loads in \[0, 1\]"):
        PLANT.meters(18, 1.1, 20, 15)
    with pytest.raises(ConfigError, match="finite"):
        PLANT.meters(18, 0.5, np.nan, 15)
    with pytest.raises(ConfigError, match="draw"):
        PLANT.load_of(5e6)


def test_metered_power_stays_what_was_metered():
    load = PLANT.load_of(6e5)
    meters = PLANT.meters(np.array([16, 20, 24]), load, 20, 15, is_metered=True)
    assert meters.it_w == pytest.approx(6e5)


def test_the_empirical_fit_does_not_balance_and_says_so():
    fitted = Plant(replace(SPEC, thermal="cfd-fit", chiller_w=5e6)).meters(18, 0.5, 20, 15)
    assert fitted.gap > 1e-3


LIMITS = BatteryLimits(7.2e9)


@settings(max_examples=100, deadline=None)
@given(st.floats(0, 1), st.floats(-3e6, 3e6), st.floats(0, 2e6))
def test_a_battery_keeps_its_limits_and_its_account(share, wanted, load):
    stored = share * LIMITS.capacity_j
    after, charge, discharge = battery_step(stored, wanted, load, LIMITS, STEP_S)
    assert -1 <= after <= LIMITS.capacity_j + 1
    assert charge * discharge == 0
    assert discharge <= load
    assert after - stored == pytest.approx((0.97 * charge - discharge / 0.97) * STEP_S, abs=1)


def test_battery_limits_are_those_of_the_model():
    # Half full: the rates bind; nearly full or empty: the energy does.
    assert charge_limit_w(3.6e9, LIMITS, STEP_S) == pytest.approx(0.1 * 2e6 / 0.97)
    assert charge_limit_w(7.19e9, LIMITS, STEP_S) == pytest.approx(
        1e7 / 3600 / (0.97 * 0.25 + 0.04)
    )
    assert discharge_limit_w(7.2e9, LIMITS, STEP_S) == pytest.approx(2e6 * 0.97)
    assert discharge_limit_w(1e7, LIMITS, STEP_S) == pytest.approx(
        1e7 / 3600 / (0.01 + 0.25 / 0.97)
    )


def test_work_waits_runs_in_order_and_never_longer_than_a_day():
    rules = QueueRules(flexible_share=0.5, deadline_steps=4, most_tasks=100.0)
    queue = np.zeros(5)
    ran = [queue_step(queue, 0.4, DEFER, rules) for _ in range(4)]
    assert [runs for runs, *_ in ran] == pytest.approx([0.2] * 4)
    # The fifth step has the first one's work due, and the queue is still filled.
    runs, waiting, overdue = queue_step(queue, 0.4, DEFER, rules)
    assert (runs, overdue) == (pytest.approx(0.4), 0)
    assert waiting == pytest.approx(0.8)
    runs, waiting, _ = queue_step(queue, 0.4, DRAIN, rules)
    assert runs == pytest.approx(0.9) and waiting == pytest.approx(0.3)


def test_a_full_queue_lets_work_run_and_none_is_lost():
    rules = QueueRules(flexible_share=1.0, most_tasks=10.0)
    queue = np.zeros(97)
    runs = [queue_step(queue, 0.08, DEFER, rules)[0] for _ in range(3)]
    assert runs == pytest.approx([0.0, 0.06, 0.08])
    assert sum(runs) + queue.sum() == pytest.approx(0.24)


def test_steps_equal_the_replay():
    year = generated_year(1)
    drivers = windows([year, year], [0, 5000], [np.full(35040, 0.5)] * 2, 60)
    center = DataCenter(FREE, drivers, rules=QueueRules(flexible_share=0.3))

    class Policy:
        def __init__(self, values):
            self.values = values

        def decide(self, view):
            return self.values[view.step]

    rng = np.random.default_rng(0)
    setpoints, queue = rng.uniform(15, 27, (60, 2)), rng.integers(0, 3, (60, 2))
    power = rng.uniform(-1e6, 1e6, (60, 2))
    run = simulate_site(
        center, Policy(setpoints), shifting=Policy(queue), battery=Policy(power), start_c=20.0
    )
    state = center.start(20.0)
    for step in range(60):
        before = state
        state, rows = center.step(
            state, step, SiteAction(setpoints[step], queue[step], power[step])
        )
        assert np.array_equal(rows, run.rows[step], equal_nan=True)
        assert not np.shares_memory(before.queue, state.queue)
    assert run.account_gap(0.0, (0.97, 0.97)) < 1e-9
    left = state.queue.sum(axis=1)
    assert run.column("executed").sum(axis=0) + left == pytest.approx([30.0, 30.0])


def test_actions_of_nobody_run_all_work_at_once():
    drivers = windows([generated_year()], [0], [np.full(35040, 0.5)], 5)
    run = simulate_site(DataCenter(SPEC, drivers), _Held())
    assert run.column("executed") == pytest.approx(0.5)
    assert run.column("waiting").max() == 0 and RUN == 1


class _Held:
    def decide(self, view):
        return view.state.setpoint_c


def _write(folder, name, columns):
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder / name


@pytest.fixture
def files(tmp_path):
    hours = np.arange(8760)
    dry = _write(tmp_path, "w.csv", {"dry_bulb_c": hours % 24, "wet_bulb_c": hours % 24 - 3})
    return dry, _write(tmp_path, "c.csv", {"carbon_g_per_kwh": 100 + hours % 24})


def test_carbon_of_utc_is_joined_to_local_weather(files):
    year = join_year(*files, utc_offset_h=-8)
    # Local midnight in California is 8 o'clock UTC.
    assert year.carbon_g_per_kwh[0] == 108
    assert year.carbon_g_per_kwh[4 * 20] == 100 + (20 + 8) % 24
    assert year.outdoor_c[4 * 6 + 2] == 6.5
    assert len(year) == 35040
    assert join_year(*files, utc_offset_h=5).carbon_g_per_kwh[0] == 119


def test_series_that_cannot_be_used_are_refused(files, tmp_path):
    dry, carbon = files
    with pytest.raises(ConfigError, match="whole hours"):
        join_year(dry, carbon, utc_offset_h=0.5)
    short = _write(tmp_path, "s.csv", {"carbon_g_per_kwh": [1, 2, 3]})
    with pytest.raises(TraceError, match="has 3 rows"):
        join_year(dry, short, utc_offset_h=0)
    gap = _write(tmp_path, "g.csv", {"carbon_g_per_kwh": [1, "x", 3]})
    with pytest.raises(TraceError, match=r"g\.csv row 2: carbon_g_per_kwh is 'x'"):
        read_column(gap, "carbon_g_per_kwh")
    hot = _write(tmp_path, "h.csv", {"carbon_g_per_kwh": [9000] * 8760})
    with pytest.raises(TraceError, match=r"row 1.*not in"):
        join_year(dry, hot, utc_offset_h=0)
    holes = _write(tmp_path, "e.csv", {"carbon_g_per_kwh": [100, "", 300] * 2920})
    with pytest.raises(TraceError, match="row 2"):
        join_year(dry, holes, utc_offset_h=0)


def test_few_gaps_of_carbon_are_filled(tmp_path):
    some = _write(tmp_path, "e.csv", {"a": range(100), "b": [1.0] * 50 + [""] + [3.0] * 49})
    assert read_column(some, "b", most_missing=0.05)[50] == 2.0

"""Servers of a row that start and go off, and the energy that each request is charged."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.cost.power import measured_model
from steelyard.sim.control import Command, Latency
from steelyard.sim.power import HIGH, LOW, METER, RowPlant, RowRequests, ServerRow, draw_requests
from steelyard.sim.power.state import BIN_S, DRAINING, IDLE, OFF, ON, STARTING, STARTS

BLOOM = measured_model("bloom-176b", 8)
START_S = 100.0


def row_of(high=2, low=2, slots=2):
    return ServerRow(
        model=BLOOM, high_servers=high, low_servers=low, budget_w=3e4, slots=slots, host_w=900.0
    )


def plant_of(requests, row=None, duration_s=7200.0):
    return RowPlant(
        row or row_of(), requests, duration_s=duration_s, startup=Latency.always(START_S)
    )


def modes(plant, priority):
    return plant.state.mode[plant.tables.priority == priority].tolist()


def one_request(at_s=0.0, priority=HIGH):
    return RowRequests.of([at_s], [4096], [512], [priority])


def test_a_lone_request_is_charged_its_server_for_as_long_as_it_takes():
    plant = plant_of(one_request())
    plant.advance(3600.0)
    prompt_s = float(plant.tables.prompt_s[0])
    tokens_s = float(plant.tables.work_s[0])
    prompt_w, token_w = plant.tables.prompt_w[0], plant.tables.token_w[1]
    expected_j = prompt_s * (prompt_w + 900.0) + tokens_s * (token_w + 900.0)
    assert plant.energy_j()["high_j"] == pytest.approx(expected_j, rel=1e-9)
    assert plant.state.request_j[0] == pytest.approx(expected_j, rel=1e-9)


def test_tokens_of_two_requests_share_their_server_and_a_prompt_has_it_alone():
    row = row_of(high=1, low=1)
    pair = RowRequests.of([0.0, 0.0], [4096, 4096], [512, 512], [HIGH, HIGH], [0, 1])
    plant = plant_of(pair, row)
    plant.advance(3600.0)
    plant.energy_j()
    first, second = plant.state.request_j
    prompt_j = plant.tables.prompt_s[0] * (plant.tables.prompt_w[0] + 900.0)
    # The second prompt stops the first one's tokens, so that both end together.
    assert first == pytest.approx(second, rel=1e-6)
    shared_s = plant.state.finish_s[0] - plant.state.first_s[1]
    shared_w = plant.tables.token_w[2] + 900.0
    assert first == pytest.approx(prompt_j + shared_s * shared_w / 2, rel=1e-6)
    assert plant.state.spent_j[:, 0].sum() == pytest.approx(first, rel=1e-9)


def test_a_server_that_is_off_draws_nothing_and_one_that_starts_idles():
    plant = plant_of(one_request(at_s=7000.0))
    plant.advance(10.0)
    idle_w = plant.read(METER) / 4
    plant.apply(Command("high.servers", 1))
    plant.apply(Command("low.servers", 1))
    assert plant.read(METER) == pytest.approx(2 * idle_w)
    assert sorted(modes(plant, HIGH)) == [ON, OFF]
    plant.advance(20.0)
    plant.apply(Command("low.servers", 2))
    assert plant.read(METER) == pytest.approx(3 * idle_w)
    assert plant.read("low.starting") == 1
    plant.advance(20.0 + START_S)
    assert (plant.read("low.ready"), plant.read("low.starting")) == (2, 0)
    assert plant.state.spent_j[:, STARTS].sum() == pytest.approx(START_S * idle_w)
    assert plant.outcome().details["starts"] == 1


def test_a_request_waits_for_a_server_that_starts():
    row = row_of(high=2, low=1, slots=1)
    requests = RowRequests.of([0.0, 1.0], [4096, 4096], [2048, 16], [HIGH, HIGH])
    plant = plant_of(requests, row)
    plant.apply(Command("high.servers", 1))
    plant.advance(2.0)
    assert plant.read("high.load") == 2
    assert plant.read("high.utilization") == 2
    plant.apply(Command("high.servers", 2))
    plant.advance(7000.0)
    prompt_s = plant.tables.prompt_s[1]
    assert plant.state.first_s[1] == pytest.approx(2.0 + START_S + prompt_s)


def test_a_busy_server_ends_its_work_takes_no_more_and_may_be_kept():
    row = row_of(high=2, low=1, slots=1)
    requests = RowRequests.of([0.0, 0.0, 5.0], [4096] * 3, [2048] * 3, [HIGH] * 3)
    plant = plant_of(requests, row)
    plant.advance(1.0)
    plant.apply(Command("high.servers", 1))
    assert sorted(modes(plant, HIGH)) == [ON, DRAINING]
    plant.advance(2.0)
    plant.apply(Command("high.servers", 2))
    # Nothing starts: the one that drained is kept.
    assert modes(plant, HIGH) == [ON, ON]
    plant.apply(Command("high.servers", 1))
    plant.advance(7000.0)
    assert np.isfinite(plant.state.finish_s).all()
    assert sorted(modes(plant, HIGH)) == [ON, OFF]
    assert plant.outcome().details["starts"] == 0


def test_one_server_of_each_priority_stays_and_no_more_than_all_start():
    plant = plant_of(one_request())
    plant.apply(Command("high.servers", 0))
    plant.apply(Command("low.servers", 99))
    assert sorted(modes(plant, HIGH)) == [ON, OFF]
    assert modes(plant, LOW) == [ON, ON]


def test_demand_is_the_mean_load_since_it_was_read():
    plant = plant_of(one_request(at_s=30.0))
    assert np.isnan(plant.read("high.demand"))
    plant.advance(60.0)
    took_s = min(plant.tables.prompt_s[0] + plant.tables.work_s[0], 30.0)
    assert plant.read("high.demand") == pytest.approx(took_s / 60.0)
    assert plant.read("low.demand") == 0


commands = st.tuples(
    st.integers(1, 7199),
    st.sampled_from(["high.servers", "low.servers", "high.clock", "low.clock"]),
    st.integers(1, 5),
)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.lists(commands, max_size=25), st.integers(1, 3))
def test_every_joule_is_charged_once_and_no_request_is_lost(seed, orders, slots):
    row = row_of(high=5, low=4, slots=slots)
    requests = draw_requests(np.full(12, 0.05), np.random.default_rng(seed))
    plant = plant_of(requests, row, duration_s=5000.0)
    for time_s, target, value in sorted(orders):
        plant.advance(float(time_s))
        plant.apply(Command(target, value / 5 if "clock" in target else value))
    plant.advance(7200.0)
    outcome = plant.outcome()
    state = plant.state
    assert state.spent_j.sum() == pytest.approx(outcome.cost, rel=1e-9)
    rest_j = state.spent_j[:, IDLE:].sum()
    assert state.request_j.sum() + rest_j == pytest.approx(outcome.cost, rel=1e-9)
    by_kind = np.bincount(requests.kind, state.request_j, 3)
    np.testing.assert_allclose(state.spent_j[:, :IDLE].sum(axis=0), by_kind, rtol=1e-9, atol=1e-6)
    assert state.mode_s.sum() == pytest.approx(9 * 7200.0)
    # The bins end with those of the time asked for; what comes later is in the last.
    assert len(state.spent_j) == int(np.ceil(5000.0 / BIN_S))
    plant.advance(1e6)
    assert np.isfinite(state.finish_s).all()
    assert (plant.read("high.load"), plant.read("low.load")) == (0, 0)


def test_energy_of_each_quarter_of_an_hour_is_that_of_the_meter():
    requests = draw_requests(np.full(24, 0.06), np.random.default_rng(5))
    plant = plant_of(requests)
    meter_j = [0.0]
    for place in range(1, 9):
        plant.advance(place * BIN_S)
        meter_j.append(float(plant.state.totals[2]))
    plant.outcome()
    np.testing.assert_allclose(plant.state.spent_j.sum(axis=1), np.diff(meter_j), rtol=1e-9)
    assert (plant.state.mode == ON).all()
    assert STARTING not in plant.state.mode

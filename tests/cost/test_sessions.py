from dataclasses import replace

import pytest
from benchmarks.cost._sessions import simulate_sessions
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard import catalog
from steelyard.cost import SessionLoad, serve_point, sessions
from steelyard.cost.sessions import Residents
from steelyard.errors import CapacityError, ConfigError

YI = catalog.architecture_by_name("yi-34b")
A100 = replace(
    catalog.accelerator("A100-SXM4-80GB"),
    memory_bytes=80 * 2**30,
    memory_bytes_per_s=2e12,
    host_link_bytes_per_s=20e9,
)


def point(context):
    return serve_point(YI, A100, context=context, convention="paper", parameters=34e9)


@pytest.mark.parametrize("context", [4096, 50_000])
@pytest.mark.parametrize("users", [1, 2, 17, 18, 40])
def test_the_forecast_agrees_with_the_simulation(context, users):
    load = SessionLoad(users=users, rounds=3, think_s=20.0)
    forecast, simulated = sessions(point(context), load), simulate_sessions(point(context), load)
    assert forecast.interactions_per_hour == pytest.approx(
        simulated.interactions_per_hour, rel=0.05
    )
    assert len(forecast.answers_s) == len(simulated.answers_s) == 3 * users
    for name, seconds in forecast.busy_s.items():
        assert seconds == pytest.approx(simulated.busy_s[name], rel=0.05, abs=0.1)


def test_one_user_takes_the_sum_of_the_parts():
    found, numbers = sessions(point(4096), SessionLoad(users=1, rounds=3, think_s=7.0)), point(4096)
    assert found.total_s == pytest.approx(
        numbers.prefill_s + 3 * 250 * numbers.decode_s_per_token + 2 * 7.0
    )
    assert found.busy_s["switch"] == 0 and found.bottleneck == "decode"


def test_users_beyond_the_memory_switch_in_every_round():
    found, numbers = (
        sessions(point(50_000), SessionLoad(users=3, rounds=2, think_s=0.0)),
        point(50_000),
    )
    assert numbers.concurrency == 1 and found.busy_s["switch"] > 2 * numbers.switch_s
    assert (
        found.total_s
        > 3 * numbers.prefill_s
        + 6 * 250 * numbers.decode_s_per_token
        + found.busy_s["switch"] * 0.9
    )
    slow = replace(numbers, switch_s=100.0)
    assert sessions(slow, SessionLoad(users=3, rounds=2, think_s=0.0)).bottleneck == "switch"


@settings(max_examples=20)
@given(
    st.integers(1, 12), st.integers(1, 3), st.integers(1, 20), st.floats(0, 30), st.integers(1, 5)
)
def test_more_places_never_move_more_bytes(users, rounds, tokens, think, concurrency):
    load = SessionLoad(users=users, rounds=rounds, answer_tokens=tokens, think_s=think)
    few, all_in = (
        sessions(replace(point(4096), concurrency=count), load) for count in (concurrency, users)
    )
    assert all_in.busy_s["switch"] == 0 <= few.busy_s["switch"]
    assert few.busy_s["prefill"] == pytest.approx(users * point(4096).prefill_s)


def test_who_has_thought_longest_yields_and_who_works_never_does():
    policy = Residents(2)
    assert policy.take(0) == policy.take(1) == 0 and policy.take(2) is None
    policy.rest(1)
    policy.rest(0)
    assert policy.take(2) == 1 and policy.inside == {0, 2}
    policy.leave(0)
    assert policy.take(1) == 0


def test_refusals():
    with pytest.raises(CapacityError, match="do not fit"):
        sessions(replace(point(4096), concurrency=0), SessionLoad(users=1))
    with pytest.raises(CapacityError, match="do not fit"):
        simulate_sessions(replace(point(4096), concurrency=0), SessionLoad(users=1))
    for changes in ({"users": 0}, {"rounds": 0}, {"answer_tokens": 0}, {"think_s": -1.0}):
        with pytest.raises(ConfigError):
            SessionLoad(**({"users": 1} | changes))

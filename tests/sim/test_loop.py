import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import ConfigError
from steelyard.sim import EventLoop, Timeline


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, 2.5]), st.integers(0, 3)), max_size=40))
def test_events_run_by_time_then_priority_then_sequence(events):
    loop, seen = EventLoop(), []
    for number, (time_s, priority) in enumerate(events):
        loop.at(time_s, lambda key=(time_s, priority, number): seen.append(key), priority=priority)
    loop.run()
    assert seen == sorted(seen)
    assert len(seen) == len(events) == loop.num_events


def test_actions_schedule_more_and_run_stops_at_its_limit():
    loop, seen = EventLoop(), []

    def tick():
        seen.append(loop.now_s)
        loop.after(1.0, tick)

    loop.at(0.0, tick)
    assert loop.run(until_s=3.0) == 3.0
    assert seen == [0.0, 1.0, 2.0, 3.0]
    assert len(loop) == 1


@pytest.mark.parametrize("time_s", [-1.0, float("nan"), float("inf")])
def test_the_past_is_refused(time_s):
    with pytest.raises(ConfigError, match="event at"):
        EventLoop().at(time_s, lambda: None)


def test_timeline_metrics_follow_their_definitions():
    timeline = Timeline(
        arrival_s=np.array([0.0, 1.0]),
        first_token_s=np.array([0.5, 3.0]),
        last_token_s=np.array([2.5, 3.0]),
        output_tokens=np.array([5, 1]),
        step_features=np.ones((1, 6)),
        step_s=np.ones(1),
        kv_utilization=np.array([0.5, 1.0]),
    )
    summary = timeline.summary()
    assert summary["serve.ttft"] == pytest.approx((0.5 + 2.0) / 2)
    assert summary["serve.tpot"] == pytest.approx(0.5)
    assert summary["serve.throughput"] == pytest.approx(2.0)
    assert summary["serve.makespan"] == 3.0
    assert summary["serve.kv_utilization"] == 0.75

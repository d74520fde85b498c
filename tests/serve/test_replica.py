"""A fleet of real schedulers and the compiled loop are the same, step for step."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.cost.phase_time import PhaseStepTime
from steelyard.errors import ConfigError
from steelyard.serve.replica import SchedulerReplica, replicas_of
from steelyard.serve.routing import OpenReplicas, fewest_requests, route_of
from steelyard.serve.scheduling.config import SchedulerConfig
from steelyard.sim.fleet import FleetJob, run_fleet
from steelyard.sim.fleet.instance import ReplicaGroup, simulate_fleet

STEP_TIME = PhaseStepTime.from_fits(
    prefill=(0.018, 1e-4, 7e-9),
    decode=(0.02, 6e-7, 4e-5),
    large_decode=(0.007, 5.8e-7, 1.6e-4),
    large_batch=5,
    source="made up",
)


@st.composite
def shapes(draw, role):
    most = draw(st.integers(1, 12))
    return ReplicaGroup(
        step_time=STEP_TIME,
        role=role,
        blocks=draw(st.integers(25, 60)),
        block_size=draw(st.sampled_from([4, 8])),
        count=draw(st.integers(1, 3)),
        stages=draw(st.integers(1, 3)),
        max_num_seqs=most,
        token_budget=draw(st.integers(most, 90)),
        watermark_fraction=draw(st.sampled_from([0.0, 0.05])),
        whole_prompts=role == "prefill" or draw(st.booleans()),
        transfer_latency_s=draw(st.sampled_from([0.0, 0.003])),
        transfer_s_per_token=draw(st.sampled_from([0.0, 1e-4])),
        route=draw(st.sampled_from(["fewest", "rotation", "prefix"])),
        route_slack=draw(st.integers(0, 4)),
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        prefix_caching=draw(st.booleans()),
    )


def same_blocks(groups):
    return len({group.block_size for group in groups if group.prefix_caching}) < 2


FLEETS = st.one_of(
    st.tuples(shapes("both")),
    st.tuples(shapes("prefill")),
    st.tuples(shapes("decode")),
    st.tuples(shapes("prefill"), shapes("decode")),
).filter(same_blocks)


def made_trace(seed, rate):
    generator = np.random.default_rng(seed)
    count = int(generator.integers(1, 40))
    arrivals = np.cumsum(generator.exponential(1 / rate, count))
    return arrivals, generator.integers(1, 60, count), generator.integers(1, 40, count)


def made_ids(seed, count):
    """Block ids like those of a few conversations: the same beginnings, at different lengths."""
    generator = np.random.default_rng(seed)
    return [
        [int(100 * generator.integers(3) + 7)] * int(generator.integers(0, 2))
        + list(range(start := int(1000 * generator.integers(1, 4)), start + length))
        for length in generator.integers(0, 12, count)
    ]


def made_windows(groups, seed):
    """When replicas are ready and let go: some never, some late, some for a while."""
    generator = np.random.default_rng(seed)
    begins = [generator.choice([0.0, 0.5, 2.0], group.count) for group in groups]
    return [
        np.stack([item, item + generator.choice([0.0, 0.7, math.inf], item.shape)], axis=1)
        for item in begins
    ]


def run_both(groups, trace, ids=(), priority=None, windows=()):
    compiled = simulate_fleet(
        groups, *trace, block_ids=ids, priority=priority, windows=windows, keep_steps=100_000
    )
    count = len(trace[0])
    jobs = [
        FleetJob(
            arrival_s=float(at),
            input_tokens=int(size),
            output_tokens=int(length),
            block_ids=blocks,
            priority=int(first),
        )
        for at, size, length, blocks, first in zip(
            *trace, ids or [()] * count, [0] * count if priority is None else priority, strict=True
        )
    ]
    always = [np.tile([0.0, math.inf], (group.count, 1)) for group in groups]
    times = list(zip(groups, windows or always, strict=True))
    fleet = [
        replicas_of(group, hands_over=len(groups) > 1, ready_s=item[:, 0].tolist())
        for group, item in times
    ]
    routes = [OpenReplicas(route_of(group), item.tolist()) for group, item in times]
    run_fleet(jobs, *fleet, route=routes[0], route_second=routes[-1])
    return compiled, jobs, [replica for group in fleet for replica in group]


@settings(max_examples=50, deadline=None)
@given(FLEETS, st.integers(0, 10_000), st.sampled_from([3.0, 30.0, 300.0]), st.booleans())
def test_compiled_loop_equals_schedulers_step_for_step(groups, seed, rate, comes_and_goes):
    trace = made_trace(seed, rate)
    count = len(trace[0])
    priority = np.random.default_rng(seed).integers(-1, 3, count)
    windows = made_windows(groups, seed) if comes_and_goes else ()
    compiled, jobs, replicas = run_both(groups, trace, made_ids(seed, count), priority, windows)
    for index, replica in enumerate(replicas):
        rows = compiled.steps[compiled.steps["replica"] == index]
        steps = [
            (item.lane, item.start_s, item.end_s, item.prompt_tokens, item.decodes)
            for item in replica.steps
        ]
        assert steps == [row.item()[1:] for row in rows]
    # Equal to the last bit: both take the same numbers in the same order.
    assert [job.first_token_s for job in jobs] == compiled.timeline.first_token_s.tolist()
    assert [job.last_token_s for job in jobs] == compiled.timeline.last_token_s.tolist()
    assert sum(job.preempted for job in jobs) == compiled.num_preemptions
    assert [job.cached_tokens for job in jobs] == compiled.cached_tokens.tolist()
    if groups[0].role != "decode":  # there prompts count as run before they came
        assert [job.first for job in jobs] == compiled.first.tolist()


def test_small_pools_preempt_in_both():
    group = ReplicaGroup(
        step_time=STEP_TIME, blocks=30, block_size=4, token_budget=64, max_num_seqs=16
    )
    generator = np.random.default_rng(0)
    trace = np.zeros(40), generator.integers(10, 40, 40), generator.integers(20, 60, 40)
    compiled, jobs, _ = run_both([group], trace)
    assert compiled.num_preemptions > 5
    assert [job.last_token_s for job in jobs] == compiled.timeline.last_token_s.tolist()


def test_small_pools_evict_shared_prefixes_in_both():
    group = ReplicaGroup(
        step_time=STEP_TIME, blocks=40, block_size=4, token_budget=64, max_num_seqs=16, count=2,
        prefix_caching=True, policy="priority", route="prefix", route_slack=2,
    )  # fmt: skip
    generator = np.random.default_rng(0)
    trace = np.sort(generator.uniform(0, 1, 60)), *generator.integers(10, 40, (2, 60))
    ids = [list(range(100 * (row % 4), 100 * (row % 4) + 10)) for row in range(60)]
    compiled, jobs, _ = run_both([group], trace, ids, generator.integers(0, 3, 60))
    assert compiled.num_preemptions > 5 and compiled.cached_tokens.sum() > 400
    assert [job.last_token_s for job in jobs] == compiled.timeline.last_token_s.tolist()
    assert [job.cached_tokens for job in jobs] == compiled.cached_tokens.tolist()


def test_prompts_hold_their_room_until_they_are_pulled():
    # Two prompts fill the room of the prefill replica; the third waits for the first transfer.
    kinds = {"step_time": STEP_TIME, "block_size": 4, "token_budget": 16, "max_num_seqs": 16}
    prefill = ReplicaGroup(role="prefill", whole_prompts=True, blocks=9, **kinds)
    decode = ReplicaGroup(role="decode", blocks=100, transfer_latency_s=5.0, **kinds)
    trace = np.zeros(3), np.full(3, 15), np.full(3, 2)
    compiled, jobs, _ = run_both([prefill, decode], trace)
    step_s = 0.018 + 15e-4 + 225 * 7e-9
    assert compiled.timeline.first_token_s[1] == pytest.approx(2 * step_s)
    assert compiled.timeline.first_token_s[2] == pytest.approx(step_s + 5.0 + step_s)
    assert jobs[2].first_token_s == compiled.timeline.first_token_s[2]


def test_pipeline_of_prompts_has_the_published_queueing_delay():
    # Uniform prompts on two stages: D + R D^2 / (4 (2 - R D)); Zhong et al. 2024, equation 3.
    seconds, rate, count = 0.1, 12.0, 200_000
    model = PhaseStepTime.from_fits(prefill=(seconds, 0, 0), decode=(1, 0, 0), source="made up")
    group = ReplicaGroup(
        step_time=model, role="prefill", whole_prompts=True, stages=2, blocks=100_000,
        token_budget=1, max_num_seqs=1,
    )  # fmt: skip
    arrivals = np.cumsum(np.random.default_rng(0).exponential(1 / rate, count))
    run = simulate_fleet([group], arrivals, np.full(count, 2), np.ones(count, int))
    expected = seconds + rate * seconds**2 / (4 * (2 - rate * seconds))
    assert run.timeline.ttft_s.mean() == pytest.approx(expected, rel=0.03)


def test_whole_prompts_run_alone_and_first():
    config = SchedulerConfig(
        num_blocks=64, block_size=4, token_budget=16, max_num_seqs=8, max_model_len=128,
        whole_prompts=True, prefix_caching=False,
    )  # fmt: skip
    replica = SchedulerReplica(config, lambda plan: 1.0)
    jobs = [FleetJob(arrival_s=0.0, input_tokens=size, output_tokens=2) for size in (40, 8, 8, 8)]
    run_fleet(jobs, [replica], route=fewest_requests)
    seen = [(step.prompt_tokens, step.decodes) for step in replica.steps]
    # The first is longer than the budget and runs alone, then two fit together; decoding is last.
    assert seen == [(40, 0), (16, 0), (8, 0), (0, 4)]


def test_prefill_replicas_need_whole_prompts():
    config = SchedulerConfig(num_blocks=64, max_model_len=128)
    with pytest.raises(ConfigError, match="whole_prompts"):
        SchedulerReplica(config, lambda plan: 1.0, role="prefill")


def test_idle_replica_waits_for_nobody():
    config = SchedulerConfig(num_blocks=64, max_model_len=128)
    assert SchedulerReplica(config, lambda plan: 1.0).next_event_s() == math.inf


def test_a_request_that_waits_for_a_replica_takes_nobodys_turn():
    group = ReplicaGroup(step_time=STEP_TIME, blocks=25, block_size=4, count=2, route="rotation")
    trace = np.array([0.1, 0.9, 1.0]), np.array([31, 4, 17]), np.array([17, 21, 12])
    _, jobs, replicas = run_both((group,), trace, windows=[np.array([[0.5, math.inf]] * 2)])
    assert [job.first for job in jobs] == [0, 0, 1]
    compiled = simulate_fleet(
        (group,), *trace, windows=[np.array([[0.5, math.inf]] * 2)], keep_steps=1000
    )
    for index, replica in enumerate(replicas):
        steps = compiled.steps[compiled.steps["replica"] == index]
        assert [item.start_s for item in replica.steps] == steps["start_s"].tolist()

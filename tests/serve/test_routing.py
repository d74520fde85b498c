"""Routes see what replicas hold, as it comes and goes."""

from dataclasses import replace

import numpy as np
import pytest

from steelyard.errors import ConfigError, TraceError
from steelyard.serve.replica import SchedulerReplica
from steelyard.serve.routing import LongestPrefix, PromptIndex, fewest_requests
from steelyard.serve.scheduling.config import SchedulerConfig
from steelyard.serve.traces import PromptMaker, TraceRow
from steelyard.serve.traces.fleet import fleet_jobs
from steelyard.sim.fleet import FleetJob, run_fleet

SIZE = 4


def replica(blocks=30, **changes):
    config = SchedulerConfig(
        num_blocks=blocks, block_size=SIZE, token_budget=64, max_num_seqs=8,
        max_model_len=blocks * SIZE, **changes,
    )  # fmt: skip
    return SchedulerReplica(config, lambda plan: 0.01 + 1e-3 * plan.num_tokens)


def shared_jobs(count=60, groups=4, seed=0, gap_s=0.02):
    """Requests of a few prompts that begin alike and go on on their own."""
    generator = np.random.default_rng(seed)
    jobs = []
    for row in range(count):
        group, head = int(generator.integers(groups)), int(generator.integers(1, 8))
        ids = [100 * group + depth for depth in range(head)]
        jobs.append(
            FleetJob(
                arrival_s=row * gap_s,
                input_tokens=head * SIZE + int(generator.integers(1, 9)),
                output_tokens=int(generator.integers(1, 12)),
                block_ids=ids,
            )
        )
    return jobs


def walked(replicas, job):
    """What each replica holds of a prompt, by asking its own cache."""
    names = [name.to_bytes(16, "big", signed=True) for name in job.block_ids]
    names = names[: (job.input_tokens - 1) // SIZE]
    return [len(item.prefixes[0].match(names)) * SIZE for item in replicas]


@pytest.mark.parametrize("blocks", [12, 40])
def test_index_agrees_with_the_caches_while_they_evict(blocks):
    replicas = [replica(blocks) for _ in range(3)]
    route = LongestPrefix(slack=3)
    seen = []

    def checked(items, job):
        chosen = route(items, job)
        found = route.index.matched_tokens(job)
        assert [found.get(item, 0) for item in items] == walked(items, job)
        seen.append(max(found.values(), default=0))
        return chosen

    run_fleet(shared_jobs(), replicas, route=checked)
    assert max(seen) > 0
    # Nothing is known beyond what the pools could hold.
    assert len(route.index) <= 3 * blocks


def test_requests_go_where_their_prompt_is_unless_it_is_crowded():
    jobs = shared_jobs(gap_s=0.1)
    run_fleet(jobs, [replica(), replica()], route=LongestPrefix())
    others = shared_jobs(gap_s=0.1)
    run_fleet(others, [replica(), replica()], route=fewest_requests)
    assert sum(job.cached_tokens for job in jobs) > sum(job.cached_tokens for job in others)
    crowd = shared_jobs(groups=1, gap_s=0.0)
    run_fleet(crowd, [replica(), replica()], route=LongestPrefix(slack=2))
    firsts = [job.first for job in crowd]
    assert abs(firsts.count(0) - firsts.count(1)) <= 3


def test_a_replica_that_is_gone_is_forgotten():
    replicas = [replica(), replica()]
    route = LongestPrefix()
    run_fleet(shared_jobs(), replicas, route=route)
    route.index.forget(replicas[0])
    assert set(route.index.replicas) == {replicas[1]}
    job = shared_jobs(1)[0]
    assert route.index.matched_tokens(job).keys() <= {replicas[1]}
    # Another index may listen to it from now on, and finds what it holds.
    fresh = PromptIndex()
    fresh.watch(replicas[0])
    assert fresh.matched_tokens(job).get(replicas[0], 0) == walked(replicas[:1], job)[0]
    with pytest.raises(ConfigError, match="another index"):
        fresh.watch(replicas[1])


def test_prompts_with_tokens_are_found_too():
    shared = list(range(16))
    jobs = [
        FleetJob(
            arrival_s=float(row), input_tokens=20, output_tokens=2, prompt=[*shared, *[row] * 4]
        )
        for row in range(3)
    ]
    route = LongestPrefix()
    run_fleet(jobs, [replica(), replica()], route=route)
    assert [job.cached_tokens for job in jobs] == [0, 16, 16]
    assert {job.first for job in jobs} == {0}


def test_clients_and_priorities_reach_the_scheduler():
    one = {"max_num_seqs": 1}
    config = SchedulerConfig(num_blocks=64, block_size=SIZE, max_model_len=64, **one)

    def served(policy):
        jobs = [
            FleetJob(
                arrival_s=0.0, input_tokens=8, output_tokens=4, client=client, priority=priority
            )
            for client, priority in (("a", 2), ("a", 1), ("a", 0), ("b", 1))
        ]
        made = SchedulerReplica(replace(config, policy=policy), lambda plan: 1.0)
        run_fleet(jobs, [made], route=fewest_requests)
        return sorted(range(4), key=lambda row: jobs[row].first_token_s)

    assert served("fcfs") == [0, 1, 2, 3]
    # The first runs before the others are there.
    assert served("priority") == [0, 2, 1, 3]
    assert served("vtc") == [0, 3, 1, 2]


def test_block_ids_share_what_the_tokens_of_a_trace_share():
    rows = [
        TraceRow(
            arrival_s=0.0, input_tokens=20, output_tokens=1, hash_ids=(3, 4, 5), block_tokens=8
        ),
        TraceRow(
            arrival_s=0.0, input_tokens=24, output_tokens=1, hash_ids=(3, 4, 9), block_tokens=8
        ),
        TraceRow(arrival_s=0.0, input_tokens=13, output_tokens=1, session="s"),
        TraceRow(arrival_s=0.0, input_tokens=21, output_tokens=1, session="s"),
        TraceRow(arrival_s=0.0, input_tokens=21, output_tokens=1, session="t"),
        TraceRow(arrival_s=0.0, input_tokens=21, output_tokens=1),
    ]
    maker = PromptMaker(0, 1000)
    prompts = [maker.tokens(row, index) for index, row in enumerate(rows)]
    jobs = fleet_jobs(rows, block_size=SIZE)

    def common(one, other, size):
        short = min(len(one), len(other))
        apart = [at for at in range(short) if one[at] != other[at]]
        return (apart[0] if apart else short) // size

    for one, first in zip(jobs, prompts, strict=True):
        for other, second in zip(jobs, prompts, strict=True):
            if one is not other:
                shared = common(one.block_ids, other.block_ids, 1)
                assert shared == common(first, second, SIZE)
    with pytest.raises(TraceError, match="hash ids of 8 tokens"):
        fleet_jobs(rows, block_size=16)

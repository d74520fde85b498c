"""The scheduler with a second tier, without an engine.

Any order of landings, failures, aborts and steps in flight.
"""

import numpy as np
import pytest
from benchmarks.serve._drawn_order import MarkovPriorities, RandomPriorities

from steelyard.serve import Request, SamplingParams, Scheduler, SchedulerConfig
from steelyard.serve.scheduling.fairness import VTC


def play(seed, num_requests=40):
    generator = np.random.default_rng(seed)
    limits = SchedulerConfig(
        num_blocks=int(generator.integers(20, 36)),
        block_size=4,
        token_budget=24,
        max_num_seqs=8,
        max_model_len=48,
        prefix_caching=bool(generator.integers(2)),
        preemption="swap",
        host_blocks=int(generator.integers(12, 40)),
        update_every=int(generator.integers(0, 6)),
        allocator=["paged", "block-group"][int(generator.integers(2))],
        keep_turns=bool(generator.integers(2)),
        reuse_host_copies=bool(generator.integers(2)),
    )
    policy = [None, RandomPriorities(seed=seed), MarkovPriorities(p_stay=0.5, seed=seed), VTC()][
        int(generator.integers(4))
    ]
    scheduler = Scheduler(limits, policy=policy)
    ahead, flying, left = bool(generator.integers(2)), [], num_requests
    flight, finished, aborted = None, [], 0

    def arrive():
        nonlocal left
        left -= 1
        start, size = int(generator.integers(3)) * 1000, int(generator.integers(1, 24))
        params = SamplingParams(
            max_tokens=int(generator.integers(1, 24)),
            ignore_end=True,
            n=int(generator.choice([1, 1, 1, 2])),
        )
        name = f"r{num_requests - left}"
        scheduler.add(
            Request(
                id=name, prompt=list(range(start, start + size)), params=params, client=name[-1]
            ),
            0.0,
        )

    for _ in range(20_000):
        if left and generator.random() < 0.2:
            arrive()
        if flying and generator.random() < 0.5:
            name = flying.pop(int(generator.integers(len(flying))))
            scheduler.fail([name]) if generator.random() < 0.1 else scheduler.land([name])
        if generator.random() < 0.02 and scheduler._requests:
            aborted += scheduler.abort(str(generator.choice(list(scheduler._requests)))) is not None
        plan = scheduler.schedule(0.0)
        flying += [item.id for item in plan.transfers] if plan else []
        runs = plan if plan and plan.num_tokens else None
        if ahead:
            runs, flight = flight, runs
        if runs:
            finished += scheduler.complete(runs, runs.blank_output(), 0.0)
        if not left and not scheduler.has_work and not flying:
            return scheduler, finished, aborted
    raise AssertionError("the scheduler did not come to an end")


def assert_all_comes_back(seed):
    scheduler, finished, aborted = play(seed)
    assert len(finished) + aborted == 40
    outputs = [member for request in finished for member in (request.members)]
    assert all(len(member.output) == member.params.max_tokens for member in outputs)
    assert scheduler.pool.num_available == scheduler.config.num_blocks
    if not scheduler.config.keep_turns:
        assert scheduler.swapper.host.pool.num_in_use == 0


@pytest.mark.parametrize("seed", range(8))
def test_every_request_ends_and_every_block_comes_back(seed):
    assert_all_comes_back(seed)


@pytest.mark.slow
def test_every_request_ends_and_every_block_comes_back_always():
    for seed in range(8, 400):
        assert_all_comes_back(seed)

"""Every load comes to an end, whatever the order of requests does from round to round."""

from collections import Counter

import pytest
from benchmarks.serve._drawn_order import RandomPriorities
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serve.conftest import Shuffled

from steelyard.serve import Request, SamplingParams, Scheduler, SchedulerConfig
from steelyard.serve.scheduling.fairness import VTC
from steelyard.serve.scheduling.fairness.order import OrderPolicy
from steelyard.serve.simulate import simulate

SHARED = list(range(80, 96))


class Alternating(Shuffled):
    """The first to come goes first, then the last, in turn."""

    def key(self, request, now_s):
        return (request.order if self.round % 2 else -request.order,)


class LeastServed(OrderPolicy):
    """Whoever ran goes last."""

    def __init__(self):
        self.tokens = Counter()

    def served(self, request, prefill_tokens, decode_tokens):
        self.tokens[request.id] += prefill_tokens + decode_tokens

    def key(self, request, now_s):
        return (self.tokens[request.id], -request.order)


class LeastComputed(OrderPolicy):
    """Whoever holds least goes first, so that a preemption puts a request at the head."""

    def key(self, request, now_s):
        return (request.num_computed, request.order)


ORDERS = [
    Shuffled,
    Alternating,
    LeastServed,
    LeastComputed,
    VTC,
    lambda: RandomPriorities(seed=5),
    lambda: None,
]


def request(index, arrival_s, own, output_tokens, *, shares=False, count=1):
    params = SamplingParams(max_tokens=output_tokens, ignore_end=True, n=count)
    prompt = [*(SHARED if shares else []), *[index + 1] * own]
    return Request(
        id=f"r{index}", prompt=prompt, params=params, arrival_s=arrival_s, client="abc"[index % 3]
    )


def step_time_s(plan):
    return 0.004 + 0.0003 * plan.num_tokens + 1e-6 * int(plan.context_lengths.sum())


def longest_pause(scheduler, requests, block_s, asynchronous, bound):
    """Simulate a load; return the most calls in a row that planned no token for the first time.

    The end of a simulation that never ends is an error after `bound` such calls.
    """
    reached, pauses, schedule = Counter(), [0], scheduler.schedule

    def watched(now_s):
        plan = schedule(now_s)
        fresh = False
        for name, stop in zip(plan.request_ids, plan.context_lengths, strict=True) if plan else ():
            fresh |= stop > reached[name]
            reached[name] = max(reached[name], int(stop))
        pauses.append(0 if fresh else pauses[-1] + 1)
        assert pauses[-1] <= bound, "the scheduler goes on without getting on"
        return plan

    scheduler.schedule = watched
    simulate(
        scheduler,
        requests,
        step_time_s,
        lambda item, row: item,
        transfer_time_s=lambda item: 0.0001 + block_s * int(item.runs[:, 2].sum()),
        asynchronous=asynchronous,
    )
    return max(pauses)


def pause_bound(config, requests):
    """Most calls between two new tokens.

    In between, a request loses its blocks at most once to an order and once for want of a block; it
    computes what it lost, one token a step at worst, and leaves and returns, a call each way and
    one to find that all wait.
    """
    sequences = sum(item.params.num_sequences for item in requests)
    return 2 * sequences * (config.max_model_len + 3)


@st.composite
def loads(draw):
    requests, arrival_s = [], 0.0
    for index in range(draw(st.integers(4, 9))):
        arrival_s += draw(st.sampled_from([0.0, 0.0, 0.003, 0.017, 0.3]))
        own, output_tokens = draw(st.integers(1, 14)), draw(st.integers(1, 16))
        options = {"shares": draw(st.booleans()), "count": draw(st.sampled_from([1, 1, 1, 2]))}
        requests.append(request(index, arrival_s, own, output_tokens, **options))
    return requests


limits = st.fixed_dictionaries(
    {
        # Two sequences of the longest prompt and output fit in the smallest pool.
        "num_blocks": st.integers(17, 20),
        "token_budget": st.integers(6, 32),
        "max_num_seqs": st.integers(2, 6),
        "prefix_caching": st.booleans(),
        "update_every": st.sampled_from([0, 1, 1, 1, 2]),
        "preemption": st.sampled_from(["swap", "swap", "recompute"]),
        "host_blocks": st.integers(12, 40),
        "allocator": st.sampled_from(["paged", "block-group"]),
        "keep_turns": st.booleans(),
        "reuse_host_copies": st.booleans(),
    }
)


@settings(max_examples=100, deadline=None)
@given(
    loads(),
    limits,
    st.sampled_from(ORDERS),
    st.booleans(),
    st.sampled_from([0.0, 0.0004, 0.01]),
)
def test_every_load_ends_under_any_order(requests, limits, order, asynchronous, block_s):
    config = SchedulerConfig(block_size=4, max_model_len=48, **limits)
    scheduler = Scheduler(config, policy=order())
    bound = pause_bound(config, requests)
    assert longest_pause(scheduler, requests, block_s, asynchronous, bound) <= bound
    assert all(
        len(member.output) == member.params.max_tokens
        for item in requests
        for member in item.members
    )
    assert scheduler.pool.num_available == config.num_blocks


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("block_s", [0.0, 0.0004, 0.01])
def test_requests_on_the_host_do_not_trade_places_for_ever(block_s, asynchronous):
    load = [
        request(0, 0.017, 1, 12, shares=True),
        request(1, 0.020, 12, 13, shares=True),
        request(2, 0.020, 8, 2),
        request(3, 0.037, 12, 7, shares=True),
        request(4, 0.037, 8, 5),
        request(5, 0.037, 12, 10, shares=True),
        request(6, 0.040, 2, 14),
        request(7, 0.057, 12, 5, shares=True),
        request(8, 0.357, 10, 16),
    ]
    config = SchedulerConfig(
        num_blocks=20,
        block_size=4,
        token_budget=15,
        max_num_seqs=5,
        max_model_len=48,
        update_every=1,
        allocator="block-group",
        preemption="swap",
        host_blocks=37,
        reuse_host_copies=False,
        keep_turns=True,
    )
    scheduler = Scheduler(config, policy=Shuffled())
    bound = pause_bound(config, load)
    assert longest_pause(scheduler, load, block_s, asynchronous, bound) <= bound


def test_prompts_that_are_computed_again_do_not_trade_places_for_ever():
    load = [request(index, 0.0, 14, 16) for index in range(2)]
    config = SchedulerConfig(
        num_blocks=8, block_size=4, token_budget=4, max_num_seqs=2, max_model_len=32, update_every=1
    )
    scheduler = Scheduler(config, policy=Alternating())
    bound = pause_bound(config, load)
    assert longest_pause(scheduler, load, 0.0, False, bound) <= bound
    # The order still counts: both lost their blocks to the other's turn.
    assert all(item.num_preemptions for item in load)

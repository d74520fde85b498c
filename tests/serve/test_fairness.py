import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import ConfigError
from steelyard.serve import Request, SamplingParams, Scheduler, SchedulerConfig
from steelyard.serve.scheduling.fairness import (
    DLPM,
    FCFS,
    VTC,
    MarkovPriorities,
    Priority,
    RandomPriorities,
    ServiceRecord,
    ShortestJob,
    jain_index,
    service_bound,
)


def request(order, prompt=4, client="default", **more):
    return Request(
        id=f"r{order}",
        prompt=[0] * prompt,
        params=SamplingParams(max_tokens=8),
        order=order,
        client=client,
        **more,
    )


def ranked(policy, requests, now_s=0.0):
    return [item.id for item in sorted(requests, key=lambda item: policy.key(item, now_s))]


def every_policy():
    return [
        FCFS(),
        Priority(),
        ShortestJob(),
        VTC(),
        DLPM(quantum=64),
        RandomPriorities(seed=3),
        MarkovPriorities(p_stay=0.7, seed=3),
    ]


@pytest.mark.parametrize("policy", every_policy(), ids=lambda item: type(item).__name__)
def test_every_policy_ranks_all_requests_without_ties_and_forgets_those_that_left(policy):
    requests = [request(order, client=f"c{order % 3}", priority=order % 2) for order in range(12)]
    for item in requests:
        policy.arrive(item, 0.0)
    for turn in range(30):
        keys = [policy.key(item, float(turn)) for item in requests]
        assert len(set(keys)) == len(keys)
        assert keys == [policy.key(item, float(turn)) for item in requests]
        policy.served(requests[turn % len(requests)], 3, 1)
        policy.update(float(turn))
        if turn % 5 == 4:
            policy.leave(requests.pop(turn % len(requests)))


def test_plain_orders():
    requests = [
        request(0, prompt=9, priority=2),
        request(1, prompt=5, priority=1),
        request(2, prompt=5, priority=1),
    ]
    assert ranked(FCFS(), requests) == ["r0", "r1", "r2"]
    assert ranked(Priority(), requests) == ["r1", "r2", "r0"]
    assert ranked(ShortestJob(), requests) == ["r1", "r2", "r0"]
    requests[0].num_computed, requests[0].output = 9, [1] * 7
    assert ranked(ShortestJob(), requests)[0] == "r0"
    requests[1].expected_output, requests[2].expected_output = 6, 2
    assert ranked(ShortestJob(), requests) == ["r0", "r2", "r1"]


def test_vtc_serves_the_client_with_the_least_and_takes_turns_when_level():
    policy = VTC()
    a = [request(order, client="a") for order in range(3)]
    b = [request(order, client="b") for order in range(3, 6)]
    for item in (*a, *b):
        policy.arrive(item, 0.0)
    assert ranked(policy, [*a, *b]) == ["r0", "r3", "r1", "r4", "r2", "r5"]
    policy.served(a[0], 4, 20)
    assert policy.counters == {"a": 44.0, "b": 0.0}
    assert ranked(policy, [*a, *b])[:3] == ["r3", "r4", "r5"]
    policy.leave(a[0])
    assert ranked(policy, [*a[1:], *b])[3] == "r1"


def test_vtc_lifts_a_client_that_returns_and_halves_the_price_of_double_weight():
    policy = VTC(weights={"b": 2.0})
    first = request(0, client="a")
    policy.arrive(first, 0.0)
    policy.served(first, 100, 0)
    late = request(1, client="b")
    policy.arrive(late, 0.0)
    assert policy.counters["b"] == 100.0
    policy.served(late, 100, 0)
    assert policy.counters["b"] == 150.0
    policy.leave(first)
    policy.leave(late)
    again = request(2, client="c")
    policy.arrive(again, 0.0)
    assert policy.counters["c"] == 150.0


def test_a_request_without_a_client_counts_as_default():
    policy = VTC()
    item = request(0, client="")
    policy.arrive(item, 0.0)
    policy.served(item, 1, 0)
    assert policy.counters == {"default": 1.0}


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 4), st.integers(1, 6))
def test_vtc_keeps_backlogged_clients_within_the_bound(seed, num_clients, places):
    """A server of some places that never stop being asked for; the running requests are replaced at any update."""
    generator = np.random.default_rng(seed)
    policy, names, orders = VTC(), [f"c{index}" for index in range(num_clients)], iter(range(10**6))
    longest, output = 40, 12
    queue: list[Request] = []

    def refill():
        for name in names:
            while sum(item.client == name for item in queue) < 2 * places:
                queue.append(
                    request(next(orders), prompt=int(generator.integers(1, longest)), client=name)
                )
                policy.arrive(queue[-1], 0.0)

    record = ServiceRecord(names)
    for _ in range(150):
        refill()
        served = dict.fromkeys(names, 0.0)
        for item in sorted(queue, key=lambda item: policy.key(item, 0.0))[:places]:
            fresh = len(item.prompt) - item.num_computed
            item.num_computed = len(item.prompt)
            item.output.append(0)
            policy.served(item, fresh, 1)
            served[item.client] += fresh + 2
            if len(item.output) == output:
                policy.leave(item)
                queue.remove(item)
        record.add(served, names)
    bound = service_bound(
        w_in=1, w_out=2, longest_prompt=longest, pool_tokens=places * (longest + output)
    )
    assert record.largest_difference() <= bound
    assert record.jain() > 0.95


def test_dlpm_prefers_long_prefixes_until_the_deficit_is_used_up():
    cached = {"r0": 0, "r1": 16, "r2": 32}
    policy = DLPM(quantum=50, cached_prefix=lambda item: cached[item.id])
    requests = [request(0, client="a"), request(1, client="a"), request(2, client="b")]
    for item in requests:
        policy.arrive(item, 0.0)
    assert ranked(policy, requests) == ["r2", "r1", "r0"]
    policy.served(requests[2], 60, 0)
    assert ranked(policy, requests) == ["r1", "r0", "r2"]
    policy.served(requests[0], 60, 0)
    assert policy.deficits == {"a": 40.0, "b": 40.0}
    policy.leave(requests[2])
    policy.served(requests[0], 200, 0)
    assert policy.deficits == {"a": 40.0, "b": 40.0}
    policy.arrive(request(3, client="b"), 0.0)
    assert policy.deficits["b"] == 50.0


def test_drawn_priorities_change_at_updates_only_and_do_not_depend_on_what_was_asked():
    requests = [request(order) for order in range(50)]
    one, other = RandomPriorities(seed=5), RandomPriorities(seed=5)
    first = ranked(one, requests)
    assert ranked(one, requests, 9.0) == first
    one.update(0.0)
    other.update(0.0)
    second = ranked(one, requests)
    assert second != first
    assert ranked(other, requests[::-1]) == second
    assert ranked(RandomPriorities(seed=6), requests) != first


def test_markov_priorities_keep_the_served_on_top():
    requests = [request(order) for order in range(200)]
    policy, kept = MarkovPriorities(p_stay=0.8, seed=1), []
    for _ in range(20):
        top = set(ranked(policy, requests)[:50])
        for item in requests:
            if item.id in top:
                policy.served(item, 0, 1)
        policy.update(0.0)
        kept.append(len(top & set(ranked(policy, requests)[:50])) / 50)
    assert 0.78 < np.mean(kept) < 0.92
    policy.leave(requests[0])
    assert ranked(MarkovPriorities(p_stay=0.0, seed=1), requests) == ranked(
        RandomPriorities(seed=1), requests
    )


def test_jain_index_goes_from_one_over_n_to_one():
    assert jain_index([3, 3, 3]) == jain_index([0, 0]) == 1.0
    assert jain_index([5, 0, 0, 0]) == 0.25
    assert jain_index([4, 1]) == pytest.approx(25 / 34)


def test_largest_difference_looks_only_where_both_clients_waited():
    record = ServiceRecord(["a", "b"])
    for service, waiting in (
        ({"a": 100}, ["a"]),
        ({"a": 5}, ["a", "b"]),
        ({"a": 5}, ["a", "b"]),
        ({"b": 7}, ["b", "a"]),
        ({"b": 90}, ["b"]),
    ):
        record.add(service, waiting)
    assert record.largest_difference() == 10
    assert record.jain() == jain_index([10, 7])
    assert ServiceRecord(["a", "b"]).largest_difference() == 0.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: VTC(w_in=0), "w_in is 0"),
        (lambda: VTC(weights={"x": -1}), "weight of client 'x' is -1"),
        (lambda: DLPM(quantum=0), "quantum is 0"),
        (lambda: MarkovPriorities(p_stay=1.5, seed=0), "p_stay is 1.5"),
        (lambda: jain_index([]), "at least one share"),
    ],
)
def test_numbers_out_of_range_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_the_configured_dlpm_sees_what_is_cached_now():
    limits = SchedulerConfig(
        num_blocks=32,
        block_size=4,
        token_budget=32,
        max_num_seqs=4,
        max_model_len=64,
        policy="dlpm",
    )
    scheduler = Scheduler(limits)
    params = SamplingParams(max_tokens=1, ignore_end=True)
    scheduler.add(Request(id="a", prompt=list(range(12)), params=params), 0.0)
    plan = scheduler.schedule(0.0)
    scheduler.complete(plan, plan.blank_output(), 0.0)
    other = Request(id="b", prompt=list(range(50, 62)), params=params)
    alike = Request(id="c", prompt=list(range(12)), params=params)
    for item in (other, alike):
        scheduler.add(item, 0.0)
    assert scheduler.policy.key(other, 0.0) == (0.0, 0, 1)
    assert scheduler.policy.key(alike, 0.0) == (0.0, -8, 2)

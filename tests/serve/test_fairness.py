import sys
from collections import Counter

import numpy as np
import pytest
from benchmarks.serve._drawn_order import MarkovPriorities, RandomPriorities
from benchmarks.serve._many_clients import entries
from benchmarks.serve._service_record import ServiceRecord, service_bound
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import ConfigError
from steelyard.serve import Request, SamplingParams, Scheduler, SchedulerConfig
from steelyard.serve.scheduling.fairness import (
    DLPM,
    FCFS,
    VTC,
    Priority,
    ShortestJob,
    jain_index,
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
    """A server of some places, always asked for; running requests are replaced at any update."""
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
    assert policy.deficits == {"a": 40.0}
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
    assert scheduler.policy.key(other, 0.0) == (0.0, 0.0, 0, 1)
    assert scheduler.policy.key(alike, 0.0) == (0.0, 0.0, -8, 2)


class Server:
    """Eight places for requests of clients that come, are served and go."""

    def __init__(self, policy):
        self.policy, self.flying, self.served = policy, [], Counter()

    def serve(self, names, prompt=4, output=2):
        for client, user in names:
            order = sum(self.served.values()) + len(self.flying)
            self.flying.append(request(order, prompt=prompt, client=client, user=user))
            self.policy.arrive(self.flying[-1], 0.0)
            if len(self.flying) == 8:
                self.serve_one(prompt, output)

    def serve_one(self, prompt=4, output=2):
        first = min(self.flying, key=lambda item: self.policy.key(item, 0.0))
        self.flying.remove(first)
        self.policy.served(first, prompt, 0)
        self.policy.served(first, 0, output)
        self.policy.leave(first)
        self.served[first.client, first.user] += 1


def instructions(work, *args):
    """Count the bytecode instructions that some work executes."""
    count, before = 0, sys.gettrace()

    def trace(frame, event, _):
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        work(*args)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("make", [VTC, lambda: DLPM(quantum=3)], ids=["VTC", "DLPM"])
@pytest.mark.parametrize("who", ["clients", "users of one client"])
def test_clients_that_are_gone_cost_nothing(make, who):
    """Neither memory nor time of a request depends on how many clients came before it."""

    def names(start, stop):
        numbers = range(start, stop)
        if who == "clients":
            return [(f"c{number}", "") for number in numbers]
        return [("owner", f"u{number}") for number in numbers]

    policy, sizes, costs = make(), [], []
    server = Server(policy)
    for start in (0, 4_000):
        server.serve(names(start, start + 400))
        sizes.append(entries(policy))
        rows = names(start + 400, start + 500)
        costs.append(instructions(server.serve, rows))
        server.serve(names(start + 500, 4_000))
    assert sizes[1] < 1.2 * sizes[0] + 50
    assert costs[1] < 1.2 * costs[0]


def test_a_party_that_is_never_served_does_not_make_the_others_be_remembered():
    policy = VTC()
    stuck = request(0, client="stuck")
    policy.arrive(stuck, 0.0)
    for order in range(1, 2000):
        item = request(order, client=f"c{order}")
        policy.arrive(item, 0.0)
        policy.served(item, order % 7 + 1, 1)
        policy.leave(item)
        assert entries(policy) <= 100


@pytest.mark.parametrize("make", [VTC, lambda: DLPM(quantum=16)], ids=["VTC", "DLPM"])
def test_naming_users_does_not_bring_a_client_more(make):
    """One client names a user of its own in every request, the other none; both get one half."""
    server = Server(make())
    numbers = iter(range(10**6))
    server.serve([("crowd", f"u{next(numbers)}") for _ in range(4)] + [("plain", "")] * 3)
    for _ in range(400):
        crowd = sum(item.client == "crowd" for item in server.flying)
        server.serve([("crowd", f"u{next(numbers)}") if crowd < 4 else ("plain", "")])
    got = Counter()
    for (client, _), count in server.served.items():
        got[client] += count
    assert jain_index(got.values()) > 0.999


@pytest.mark.parametrize("make", [VTC, lambda: DLPM(quantum=16)], ids=["VTC", "DLPM"])
def test_users_of_one_client_share_what_it_gets(make):
    """Of two users, one's requests cost thrice those of the other, so it gets a third as many."""
    policy, orders = make(), iter(range(10**6))
    flying, service = [], Counter()
    for _ in range(600):
        for user, prompt in (("big", 30), ("small", 10)):
            while sum(item.user == user for item in flying) < 3:
                item = request(next(orders), prompt=prompt, client="owner", user=user)
                flying.append(item)
                policy.arrive(item, 0.0)
        first = min(flying, key=lambda item: policy.key(item, 0.0))
        flying.remove(first)
        policy.served(first, len(first.prompt), 1)
        policy.leave(first)
        service[first.user] += len(first.prompt) + 2
    assert service["big"] == pytest.approx(service["small"], rel=0.05)


def test_vtc_remembers_who_is_ahead_across_a_short_idle_time():
    policy = VTC()
    steady, rare = request(0, client="steady"), request(1, client="rare")
    for item in (steady, rare):
        policy.arrive(item, 0.0)
    policy.served(rare, 100, 0)
    policy.leave(rare)
    policy.served(steady, 40, 0)
    policy.arrive(request(2, client="rare"), 0.0)
    assert policy.counters == {"steady": 40.0, "rare": 100.0}


def test_dlpm_debts_are_paid_by_the_rounds_a_client_stays_away():
    policy = DLPM(quantum=50)
    steady = request(0, client="steady")
    policy.arrive(steady, 0.0)
    for order, rounds, left in ((1, 0, -30.0), (2, 1, 20.0), (3, 9, 50.0)):
        debtor = request(order, client="debtor")
        policy.arrive(debtor, 0.0)
        policy.served(debtor, 130, 0)
        policy.leave(debtor)
        for _ in range(rounds):
            policy.served(steady, 50, 0)
        again = request(10 + order, client="debtor")
        policy.arrive(again, 0.0)
        assert policy.deficits["debtor"] == left
        policy.leave(again)
        for _ in range(20):
            policy.served(steady, 50, 0)

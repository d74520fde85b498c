"""Networks: shapes, paths, max-min fair rates and completion against slow obvious versions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import ConfigError
from steelyard.sim import EventLoop
from steelyard.sim.network import (
    Cabling,
    Flows,
    dragonfly_plus,
    ecmp,
    ethereal,
    fair_rates,
    fat_tree,
    leaf_spine,
    link_bytes,
    multi_plane,
    simulate_flows,
    spray,
    torus,
    traffic,
    zoned_fat_tree,
)
from steelyard.sim.network.paths import num_paths, paths

SMALL = {
    "leaf-spine": leaf_spine(3, 2, 2, bytes_per_s=8.0),
    "oversubscribed": leaf_spine(2, 3, 3, bytes_per_s=6.0, oversubscription=2),
    "fat tree": fat_tree(2, 2, 2, 4, 2, bytes_per_s=4.0),
    "zones": zoned_fat_tree(2, 2, 2, 2, 1, bytes_per_s=4.0),
    "dragonfly+": dragonfly_plus(3, 2, 2, 2, host_bytes_per_s=4.0, link_bytes_per_s=6.0),
    "torus": torus((3, 2, 2), bytes_per_s=4.0),
    "planes": multi_plane([leaf_spine(2, 2, 3, bytes_per_s=4.0)] * 2),
}


def dense(network, routed):
    """Shares of links [S, L] of all pieces."""
    shares = np.zeros((len(routed), network.num_links))
    for row, hops in enumerate(routed.hops):
        for hop in hops[hops >= 0]:
            if hop < network.num_links:
                shares[row, hop] += 1
                continue
            bundle = hop - network.num_links
            low, high = routed.bundles.offset[bundle : bundle + 2]
            shares[row, routed.bundles.link[low:high]] += routed.bundles.share[low:high]
    return shares


def water_filling(shares, capacity):
    """Raise all rates together, and hold those that meet a full link: dense and slow."""
    rates = np.zeros(len(shares))
    rising = np.ones(len(shares), dtype=bool)
    while rising.any():
        room = capacity - rates @ shares
        growth = shares[rising].sum(axis=0)
        used = growth > 1e-12
        step = (room[used] / growth[used]).min()
        rates[rising] += step
        full = (capacity - rates @ shares) <= 1e-9 * capacity
        rising &= ~(shares[:, full] > 0).any(axis=1)
    return rates


@st.composite
def routed_flows(draw):
    network = SMALL[draw(st.sampled_from(sorted(SMALL)))]
    hosts = st.integers(0, network.num_hosts - 1)
    pairs = st.tuples(hosts, hosts).filter(lambda pair: pair[0] != pair[1])
    ends = np.array(draw(st.lists(pairs, min_size=1, max_size=14)))
    count = len(ends)
    sizes = draw(st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=count, max_size=count))
    starts = draw(st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=count, max_size=count))
    flows = Flows(ends[:, 0], ends[:, 1], sizes, starts)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    how = draw(st.sampled_from(["ecmp", "split", "spray", "ethereal"]))
    if how == "spray":
        return network, spray(network, flows)
    if how == "ethereal":
        return network, ethereal(network, flows)
    return network, ecmp(network, flows, rng, split=3 if how == "split" else 1)


@settings(max_examples=60, deadline=None)
@given(routed_flows())
def test_rates_equal_slow_water_filling_and_keep_to_capacities(case):
    network, routed = case
    shares = dense(network, routed)
    rates = fair_rates(network, routed)
    np.testing.assert_allclose(rates, water_filling(shares, network.bytes_per_s), rtol=1e-9)
    assert (rates @ shares <= network.bytes_per_s * (1 + 1e-9)).all()


def on_the_event_loop(network, routed):
    """Finish times of pieces with begins and finishes as events of the one event loop."""
    loop, shares = EventLoop(), dense(network, routed)
    left, finish = routed.size_bytes.copy(), np.zeros(len(routed))
    begin = routed.flows.start_s[routed.flow]
    state = {"rates": np.zeros(len(left)), "since": 0.0, "plan": 0}
    running = np.zeros(len(left), dtype=bool)

    def settle():
        sent = state["rates"][running] * (loop.now_s - state["since"])
        # Rounding may leave less than nothing, which would be due before every other piece.
        left[running] = np.maximum(left[running] - sent, 0.0)
        state["since"] = loop.now_s

    def again():
        state["plan"] += 1
        if running.any():
            found = np.flatnonzero(running)
            state["rates"][found] = water_filling(shares[found], network.bytes_per_s)
            due = left[found] / state["rates"][found]
            first = found[due <= due.min() * (1 + 1e-9)]
            loop.after(max(due.min(), 0.0), lambda plan=state["plan"]: done(plan, first))

    def done(plan, pieces):
        if plan == state["plan"]:  # no rates have changed since
            settle()
            running[pieces], finish[pieces] = False, loop.now_s
            again()

    def start(pieces):
        settle()
        running[pieces] = True
        again()

    for time_s in np.unique(begin):
        loop.at(time_s, lambda t=time_s: start(np.flatnonzero(begin == t)))
    loop.run()
    return finish


@settings(max_examples=40, deadline=None)
@given(routed_flows())
def test_the_compiled_loop_equals_the_event_loop(case):
    network, routed = case
    pieces = on_the_event_loop(network, routed) + dense(network, routed) @ network.latency_s
    expected = np.zeros(len(routed.flows))
    np.maximum.at(expected, routed.flow, pieces)
    found = simulate_flows(network, routed)
    np.testing.assert_allclose(found.finish_s, expected, rtol=1e-6)


def test_many_starts_at_odd_times_all_finish():
    rng = np.random.default_rng(0)
    hosts = np.array([rng.permutation(16)[:2] for _ in range(400)])
    network = leaf_spine(4, 4, 4, bytes_per_s=3e9)
    flows = Flows(hosts[:, 0], hosts[:, 1], 1e8, 0.1 + rng.random(400) / 3)
    done = simulate_flows(network, ecmp(network, flows, rng))
    assert (done.finish_s > flows.start_s + 1e8 / 3e9).all()
    assert done.num_events <= 2 * len(flows)


def test_rates_that_hold_longer_save_events_and_cost_little_time():
    network = leaf_spine(8, 4, 4, bytes_per_s=1e9)
    flows = traffic.all_to_all(32, 32e6)[0].flows
    routed = ecmp(network, flows, np.random.default_rng(0))
    exact, held = (simulate_flows(network, routed, tolerance=slack) for slack in (0.0, 0.02))
    assert held.num_events < exact.num_events
    assert held.makespan_s == pytest.approx(exact.makespan_s, rel=0.02)


@settings(max_examples=40, deadline=None)
@given(routed_flows())
def test_bytes_are_conserved_at_every_switch_and_paths_are_shortest(case):
    network, routed = case
    flows = routed.flows
    pieces = np.bincount(routed.flow, weights=routed.size_bytes)
    np.testing.assert_allclose(pieces, flows.size_bytes)
    load = link_bytes(network, routed)
    out = np.bincount(network.source, weights=load, minlength=network.num_nodes)
    into = np.bincount(network.target, weights=load, minlength=network.num_nodes)
    np.testing.assert_allclose(out[network.num_hosts :], into[network.num_hosts :], atol=1e-9)
    sent = np.bincount(flows.source, weights=flows.size_bytes, minlength=network.num_hosts)
    np.testing.assert_allclose(out[: network.num_hosts], sent, atol=1e-9)
    hops = network.hops(flows.source, flows.target)[routed.flow]
    np.testing.assert_allclose(dense(network, routed).sum(axis=1), hops)


@pytest.mark.parametrize("name", sorted(SMALL))
def test_path_numbers_are_all_the_shortest_paths(name):
    network = SMALL[name]
    last = network.num_hosts - 1
    count = int(num_paths(network, [0], [last])[0])
    found = paths(network, 0, last, np.arange(count))
    kept = [row[row >= 0] for row in found]
    for row in kept:
        assert network.source[row[0]] == 0
        assert network.target[row[-1]] == last
        assert (network.target[row[:-1]] == network.source[row[1:]]).all()
    if name != "torus":  # there the ways left depend on the one taken
        assert len({tuple(row) for row in kept}) == count


def test_shapes_have_their_counts():
    tree = fat_tree(4, 8, 8, 16, 16, bytes_per_s=50e9)
    assert (tree.num_hosts, tree.num_switches) == (512, 32 + 32 + 16)
    assert tree.hops(0, [0, 1, 16, 200]).tolist() == [0, 2, 4, 6]
    wide = zoned_fat_tree(2, 40, 20, 20, 2, bytes_per_s=25e9)
    assert (wide.num_hosts, wide.num_switches) == (1600, 122)
    assert torus((4, 3), bytes_per_s=1.0).num_links == 2 * (12 + 24)
    assert torus((2, 1), bytes_per_s=1.0).num_links == 2 * (2 + 1)


def test_leonardo_has_its_published_cables_between_cells():
    # Rates between switches do not depend on the hosts below; one per leaf is enough here.
    net = dragonfly_plus(23, 18, 18, 1, host_bytes_per_s=40 * 12.5e9, link_bytes_per_s=25e9)
    assert {len(net.links_between(0, other)) for other in range(1, 23)} == {18}
    terabit = 1e12 / 8
    assert net.bisection_bytes_per_s(range(11)) / terabit == pytest.approx(475.2)
    assert net.bisection_bytes_per_s([0]) / terabit == pytest.approx(79.2)
    assert net.bytes_per_s[: 23 * 18][net.group[: 23 * 18] == 0].sum() / terabit == 72.0
    hops = net.hops(0, [1, 18, net.num_hosts - 1])
    assert hops.max() == 5  # up, to the spine, across, down, and to the host


def test_a_dear_plane_is_used_only_where_the_fast_ones_end():
    ethernet = leaf_spine(1, 1, 8, bytes_per_s=3.0)
    fast = leaf_spine(1, 1, 4, bytes_per_s=25.0)
    both = multi_plane(
        [ethernet, fast, fast], hosts=[range(8), range(4), range(4, 8)], metrics=[10, 1, 1]
    )
    rates = fair_rates(both, spray(both, Flows([0, 1, 5], [2, 6, 4], 1.0)))
    np.testing.assert_allclose(rates, [25.0, 3.0, 25.0])


def test_wrong_networks_and_flows_are_refused():
    with pytest.raises(ConfigError, match="disconnected: host 0 cannot reach host 1"):
        made = Cabling("two", 2)
        made.cable([0, 1], made.switches(2, tier=1), bytes_per_s=1.0, latency_s=0.0)
        made.network()
    with pytest.raises(ConfigError, match=r"2 things are wrong:\n  leaves is 0"):
        leaf_spine(0, 1, 1, bytes_per_s=-1.0)
    with pytest.raises(ConfigError, match="6 cores cannot be divided among 4"):
        fat_tree(2, 2, 4, 6, 2, bytes_per_s=1.0)
    with pytest.raises(ConfigError, match="plane 0 has 6 hosts, but 5"):
        multi_plane([SMALL["leaf-spine"]], hosts=[range(5)])
    network = SMALL["leaf-spine"]
    with pytest.raises(ConfigError, match="from host 1 to itself"):
        ecmp(network, Flows([0, 1], [2, 1], 1.0), np.random.default_rng(0))
    with pytest.raises(ConfigError, match="flow 0 has target 9, but hosts are 0 to 5"):
        spray(network, Flows([0], [9], 1.0))
    with pytest.raises(ConfigError, match="flow 1 needs a size above 0 bytes"):
        Flows([0, 1], [1, 0], [1.0, 0.0])
    with pytest.raises(ConfigError, match="power of 2"):
        traffic.halving_doubling(6, 1.0)


def test_collectives_send_what_they_must():
    size = 64.0
    for steps in (traffic.ring_all_reduce(8, size), traffic.halving_doubling(8, size)):
        sent = sum(
            step.repeat * np.bincount(step.flows.source, weights=step.flows.size_bytes)
            for step in steps
        )
        np.testing.assert_allclose(sent, 2 * 7 / 8 * size)
    for make in (traffic.all_to_all, traffic.rounds_all_to_all):
        pairs = [
            (s, t)
            for step in make(5, size)
            for s, t in zip(step.flows.source.tolist(), step.flows.target.tolist(), strict=True)
        ]
        assert sorted(pairs) == [(s, t) for s in range(5) for t in range(5) if s != t]
    for hosts in (2, 3, 8, 13):
        flows = traffic.double_binary_tree(hosts, size)[0].flows
        assert len(flows) == 4 * (hosts - 1)
        assert np.bincount(flows.target).max() <= 6

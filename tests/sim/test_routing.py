"""Routings: planned splits, colouring, detours and loads, and the plan that chooses among them."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard import catalog
from steelyard.cli.main import main
from steelyard.errors import ConfigError, InfeasibleError, TraceError
from steelyard.plan.routing import plan_routing, simulate_routing
from steelyard.sim.network import (
    Flows,
    Network,
    dragonfly_plus,
    ethereal,
    leaf_spine,
    link_bytes,
    multi_plane,
    simulate_flows,
    spray,
    torus,
    traffic,
)
from steelyard.sim.network.adaptive import least_loaded, valiant
from steelyard.sim.network.balance import cut, divide, num_pieces
from steelyard.sim.network.colouring import edge_colouring
from steelyard.sim.network.congestion import congestion
from steelyard.sim.network.published import fire_flyer_2, network_of, parse_shape
from steelyard.sim.network.traces import read_flows

TREE = leaf_spine(4, 4, 4, bytes_per_s=1e9)


@given(st.integers(1, 80), st.integers(1, 24), st.sampled_from(["equal", "minimal"]))
def test_division_is_even_in_whole_numbers_with_the_pieces_of_the_formulas(flows, paths, split):
    flow, path, size = divide(flows, paths, split)
    assert (np.bincount(path, weights=size, minlength=paths) == flows).all()
    assert (np.bincount(flow, weights=size, minlength=flows) == paths).all()
    assert (size > 0).all()
    whole = flows - flows % paths
    assert len(flow) - whole == num_pieces(flows, paths, split)


@given(
    st.lists(st.floats(0.1, 10), min_size=1, max_size=9),
    st.lists(st.floats(0.1, 10), min_size=1, max_size=6),
)
def test_cut_fills_rooms_of_any_size(sizes, shares):
    rooms = np.array(shares) / sum(shares) * sum(sizes)
    flow, path, size = cut(sizes, rooms)
    np.testing.assert_allclose(np.bincount(flow, size, len(sizes)), sizes, rtol=1e-9)
    np.testing.assert_allclose(np.bincount(path, size, len(rooms)), rooms, rtol=1e-6, atol=1e-9)
    assert len(size) <= len(sizes) + len(rooms) - 1


@settings(max_examples=40, deadline=None)
@given(
    st.integers(2, 5), st.integers(1, 5), st.integers(1, 4), st.integers(1, 60), st.integers(0, 999)
)
def test_colouring_loads_as_spraying_with_no_more_splits(leaves, spines, hosts, count, seed):
    network = leaf_spine(leaves, spines, hosts, bytes_per_s=1.0)
    ends = np.random.default_rng(seed).integers(leaves * hosts, size=(count, 2))
    ends = ends[ends[:, 0] != ends[:, 1]]
    if not len(ends):
        return
    flows = Flows(ends[:, 0], ends[:, 1], 3.0)
    joint, ideal = edge_colouring(network, flows), link_bytes(network, spray(network, flows))
    np.testing.assert_allclose(link_bytes(network, joint), ideal, atol=1e-9)
    assert joint.splits() <= ethereal(network, flows, split="minimal").splits()


def test_colouring_splits_nothing_where_degrees_divide():
    network = leaf_spine(4, 4, 4, bytes_per_s=1.0)
    flows = traffic.rounds_all_to_all(16, 16.0)[5].flows  # 2 and 2 flows to two other leaves
    assert edge_colouring(network, flows).splits() == 0
    assert ethereal(network, flows, split="minimal").splits() > 0
    with pytest.raises(ConfigError, match="one size and one number of paths"):
        edge_colouring(network, Flows([0, 1], [8, 9], [1.0, 2.0]))


def test_planned_splits_follow_unequal_uplinks():
    network = TREE
    rates = network.bytes_per_s.copy()
    spine = network.num_nodes - 1
    rates[(network.source == spine) | (network.target == spine)] /= 2
    fields = ("name", "num_hosts", "tier", "group", "source", "target", "latency_s", "metric")
    slow = Network(**{name: getattr(network, name) for name in fields}, bytes_per_s=rates)
    flows = traffic.halving_doubling(16, 16.0)[0].flows
    np.testing.assert_allclose(
        link_bytes(slow, ethereal(slow, flows)), link_bytes(slow, spray(slow, flows)), rtol=1e-9
    )


def test_detours_win_between_two_cells_and_lose_within_a_tree():
    net = dragonfly_plus(6, 4, 4, 4, host_bytes_per_s=1e9, link_bytes_per_s=1e9)
    hosts = np.arange(16)
    flows = Flows(hosts, hosts + 16, 1e6)  # one cell sends to one other over four cables
    rng = np.random.default_rng(0)
    direct = simulate_flows(net, spray(net, flows)).makespan_s
    apart = valiant(net, flows, rng)
    assert simulate_flows(net, apart).makespan_s < 0.95 * direct
    assert simulate_flows(net, least_loaded(net, flows, rng, detours=4)).makespan_s < 0.7 * direct
    for hops, target in zip(apart.hops, flows.target, strict=True):
        kept = hops[hops >= 0]
        assert (net.target[kept[:-1]] == net.source[kept[1:]]).all()
        assert net.target[kept[-1]] == target
    ring = torus((4, 4), bytes_per_s=1.0)
    assert len(valiant(ring, Flows([0, 1], [5, 7], 1.0), rng)) == 2
    with pytest.raises(ConfigError, match="one link each"):
        valiant(multi_plane([TREE, TREE]), flows=Flows([0], [1], 1.0), rng=rng)


def test_congestion_counts_seconds_and_connections():
    flows = traffic.halving_doubling(16, 16e9)[0].flows
    seen = congestion(TREE, ethereal(TREE, flows))
    assert seen.host_s == pytest.approx(8.0)
    assert seen.switch_s == pytest.approx(8.0)
    assert (seen.queue_pairs, seen.splits, seen.imbalance) == (1, 0, pytest.approx(1.0))


def test_the_plan_takes_the_easiest_of_the_fastest_and_says_why():
    made = plan_routing(TREE, traffic.halving_doubling(16, 1e6))
    assert made.choice["routing"] == "ethereal"
    assert "hosts" in made.binding_constraint
    reasons = {item.choice["routing"]: item.reason for item in made.rejected}
    assert "times as slow" in reasons["ecmp"]
    assert "out of order" in reasons["spray"]
    with pytest.raises(InfeasibleError, match="queue pairs: every routing needs more than 3"):
        plan_routing(TREE, traffic.all_to_all(16, 1e6), max_queue_pairs=3)
    with pytest.raises(ConfigError, match="no routing named 'magic'"):
        simulate_routing(TREE, traffic.ring_all_reduce(16, 1.0), "magic")


def test_published_and_assumed_networks():
    assert fire_flyer_2().num_switches == 122
    network, note = network_of(catalog.cluster("Selene"), num_nodes=40)
    assert network.num_hosts >= 40
    assert "assumed" in note
    assert parse_shape("torus:3x4", bytes_per_s=1.0).num_hosts == 12
    for text, said in (
        ("ring:3", "no network shape named 'ring'"),
        ("leaf-spine:3x4", "needs LEAVESxSPINESxHOSTS"),
        ("torus:9999x9999", "at most 2,000,000"),
    ):
        with pytest.raises(ConfigError, match=said):
            parse_shape(text, bytes_per_s=1.0)


def test_the_command_reads_traces_and_names_what_is_wrong(tmp_path, capsys):
    def run(*words):
        with pytest.raises(SystemExit) as caught:
            main(["plan", "network", *words])
        return caught.value.code, capsys.readouterr()

    path = tmp_path / "flows.csv"
    path.write_text("source,target,bytes\n0,5,1000\n1,6,1000\n2,2,1\n")
    code, said = run("--topology", "leaf-spine:2x2x4", "--trace", str(path), "--json")
    assert code == 0
    assert json.loads(said.out)["choice"]["network"] == "leaf-spine 2 x 2"
    code, said = run("--topology", "leaf-spine:2x2x4", "--collective", "ring", "--seeds", "1")
    assert code == 0
    assert "ethereal" in said.out
    for words, what in (
        (("--collective", "ring"), "either --topology or --cluster"),
        (("--topology", "torus:4"), "either --collective or --trace"),
        (("--topology", "torus:4", "--collective", "gossip"), "--collective is 'gossip'"),
        (("--topology", "torus:4", "--collective", "ring", "--hosts", "9"), "--hosts is 9"),
    ):
        code, said = run(*words)
        assert code == 2
        assert what in said.err
    path.write_text("source,target,bytes\n0,5,many\n")
    with pytest.raises(TraceError, match="line 2: bytes is 'many'"):
        read_flows(path)
    path.write_text("from,to\n1,2\n")
    with pytest.raises(TraceError, match="no column source, target, bytes"):
        read_flows(path)

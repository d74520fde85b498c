"""Routings: what they promise of loads, splits and paths; traces and the choice among them."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.cli.plan.network import network as network_verb
from steelyard.errors import ConfigError, InfeasibleError, TraceError
from steelyard.plan.routing import plan_routing, simulate_routing
from steelyard.sim.network import Flows, ethereal, leaf_spine, link_bytes, spray, traffic
from steelyard.sim.network.adaptive import least_loaded, valiant
from steelyard.sim.network.colouring import edge_colouring
from steelyard.sim.network.congestion import congestion
from steelyard.sim.network.published import leonardo, parse_shape
from steelyard.sim.network.topologies import dragonfly_plus
from steelyard.sim.network.traces import read_flows

TREE = leaf_spine(4, 4, 4, bytes_per_s=10.0)
GROUPS = dragonfly_plus(3, 2, 2, 2, host_bytes_per_s=4.0, link_bytes_per_s=6.0)


def _flows(rng, hosts, count):
    """Draw flows of one size between different hosts."""
    source = rng.integers(hosts, size=count)
    target = (source + rng.integers(1, hosts, size=count)) % hosts
    return Flows(source, target, np.full(count, 6.0))


def _is_way(graph, flows, routed):
    """Check that every piece walks from its source to its target."""
    for place, hops in zip(routed.flow, routed.hops, strict=True):
        links = hops[hops >= 0]
        assert graph.source[links[0]] == flows.source[place]
        assert graph.target[links[-1]] == flows.target[place]
        assert (graph.target[links[:-1]] == graph.source[links[1:]]).all()


@settings(max_examples=15)
@given(st.integers(0, 2**31), st.integers(1, 40))
def test_detours_and_loaded_choices_walk_from_source_to_target(seed, count):
    rng = np.random.default_rng(seed)
    for graph in (TREE, GROUPS):
        flows = _flows(rng, graph.num_hosts, count)
        for routed in (valiant(graph, flows, rng), least_loaded(graph, flows, rng, detours=1)):
            _is_way(graph, flows, routed)
            assert np.bincount(routed.flow, routed.size_bytes) == pytest.approx(
                np.bincount(flows.source * 0 + np.arange(count), flows.size_bytes)
            )


@settings(max_examples=15)
@given(st.integers(0, 2**31), st.integers(1, 60))
def test_planned_splits_load_links_as_spraying_does(seed, count):
    """No link between switches carries more than under ideal spraying; colouring splits no more."""
    flows = _flows(np.random.default_rng(seed), TREE.num_hosts, count)
    ideal = congestion(TREE, spray(TREE, flows)).switch_s
    by_pair = ethereal(TREE, flows, split="minimal")
    coloured = edge_colouring(TREE, flows)
    for routed in (by_pair, coloured):
        _is_way(TREE, flows, routed)
        assert congestion(TREE, routed).switch_s == pytest.approx(ideal, abs=1e-9)
        assert link_bytes(TREE, routed).sum() == pytest.approx(
            link_bytes(TREE, spray(TREE, flows)).sum()
        )
    assert coloured.splits() <= by_pair.splits()


def test_colouring_needs_no_split_where_degrees_divide():
    """Every leaf sends and receives a multiple of the paths: König's theorem splits nothing."""
    edges = np.array([[0, 1, 3, 0], [3, 0, 1, 0], [1, 3, 0, 0], [0, 0, 0, 0]])
    source, target = np.nonzero(edges)
    repeated = np.repeat(np.arange(len(source)), edges[source, target])
    flows = Flows(4 * source[repeated], 4 * target[repeated] + 1, np.full(len(repeated), 6.0))
    assert edge_colouring(TREE, flows).splits() == 0
    with pytest.raises(ConfigError, match="one size"):
        edge_colouring(TREE, Flows(np.array([0, 4]), np.array([4, 8]), np.array([1.0, 2.0])))


def test_hashing_is_worse_than_planning_on_halving_and_doubling():
    steps = traffic.halving_doubling(16, 64.0)
    planned = simulate_routing(TREE, steps, "ethereal")
    hashed = simulate_routing(TREE, steps, "ecmp", num_seeds=5)
    assert len(hashed.times_s) == 5
    assert len(planned.times_s) == 1
    assert hashed.time_s > 1.2 * planned.time_s
    assert planned.time_s == pytest.approx(simulate_routing(TREE, steps, "spray").time_s, rel=0.01)
    with pytest.raises(ConfigError, match="no routing named"):
        simulate_routing(TREE, steps, "magic")


def test_the_plan_says_why_the_others_lost():
    steps = traffic.halving_doubling(16, 64.0)
    made = plan_routing(TREE, steps)
    assert made.choice["routing"] == "ethereal"
    assert made.forecast("network.collective_time").value == made.choice["time_s"]
    reasons = {item.choice["routing"]: item.reason for item in made.rejected}
    assert "out of order" in reasons["spray"]
    assert "times as slow" in reasons["ecmp"]
    with pytest.raises(InfeasibleError, match="queue pairs"):
        plan_routing(TREE, traffic.all_to_all(16, 64.0), max_queue_pairs=1)


def test_flows_are_read_from_a_file(tmp_path):
    path = tmp_path / "flows.csv"
    path.write_text("source,target,bytes\n0,1,10\n2,2,5\n3,0,7\n")
    flows = read_flows(path)
    assert flows.source.tolist() == [0, 3]
    assert flows.size_bytes.tolist() == [10.0, 7.0]
    for text, words in (
        ("source,target\n0,1\n", "no column bytes"),
        ("source,target,bytes\n0,1,-3\n", "line 2: bytes is '-3'"),
        ("source,target,bytes\n0,x,3\n", "line 2: target is 'x'"),
        ("source,target,bytes\n1,1,3\n", "no flow between two hosts"),
    ):
        path.write_text(text)
        with pytest.raises(TraceError, match=words):
            read_flows(path)
    with pytest.raises(TraceError, match="absent"):
        read_flows(tmp_path / "absent.csv")


def test_published_wiring_adds_up():
    """LEONARDO: 18 links between any two cells, one 200 Gbit/s cable each (arXiv:2307.16885)."""
    graph = leonardo()
    cells = graph.group[graph.source], graph.group[graph.target]
    inner = (graph.source >= graph.num_hosts) & (graph.target >= graph.num_hosts)
    between = inner & (cells[0] == 0) & (cells[1] == 1)
    assert between.sum() == 18
    assert (graph.bytes_per_s[between] == 25e9).all()


def test_the_verb_answers_and_refuses(capsys, tmp_path):
    asked = {"topology": "leaf-spine:4x4x4"}
    network_verb(**asked, collective="ring", seeds=1)
    assert "Bound by" in capsys.readouterr().out
    network_verb(**asked, collective="halving-doubling", seeds=1, json=True)
    assert json.loads(capsys.readouterr().out)["choice"]["routing"] == "ethereal"
    path = tmp_path / "flows.csv"
    path.write_text("source,target,bytes\n0,9,1000000\n1,9,1000000\n")
    network_verb(**asked, trace=str(path), seeds=1)
    assert "flows of" in capsys.readouterr().out
    for wrong, words in (
        ({}, "--collective or --trace"),
        ({"collective": "ring", "cluster": "Selene"}, "--topology or --cluster"),
        ({"collective": "star"}, "--collective is 'star'"),
        ({"collective": "ring", "hosts": 99}, "--hosts is 99"),
        ({"collective": "ring", "seeds": 0}, "--seeds is 0"),
        ({"collective": "ring", "nodes": 4}, "--nodes goes with --cluster"),
    ):
        with pytest.raises(ConfigError, match=words):
            network_verb(**asked | wrong)
    with pytest.raises(ConfigError, match="no network shape"):
        parse_shape("star:4", bytes_per_s=1.0)

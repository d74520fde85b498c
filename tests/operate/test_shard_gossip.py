"""Gossip between nodes: all find who dies, who is slow refutes it, who is cut off comes back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.data.shardstore.config import NodeConfig
from steelyard.data.shardstore.swim import NodeRumor, SwimMembership
from steelyard.errors import ConfigError
from steelyard.operate.shards.detector import Detector
from steelyard.operate.shards.gossip_run import GossipNetwork, simulate_gossip


def member(name="a", others=("b", "c", "d", "e")):
    made = SwimMembership(name, period_s=1.0, suspicion=4.0, generator=np.random.default_rng(0))
    made.follow([name, *others])
    return made


def test_every_node_has_its_turn_once_a_round_and_helpers_are_others():
    one = member()
    assert sorted(one.target() for _ in range(4)) == ["b", "c", "d", "e"]
    assert sorted(one.target() for _ in range(4)) == ["b", "c", "d", "e"]
    helpers = one.helpers("b")
    assert len(helpers) == 3 and "b" not in helpers and "a" not in helpers


def test_a_suspect_is_dead_after_its_time_and_never_before():
    one = member()
    one.missed("b", 10.0)
    assert one.state("b") == "suspect"
    one.missed("b", 13.0)  # a second miss does not begin the time anew
    assert one.expire(14.0) == []
    assert one.expire(14.1) == ["b"]
    assert one.not_alive() == (NodeRumor("b", 0, "dead"),)
    assert one.helpers("b") == []


def test_only_the_node_itself_refutes_and_by_a_later_incarnation():
    one, other = member("a"), member("b", ("a", "c", "d", "e"))
    one.missed("b", 0.0)
    one.hear([NodeRumor("b", 0, "alive")], 0.1)  # somebody else's old news
    assert one.state("b") == "suspect"
    other.hear(one.rumors("b"), 0.2)
    assert other.incarnation == 1
    one.hear(other.rumors("a"), 0.3)
    assert one.state("b") == "alive"
    one.hear([NodeRumor("b", 0, "dead")], 0.4)  # of before: late, and overridden
    assert one.state("b") == "alive"


def test_a_new_process_takes_over_from_a_dead_one_of_its_name():
    one, again = member("a"), member("b", ("a", "c", "d", "e"))
    one.hear([NodeRumor("b", 5, "dead")], 0.0)
    again.hear(one.rumors("b"), 1.0)  # even after the news have long been told to all
    assert again.incarnation == 6
    one.hear(again.rumors("a"), 1.1)
    assert one.state("b") == "alive"


def test_news_go_out_a_bounded_number_of_times_and_the_newest_first():
    one = member()
    one.hear([NodeRumor("b", 1, "suspect")], 0.0)
    told = 0
    while NodeRumor("b", 1, "suspect") in one.rumors("c"):
        told += 1
    assert told == 8  # 3 log2(6), rounded up
    assert one.rumors("b") == (NodeRumor("b", 1, "suspect"),)  # the suspect itself always hears


rumors = st.lists(
    st.builds(
        NodeRumor,
        st.sampled_from(["b", "c"]),
        st.integers(0, 3),
        st.sampled_from(["alive", "suspect", "dead"]),
    ),
    max_size=12,
)


@settings(deadline=None)
@given(rumors, st.randoms())
def test_views_agree_in_whatever_order_and_how_often_news_come(found, shuffler):
    one, other = member(), member()
    one.hear(found, 0.0)
    again = found + found[:3]
    shuffler.shuffle(again)
    other.hear(again, 0.0)
    assert one.not_alive() == other.not_alive()


@pytest.mark.parametrize("nodes", [4, 16, 64])
def test_all_nodes_learn_of_a_death_and_nobody_is_wronged(nodes):
    for seed in range(3):
        run = simulate_gossip(nodes, seed=seed)
        assert run.wronged == 0
        # Half a second a period: pinged within some periods, a suspect for 4 log10(n + 1) of them.
        suspect_s = 0.5 * 4 * max(1.0, np.log10(nodes + 1))
        assert run.first_suspected_s < 3.0
        assert suspect_s < run.first_dead_s < suspect_s + 3.5
        assert run.first_dead_s <= run.all_dead_s < suspect_s + 6.0
        assert run.messages_per_node_s < 7


def test_lost_messages_are_made_good_by_helpers_and_refutation():
    run = simulate_gossip(32, seed=1, lost=0.05, after_s=60.0)
    assert np.isfinite(run.all_dead_s) and run.wronged == 0


def test_a_node_that_stood_still_refutes_its_death_when_it_goes_on():
    network = GossipNetwork(6, seed=2)
    network.loop.run(until_s=2.0)
    network.stopped.add("n3")
    network.loop.run(until_s=12.0)
    assert network.views("n3") == {"dead"}
    network.stopped.discard("n3")
    network.loop.run(until_s=30.0)
    assert network.views("n3") == {"alive"}
    assert network.members["n3"].incarnation >= 1


def test_two_sides_of_a_cut_find_each_other_again():
    network = GossipNetwork(6, seed=3)
    network.sides = {name: int(name in ("n0", "n1", "n2")) for name in network.members}
    network.loop.run(until_s=20.0)
    assert {network.members["n0"].state(name) for name in ("n3", "n4", "n5")} == {"dead"}
    assert {network.members["n0"].state(name) for name in ("n1", "n2")} == {"alive"}
    network.sides = {}
    network.loop.run(until_s=60.0)
    assert all(network.views(name) == {"alive"} for name in network.members)


def test_the_controller_believes_most_nodes_at_once_and_a_few_not():
    detector = Detector(ping_s=1.0, suspicion=4.0, generator=np.random.default_rng(0))
    for name in "abcde":
        detector.heard(name, 1, 0.0)
    detector.missed("e", 0.1)
    detector.told("a", ("e",))
    detector.told("b", ("e",))
    assert detector.expired(0.2) == []
    detector.told("c", ("e",))
    assert detector.expired(0.2) == ["e"]
    detector.heard("e", 1, 0.3)  # whom the controller hears is not dead, whatever others say
    assert detector.expired(0.4) == []


def test_bad_networks_are_refused():
    with pytest.raises(ConfigError, match=r"^1 nodes"):
        GossipNetwork(1)
    with pytest.raises(ConfigError, match=r"1\.0 of the messages lost"):
        GossipNetwork(3, lost=1.0)
    with pytest.raises(ConfigError, match="gossip_s is 0"):
        NodeConfig(name="a", address="unix:/tmp/a", folder=None, gossip_s=0.0)

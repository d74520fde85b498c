"""The planner: copies by availability, splits before copies, moves that pay for their bytes."""

import numpy as np
import pytest

from steelyard.data.shardstore.shardmap import even_shards
from steelyard.operate.shards.ablation import ablate
from steelyard.operate.shards.availability import Availability, copies_for
from steelyard.operate.shards.controller import ShardController
from steelyard.operate.shards.planner import Planner
from steelyard.operate.shards.policy import Adaptive
from steelyard.operate.shards.regret import best_fixed_loads, oracle_above_s
from steelyard.operate.shards.simulate import LoadTrace, drifting_load, simulate
from steelyard.operate.shards.views import NodeReport
from steelyard.train.chaos import ChaosFault


@pytest.mark.parametrize(
    ("shares", "target", "copies"),
    [
        ([0.99, 0.99, 0.99], 0.999, 2),
        ([0.99, 0.99], 0.9999, 2),
        ([0.9] * 5, 0.999, 3),
        ([0.5] * 5, 0.9, 4),
        ([0.5, 0.5], 0.999, 2),  # as many as there are
        ([1.0, 0.5], 0.999, 1),
        ([], 0.9, 1),
    ],
)
def test_copies_are_the_fewest_of_which_one_is_up_often_enough(shares, target, copies):
    assert copies_for(shares, target) == copies


def test_availability_is_measured_and_forgets():
    seen = Availability()
    assert seen.share("a") == 0.99
    for _ in range(7200):
        seen.observe({"a": True, "b": False}, 1.0)
    assert seen.share("a") > 0.995
    assert seen.share("b") < 0.36
    assert seen.worst_first(["a", "b", "c"]) == ["b", "c", "a"]
    assert seen.copies(["a"], ["b", "a"], 0.99) == 1
    assert seen.copies(["b"], ["b", "a"], 0.99) == 2
    for _ in range(10):
        seen.observe({"b": True}, 86_400.0)
    assert seen.share("b") > 0.99


def planner_of(policy, names="abcd", replicas=("a", "b"), count=1, keys=64):
    shards = tuple(shard.with_(replicas=replicas) for shard in even_shards(count, keys=keys))
    controller = ShardController(shards, policy, generator=np.random.default_rng(0))
    for name in names:
        controller.add(name, name)
        controller.heard(name, NodeReport(1, 0.0, 0), 0.0)
    return controller, Planner(controller)


def test_shards_of_nodes_that_are_often_down_get_another_copy():
    policy = Adaptive(window_s=600.0, temporal=False, balance=False, availability=0.9999)
    controller, planner = planner_of(policy, count=8)
    even = {shard.id: 1.0 for shard in controller.map.shards}
    planner.plan(0.0, even, even, {})
    assert controller.wished(controller.map.shards[0]) == 2
    for window in range(24):  # four hours, half of which "b" is down
        if window % 2:
            controller.missed("b", 0.0)
        else:
            controller.heard("b", NodeReport(1, 0.0, 0), 0.0)
        planner.plan(600.0 * window, even, even, {})
    assert planner.availability.share("b") < 0.7
    assert controller.wished(controller.map.shards[0]) == 3


def test_a_heavy_shard_is_cut_down_to_its_one_popular_key_before_it_is_copied():
    policy = Adaptive(temporal=False)
    controller, planner = planner_of(policy, keys=64)
    for window in range(12):
        # Nearly all reads are of key 21.
        counts = {
            shard.id: 100.0 if shard.first <= 21 <= shard.last else 1.0
            for shard in controller.map.shards
        }
        sizes = {s.id: float(min(s.last, 63) - s.first + 1) for s in controller.map.shards}
        middles = {s.id: 21 for s in controller.map.shards if s.first <= 21 <= s.last}
        planner.plan(float(window), counts, sizes, middles)
        controller.map.check()
    assert any((shard.first, shard.last) == (21, 21) for shard in controller.map.shards)


def test_a_drifting_load_is_kept_even_with_few_bytes():
    nodes, grains, windows = 16, 512, 120
    rates = drifting_load(
        np.random.default_rng(0),
        windows=windows, grains=grains, total_rate=16e3, drift=0.001,
    )  # fmt: skip
    base = Adaptive(ping_s=1.0, lease_s=4.0, temporal=False, replicate=False, balance=False)
    moving = Adaptive(ping_s=1.0, lease_s=4.0, temporal=False)
    trace = LoadTrace(rates=rates, grain_bytes=1e5)
    still, ours = (simulate(trace, nodes=nodes, policy=policy) for policy in (base, moving))
    assert ours.imbalance[20:].mean() - 1 < 0.5 * (still.imbalance[20:].mean() - 1)
    assert 0 < ours.moved_bytes < 0.1 * 2 * grains * trace.grain_bytes


def test_a_node_that_joins_gets_its_part():
    draw = np.random.default_rng(0).uniform(0.9, 1.1, (120, 256))
    joins = [ChaosFault(10.0, "new", "restart")]
    trace = LoadTrace(rates=10.0 * draw, grain_bytes=1e5, faults=joins)
    policy = Adaptive(ping_s=1.0, lease_s=4.0, temporal=False)
    found = simulate(trace, nodes=8, policy=policy)
    last = found.loads[-1]
    assert last[-1] > 0.4 * last.mean()
    assert found.moved_bytes < 1.15 * 2 * 256 * 1e5 / 9


def test_a_simulated_cold_shard_is_coded_once():
    rates = np.zeros((60, 64))
    rates[:, :8] = 100.0
    policy = Adaptive(
        ping_s=1.0, lease_s=4.0, cold_after_s=10.0, replicate=False, balance=False, hot_replicas=2
    )
    trace = LoadTrace(rates=rates, grain_bytes=1e5, faults=[ChaosFault(50.0, "n1", "kill")])
    found = simulate(trace, nodes=8, policy=policy, shards=16)
    # 14 shards of 4 grains are coded into 1.5 of their bytes; a dead node's blocks, at most one of
    # each, are made again of as many bytes as the shard has.
    assert found.moved_bytes <= (1.5 + 1) * 14 * 4e5 + 2 * 4e5
    assert found.disk_bytes > 0


def test_regret_is_over_an_oracle_and_the_best_fixed_placement():
    rates = drifting_load(
        np.random.default_rng(4), windows=40, grains=64, total_rate=8e3, drift=0.02
    )
    faults = (ChaosFault(20.0, "n1", "kill"),)
    trace = LoadTrace(rates=rates, faults=faults)
    fixed = best_fixed_loads(trace, nodes=8, replicas=2)
    assert np.allclose(fixed.sum(axis=1), rates.sum(axis=1))  # nothing asked goes unanswered
    assert (fixed[:20, 1] > 0).all() and (fixed[20:, 1] == 0).all()
    one = best_fixed_loads(trace, nodes=1, replicas=2)
    assert np.allclose(one[:, 0], rates.sum(axis=1))
    even = np.full((3, 4), 10.0)
    assert oracle_above_s(LoadTrace(rates=even), nodes=4, copies=2, limit=11.0) == 0
    assert oracle_above_s(LoadTrace(rates=even), nodes=4, copies=2, limit=9.0) == 12
    even[1, 0] = 24.0  # on two nodes it is too much for both, wherever the rest lies
    assert oracle_above_s(LoadTrace(rates=even), nodes=16, copies=2, limit=11.0) == 2
    rows = ablate(trace, nodes=8)
    assert all(row["over oracle, s"] >= 0 for row in rows.values())
    gaps = {row["over oracle, s"] - row["over best fixed, s"] for row in rows.values()}
    assert len({round(gap, 6) for gap in gaps}) == 1  # one oracle, one best fixed choice


def test_fewer_nodes_than_copies_are_served_and_said():
    policy = Adaptive(replicas=3, ping_s=1.0, lease_s=4.0)
    (shard,) = even_shards(1)
    controller = ShardController(
        (shard.with_(replicas=("a", "b")),), policy, generator=np.random.default_rng(0)
    )
    for name in "ab":
        controller.add(name, name)
        controller.heard(name, NodeReport(1, 0.0, 0), 0.0)
    assert controller.is_whole()  # as many as there can be
    assert controller.targets.why_degraded() == "3 copies are wished for and 2 of 2 nodes live"
    controller.add("c", "c")
    controller.heard("c", NodeReport(1, 0.0, 0), 0.0)
    assert controller.targets.why_degraded() == ""
    assert not controller.is_whole()  # now there is room for the third

"""Random faults under a virtual clock: one writer an epoch, nothing acknowledged is lost."""

import numpy as np
import pytest
from benchmarks.operate._fault_sequences import POLICY, World

from steelyard.data.shardstore.shardmap import even_shards
from steelyard.operate.shards.controller import ShardController
from steelyard.operate.shards.views import NodeReport


@pytest.mark.parametrize("start", [0, 10])
def test_sequences_of_faults_keep_what_was_acknowledged(start):
    counts = {}
    for seed in range(start, start + 10):
        world = World(seed).run()
        assert world.violations == []
        for name, count in world.counts.items():
            counts[name] = counts.get(name, 0) + count
    # The sequences hold real work: most of it is done, some of it is refused.
    assert counts["acknowledged"] > 0.3 * counts["writes"]
    assert counts["read"] > 0.4 * counts["reads"]
    assert counts["frozen"] > 0


@pytest.mark.parametrize(
    "seed",
    [
        100_968,  # the last replica dies while a whole node waits to learn that it serves no more
        105_177,  # a message of before tells a node to prune when it has just made a block again
    ],
)
def test_sequences_that_once_lost_rows_keep_them(seed):
    assert World(seed).run().violations == []


def controller_of(**shard):
    made = even_shards(1)[0].with_(**shard)
    controller = ShardController((made,), POLICY, generator=np.random.default_rng(0))
    for name in ("a", "b", "c", "d"):
        controller.add(name, name)
        controller.heard(name, NodeReport(1, 0.0, 0), 0.0)
    return controller


def tell_maps(controller, *names, boot=1, fragments=frozenset()):
    for name in names:
        report = NodeReport(boot, 0.0, controller.map.version, fragments=fragments)
        controller.heard(name, report, 0.0)


def test_a_node_that_gives_up_its_copy_serves_again_when_it_is_the_last_with_rows():
    controller = controller_of(replicas=("a", "b"))
    controller.retire(controller.map.shards[0], "b", 0.0)
    assert (controller.map.shards[0].replicas, controller.map.shards[0].learners) == (
        ("a",),
        ("b",),
    )
    epoch = controller.map.shards[0].epoch
    controller.heard("a", NodeReport(2, 0.0, 0), 0.0)  # a new process, which has no rows
    shard = controller.map.shards[0]
    assert (shard.replicas, shard.learners) == (("b",), ())
    assert shard.epoch > epoch
    assert not controller.tasks


def test_a_node_that_has_learned_that_it_serves_no_more_is_not_named_again():
    controller = controller_of(replicas=("a", "b"))
    controller.retire(controller.map.shards[0], "b", 0.0)
    tell_maps(controller, "a", "b")
    controller.tick(0.0)
    controller.heard("a", NodeReport(2, 0.0, 0), 0.0)
    assert controller.map.shards[0].replicas == ()


def test_a_block_is_made_again_by_a_node_that_knows_of_it():
    controller = controller_of(code=(2, 1), fragments=("a", "b", "c"))
    kept = {(0, 1, number) for number in (0, 1)}  # the block of "c" is damaged and gone
    tell_maps(controller, "a", "b", "c", "d", fragments=frozenset(kept))
    assert controller.tick(0.0) == []
    assert controller.map.shards[0].learners == ("c",)
    tell_maps(controller, "a", "b", "c", "d", fragments=frozenset(kept))
    (command,) = controller.tick(0.0)
    assert (command.kind, command.target, command.number) == ("rebuild", "c", 2)
    controller.finished(command.task, ok=True)
    assert controller.map.shards[0].learners == ()
    tell_maps(controller, "a", "b", "c", "d", fragments=frozenset(kept | {(0, 1, 2)}))
    assert controller.tick(0.0) == []
    assert controller.is_whole() and not controller.tasks

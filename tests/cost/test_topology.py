"""Nested levels of links, and collectives on them."""

import numpy as np
import pytest

from steelyard import catalog
from steelyard.catalog.hardware import Level
from steelyard.cost.collectives import (
    ALL_REDUCES,
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    best_all_reduce,
    group_bandwidth,
    level_bytes,
)
from steelyard.cost.topology import Topology
from steelyard.errors import ConfigError


@pytest.fixture(scope="module")
def frontier() -> Topology:
    return Topology.of(catalog.cluster("Frontier"), catalog.accelerator("MI250X-GCD"))


@pytest.fixture(scope="module")
def flat() -> Topology:
    node = Level(name="node", members=8, bytes_per_s=1e9, latency_s=1e-3)
    return Topology((node, Level(name="network", members=4, bytes_per_s=4e9)), 1.0, 2e9)


def test_groups_meet_level_by_level(frontier):
    group = frontier.group([2, 8, 64, 64], [1, 1, 1, 8])
    assert group.parts.T.tolist() == [[2, 1, 1], [2, 4, 1], [2, 4, 8], [1, 1, 64]]
    # Eight groups of stride 8 leave each node side by side through 100 GB/s.
    assert group.slowest_bytes_per_s.tolist() == [200e9, 100e9, 100e9, 12.5e9]
    assert frontier.span([2, 8, 64, 2], [1, 1, 1, 8]).tolist() == [0, 1, 2, 2]


def test_a_group_of_one_sends_nothing(flat):
    assert group_bandwidth(flat, 1) == np.inf
    for algorithm in ALL_REDUCES:
        assert all_reduce_s(flat, 1e9, 1, algorithm=algorithm) == 0


def test_closed_forms_on_one_level(flat):
    assert all_gather_s(flat, 8e9, 8, algorithm="ring") == pytest.approx(7 + 7e-3)
    assert all_gather_s(flat, 8e9, 8, algorithm="halving-doubling") == pytest.approx(7 + 3e-3)
    assert all_reduce_s(flat, 8e9, 8, algorithm="ring") == pytest.approx(14 + 14e-3)
    assert all_reduce_s(flat, 8e9, 8, algorithm="double-tree") == pytest.approx(16 + 6e-3)
    assert all_reduce_s(flat, 8e9, 8, algorithm="tree") == pytest.approx(32 + 6e-3)
    assert all_reduce_s(flat, 8e9, 8, algorithm="host-staged") == pytest.approx(4.0)
    assert all_to_all_s(flat, 8e9, 8) == pytest.approx(7 + 1e-3)


def test_the_best_is_never_slower_and_small_sums_avoid_rings(frontier):
    sizes = np.logspace(2, 10, 9)
    best = all_reduce_s(frontier, sizes, 512)
    for algorithm in ALL_REDUCES[:-1]:
        assert (best <= all_reduce_s(frontier, sizes, 512, algorithm=algorithm) * (1 + 1e-12)).all()
    assert best_all_reduce(frontier, 100.0, 512) != "ring"


def test_bytes_of_a_gather_add_up_to_what_each_member_sends(frontier):
    group = frontier.group([8, 64, 384], [1, 1, 1])
    assert level_bytes(group, 1.0).sum(axis=0) == pytest.approx((group.members - 1) / group.members)
    exchange = level_bytes(group, 1.0, kind="exchange").sum(axis=0)
    assert exchange == pytest.approx((group.members - 1) / group.members)


def test_impossible_links_are_refused(flat):
    with pytest.raises(ConfigError, match="no levels"):
        Topology(())
    with pytest.raises(ConfigError, match="not one of"):
        all_reduce_s(flat, 1.0, 8, algorithm="butterfly")  # pyright: ignore[reportArgumentType]
    without = Topology(flat.levels)
    with pytest.raises(ConfigError, match="host memory"):
        all_reduce_s(without, 1.0, 8, algorithm="host-staged")

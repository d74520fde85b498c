"""Membership and faults, without processes and torch."""

import numpy as np
import pytest

from steelyard.errors import ConfigError, DataError, StoreError
from steelyard.train.chaos import draw_faults, flip_bit, strike, truncate
from steelyard.train.group import LeaseTable, MemberGroup


def test_joining_and_eviction_begin_epochs():
    group = MemberGroup(lease_s=2.0)
    assert group.beat("a", 1, 0.0)
    assert group.beat("b", 7, 0.5)
    assert not group.beat("a", 1, 1.0)
    assert group.epoch == 2
    assert group.beat("a", 2, 1.5)  # another process of the same name
    assert group.silent(3.0) == ["b"]
    assert group.evict("b", 3.0) == 4
    assert group.lease_end_s("b") == float("-inf")
    with pytest.raises(StoreError, match="lease ends"):
        group.evict("a", 3.0)
    group.beat("a", 2, 1.0)  # heard out of order: a lease is never shortened
    assert group.lease_end_s("a") == 3.5
    with pytest.raises(ConfigError, match="lease_s"):
        MemberGroup(lease_s=0)


def test_a_lease_has_one_holder():
    table = LeaseTable()
    first = table.acquire("planner", "a", 0.0, 2.0)
    assert table.acquire("planner", "b", 1.0, 2.0) is None
    assert table.acquire("planner", "a", 1.0, 2.0).epoch == first.epoch
    second = table.acquire("planner", "b", 3.5, 2.0)
    assert second.epoch == first.epoch + 1
    table.release(first)  # of an earlier epoch
    assert table.acquire("planner", "a", 4.0, 1.0) is None
    table.release(second)
    assert table.acquire("planner", "a", 4.0, 1.0).epoch == 3
    late = table.acquire("planner", "a", 9.0, 1.0)
    assert late.epoch == 4  # another might have held it in between


def test_faults_repeat_and_end():
    def draw(seed):
        return draw_faults(
            ["a", "b", "c"], np.random.default_rng(seed), horizon_s=100, every_s=5, mean_s=4
        )

    found = draw(0)
    assert found == draw(0) != draw(1)
    assert len(found) > 10
    for name in "abc":
        kinds = [fault.kind for fault in found if fault.target == name]
        assert all(kind in ("kill", "stop", "cut") for kind in kinds[::2])
        pairs = set(zip(kinds[::2], kinds[1::2], strict=True))
        assert pairs <= {("kill", "restart"), ("stop", "resume"), ("cut", "heal")}
    with pytest.raises(ConfigError, match="faults"):
        draw_faults([], np.random.default_rng(0), horizon_s=1, every_s=1, mean_s=1)


def test_files_are_damaged(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    place = flip_bit(path, np.random.default_rng(0), start=90)
    content = path.read_bytes()
    assert place >= 90
    assert bin(content[place]).count("1") == 1
    assert sum(content) == content[place]
    truncate(path, 0.25)
    assert path.stat().st_size == 25
    with pytest.raises(DataError, match="none from"):
        flip_bit(path, np.random.default_rng(0), start=25)
    with pytest.raises(ConfigError, match="process"):
        strike("heal", 1)

"""Rows, parity, hashes, logs and rights of one node, without processes."""

import numpy as np
import pytest

from steelyard.data.shardstore.custody import Custody
from steelyard.data.shardstore.digests import bucket_of, differing, digest_tree
from steelyard.data.shardstore.fragments import FragmentStore
from steelyard.data.shardstore.log import WriteLog
from steelyard.data.shardstore.messages import FragmentBytes
from steelyard.data.shardstore.rows import MAX_KEY, Rows, rows_from_bytes
from steelyard.data.shardstore.shardmap import Shard, ShardMap, even_shards
from steelyard.data.shardstore.table import FAN_OUT, RowTable
from steelyard.errors import CapacityError, ConfigError, DataError
from steelyard.train.chaos import flip_bit, truncate

WIDTH = 20


def rows_of(keys, version=1, seed=0):
    keys = np.asarray(keys, np.uint64)
    generator = np.random.default_rng(seed)
    values = generator.integers(0, 256, (len(keys), WIDTH)).astype(np.uint8)
    versions = np.full(len(keys), version, np.uint64)
    return Rows(keys, versions, np.full(len(keys), WIDTH, np.int32), values)


@pytest.fixture
def table():
    made = RowTable(WIDTH, capacity=16, block_rows=2)
    made.put(rows_of(range(100)))
    return made


def test_a_table_is_a_dictionary_of_newest_rows(table):
    table.put(rows_of(range(50, 60), version=3, seed=1))
    assert len(table.put(rows_of(range(55, 65), version=2, seed=2))) == 5
    found, lost = table.get(np.array([5, 55, 62, 777], np.uint64))
    assert not lost
    assert found.lengths.tolist() == [WIDTH, WIDTH, WIDTH, -1]
    assert np.array_equal(found.values[0], rows_of(range(100)).values[5])
    assert np.array_equal(found.values[1], rows_of(range(50, 60), seed=1).values[5])
    assert np.array_equal(found.values[2], rows_of(range(55, 65), seed=2).values[7])
    assert table.drop(0, 49) == 50
    assert len(table) == 50
    assert table.keys[table.select(0, 60)].tolist() == list(range(50, 61))
    table.put(rows_of(range(200, 250)))
    assert table.scrub(0, 10**6) == (0, [])


def test_a_flipped_bit_is_repaired_from_the_smallest_scale(table):
    generator = np.random.default_rng(0)
    for _ in range(50):
        before = table._table.copy()
        row = int(generator.integers(len(table._table) - 2))  # the top has no parity above it
        table._table[row, generator.integers(3)] ^= np.uint64(1 << int(generator.integers(64)))
        slot = (
            table._slots.get(int(table.keys[row]))
            if row < len(table.keys) and table.lengths[row] >= 0
            else None
        )
        if slot is not None:
            found, lost = table.get(table.keys[row : row + 1])
            assert not lost
            assert np.array_equal(found.values[0], before[row].view(np.uint8)[:WIDTH])
            assert table.blocks_read <= FAN_OUT
        table.scrub(0, 10**6)
        assert np.array_equal(table._table, before)
    assert table.num_repairs >= 50


def test_damage_of_row_and_parity_is_repaired_a_level_higher(table):
    before = table._table.copy()
    parity = table._path(8)[0][1]
    for row in (8, parity):
        table._table[row, 0] ^= np.uint64(1)
    _, lost = table.get(table.keys[8:9])
    assert not lost
    assert np.array_equal(table._table, before)
    assert table.blocks_read > FAN_OUT


def test_two_damaged_siblings_are_reported_and_restored(table):
    siblings = table._children(1, table._path(8)[0][1])[:2]
    truth = table.take(siblings)[0]
    for row in siblings:
        table._table[row, 1] ^= np.uint64(2)
    _, lost = table.take(siblings)
    assert lost == [0, 1]
    table.restore(truth)
    again, lost = table.take(siblings)
    assert not lost
    assert np.array_equal(again.values, truth.values)
    assert table.scrub(0, 10**6) == (0, [])


def test_writing_over_damage_leaves_no_damage_in_parity(table):
    table._table[table._slots[3], 0] ^= np.uint64(4)
    table._table[table._path(table._slots[7])[0][1], 0] ^= np.uint64(4)
    table.put(rows_of([3, 7, 3], version=9, seed=5))
    assert table.scrub(0, 10**6) == (0, [])
    slot = table._slots[11]
    before = table._table[slot].copy()
    table._table[slot, 0] ^= np.uint64(1)
    assert table.repair(slot)
    assert np.array_equal(before, table._table[slot])


def test_hashes_find_what_differs_in_any_order():
    generator = np.random.default_rng(0)
    keys = generator.permutation(5000).astype(np.uint64)
    versions = np.ones(5000, np.uint64)
    mine = digest_tree(keys, versions)
    assert all(
        np.array_equal(a, b)
        for a, b in zip(mine, digest_tree(keys[::-1].copy(), versions), strict=True)
    )
    versions[[7, 99]] = 2
    theirs = digest_tree(keys, versions)
    nodes, level = np.zeros(1, np.int64), 0
    for step in (3, 2, 0):
        nodes = differing(mine[level], theirs[level][nodes], nodes, step)
        level += step
    assert nodes.tolist() == sorted(set(bucket_of(keys[[7, 99]]).tolist()))


def test_a_log_reads_back_what_was_acknowledged(tmp_path):
    log = WriteLog(tmp_path)
    for version in (1, 2, 3):
        log.append(rows_of(range(10), version))
    path = tmp_path / "log.bin"
    truncate(path, 0.9)  # a torn end
    again = WriteLog(tmp_path)
    assert [int(rows.versions[0]) for rows in again.read()] == [1, 2]
    again.append(rows_of([1], 7))
    assert [int(rows.versions[0]) for rows in WriteLog(tmp_path).read()] == [1, 2, 7]
    again.fold(rows_of(range(20), 9))
    again.append(rows_of([1], 11))
    assert [int(rows.versions[0]) for rows in WriteLog(tmp_path).read()] == [9, 11]
    flip_bit(path, np.random.default_rng(0), start=20)
    with pytest.raises(DataError, match="damaged"):
        list(WriteLog(tmp_path).read())


def test_a_full_disk_keeps_what_was_there(tmp_path):
    log = WriteLog(tmp_path, limit_bytes=2000)
    with pytest.raises(CapacityError, match="no room"):
        for version in range(100):
            log.append(rows_of(range(10), version))
    assert log.is_full
    kept = [int(rows.versions[0]) for rows in WriteLog(tmp_path).read()]
    assert kept == list(range(len(kept)))
    assert 3 <= len(kept) < 100


def test_damaged_fragments_count_as_none(tmp_path):
    store = FragmentStore(tmp_path)
    store.keep(3, 1, 0, FragmentBytes(content=b"abc", size=10))
    assert store.read(3, 1, 0) == FragmentBytes(content=b"abc", size=10)
    assert store.held() == [(3, 1, 0)]
    store.keep(3, 2, 1, FragmentBytes(content=b"abc", size=10))
    store.drop(3, 2, 1)  # another block of the shard stays
    assert store.held() == [(3, 1, 0)]
    flip_bit(tmp_path / "3-1-0.block", np.random.default_rng(0))
    assert store.read(3, 1, 0) is None
    assert store.held() == []


def test_rows_travel_as_bytes():
    rows = rows_of(range(7))
    again = rows_from_bytes(rows.to_bytes())
    assert np.array_equal(again.values, rows.values)
    for bad in (b"", rows.to_bytes()[:-1]):
        with pytest.raises(DataError, match="bytes are no"):
            rows_from_bytes(bad)


def test_maps_have_no_gaps():
    shards = even_shards(3)
    made = ShardMap(version=1, shards=shards, addresses={})
    made.check()
    assert made.route(np.array([0, MAX_KEY], np.uint64)).tolist() == [0, 2]
    with pytest.raises(ConfigError, match="begins at"):
        ShardMap(version=1, shards=shards[1:], addresses={}).check()
    with pytest.raises(ConfigError, match="share a number"):
        ShardMap(version=1, shards=shards[:2], addresses={}).check()
    with pytest.raises(ConfigError, match="shards of"):
        even_shards(0)


def make_map(version, epoch, replicas, learners=()):
    whole = even_shards(1)[0]
    shard = whole.with_(epoch=epoch, replicas=replicas, learners=learners)
    return ShardMap(version=version, shards=(shard,), addresses={"a": "", "b": "", "c": ""})


def test_rights_follow_map_and_lease():
    keys = np.array([1, 2], np.uint64)
    first, second = Custody("a"), Custody("b")
    assert first.refuse_read(keys, 0.0) == "lease"
    for custody in (first, second):
        custody.install(make_map(1, 1, ("a", "b")))
        custody.extend(0.0, 1.0)
    assert (first.refuse_write(keys, 0.5), second.refuse_write(keys, 0.5)) == ("", "moved")
    assert (first.refuse_read(keys, 1.0), second.refuse_read(keys, 0.5)) == ("lease", "")
    versions = first.versions_for(keys)
    assert second.refuse_copy(keys, versions) == ""
    assert list(first.copies_of(keys)) == ["b"]
    second.install(make_map(2, 2, ("b",), ("c",)))
    assert second.refuse_copy(keys, versions) == "epoch"
    assert (second.versions_for(keys) > versions).all()
    assert list(second.copies_of(keys)) == ["c"]
    assert not second.install(make_map(1, 1, ("a", "b")))
    first.install(make_map(2, 2, ("b",), ("c",)))
    assert first.refuse_copy(keys, second.versions_for(keys)) == "moved"
    frozen = Shard(id=0, first=0, last=MAX_KEY, replicas=("a",), sealed=True)
    first.install(ShardMap(version=3, shards=(frozen,), addresses={}))
    first.extend(5.0, 1.0)
    assert first.refuse_write(keys, 5.5) == "sealed"
    assert first.refuse_read(keys, 5.5) == ""


def test_a_node_keeps_the_blocks_that_its_map_gives_it_now_or_soon():
    shard = even_shards(1)[0].with_(epoch=4, code=(2, 1), fragments=("a", "b", "c"))
    custody = Custody("b")
    assert not custody.keeps_block(0, 4, 1)
    custody.install(ShardMap(version=1, shards=(shard,), addresses={}))
    assert custody.keeps_block(0, 4, 1)
    assert not custody.keeps_block(0, 4, 0)
    assert not custody.keeps_block(0, 3, 1)  # of rows before the shard was warm again
    assert not custody.keeps_block(7, 4, 1)
    custody.install(ShardMap(version=2, shards=(shard.with_(learners=("b",)),), addresses={}))
    assert custody.keeps_block(0, 4, 0)

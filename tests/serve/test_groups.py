import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import CapacityError, ConfigError
from steelyard.serve import BlockTable, PrefixIndex
from steelyard.serve.kv.groups import GroupPool
from steelyard.serve.kv.runs import FreeRuns


def num_runs(table):
    return 1 + int((np.diff(table.blocks) != 1).sum()) if table.num_blocks else 0


def grown(pool, num_tokens):
    table = BlockTable()
    table.grow(pool, num_tokens)
    return table


@given(st.lists(st.tuples(st.integers(0, 39), st.integers(1, 12)), max_size=60))
def test_free_runs_are_maximal_and_lose_nothing(moves):
    runs, taken = FreeRuns(40), set()
    for start, size in moves:
        if start in taken:
            taken.remove(start)
            runs.give(start, 1)
        else:
            count = runs.take(start, size)
            taken |= set(range(start, start + count))
        free = {
            block for begin, length in runs.sizes.items() for block in range(begin, begin + length)
        }
        assert free == set(range(40)) - taken
        assert runs.num_blocks == len(free)
        assert not any(begin + length in runs.sizes for begin, length in runs.sizes.items())


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 48), st.integers(0, 20), st.booleans())
def test_every_block_has_one_place(seed, num_blocks, group_blocks, caching):
    generator = np.random.default_rng(seed)
    prefix = PrefixIndex() if caching else None
    pool = GroupPool(num_blocks, 4, prefix, group_blocks=min(group_blocks, num_blocks))
    tables, sizes = [], []
    for step in range(80):
        choice = generator.integers(5)
        if choice == 0 or not tables:
            tables.append(BlockTable())
            sizes.append(0)
        row = int(generator.integers(len(tables)))
        if choice <= 2:
            sizes[row] += int(generator.integers(1, 12))
            if tables[row].missing(sizes[row], 4) <= pool.num_available:
                tables[row].grow(pool, sizes[row])
            else:
                with pytest.raises(CapacityError):
                    tables[row].grow(pool, sizes[row])
                sizes[row] = tables[row].num_blocks * 4
        elif choice == 3 and tables[row].num_blocks:
            if prefix is not None:
                prefix.insert(bytes([step]), int(tables[row].blocks[0]))
            tables[row].free(pool)
            sizes[row] = 0
        elif choice == 4:
            tables.append(tables[row].fork(pool, tables[row].num_blocks))
            sizes.append(sizes[row])
            last = tables[-1].num_blocks * 4 - 1
            if last > 0 and pool.num_available:
                tables[-1].make_writable(pool, last)
        held = [block for table in tables for block in table.blocks.tolist()]
        assert pool.num_in_use == len(set(held)) == num_blocks - pool.num_available
        assert all(pool.users(block) == held.count(block) for block in range(num_blocks))
    for table in tables:
        table.free(pool)
    assert pool.num_available == num_blocks
    if prefix is None:
        assert pool._runs.sizes == {0: num_blocks}


def test_a_table_stays_in_its_run_while_others_grow_beside_it():
    pool = GroupPool(64, 4, group_blocks=16)
    tables = [grown(pool, 4) for _ in range(4)]
    for num_tokens in range(5, 65):
        for table in tables:
            table.grow(pool, num_tokens)
    assert [num_runs(table) for table in tables] == [1, 1, 1, 1]
    assert pool.num_available == 0


def test_what_is_ahead_of_one_table_serves_another_when_free_runs_are_short():
    pool = GroupPool(16, 4, group_blocks=16)
    first = grown(pool, 4)
    assert pool.num_available == 15
    second = grown(pool, 4)
    assert second.blocks.tolist() == [9]
    third = grown(pool, 14 * 4)
    assert pool.num_available == 0
    assert sorted([*first.blocks, *second.blocks, *third.blocks]) == list(range(16))
    third.free(pool)
    first.grow(pool, 32)
    assert first.blocks.tolist() == list(range(8))


def test_a_longer_request_gets_one_run_even_if_it_is_longer_than_a_group():
    pool = GroupPool(64, 4, group_blocks=4)
    assert num_runs(grown(pool, 80)) == 1


def test_idle_blocks_of_the_prefix_index_are_taken_last():
    prefix = PrefixIndex()
    pool = GroupPool(4, 4, prefix)
    table = grown(pool, 8)
    prefix.insert(b"x", int(table.blocks[0]))
    table.free(pool)
    assert pool.num_available == 4
    assert prefix.num_idle == 1
    blocks = pool.take(3)
    assert prefix.num_idle == 1
    assert sorted([*blocks, *pool.take(1)]) == [0, 1, 2, 3]
    with pytest.raises(CapacityError, match="0 available"):
        pool.take(1)


def test_a_group_never_exceeds_the_pool_and_its_size_is_derived():
    with pytest.raises(ConfigError, match="group_blocks is 100"):
        GroupPool(8, 4, group_blocks=100)
    assert GroupPool(4096, 16).group_blocks == 64
    assert GroupPool(160, 16).group_blocks == 10
    with pytest.raises(ConfigError, match="num_blocks is 0"):
        GroupPool(0, 4)

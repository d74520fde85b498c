import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from steelyard.errors import CapacityError, ConfigError
from steelyard.serve import BlockPool, BlockTable, PrefixIndex

SIZE, BLOCKS = 4, 12


class PoolMachine(RuleBasedStateMachine):
    """Grows, forks, writes to and frees tables, and counts users the slow way."""

    def __init__(self):
        super().__init__()
        self.prefix = PrefixIndex()
        self.pool = BlockPool(BLOCKS, SIZE, self.prefix)
        self.tables: list[tuple[BlockTable, int]] = []
        self.names = 0

    @rule(tokens=st.integers(1, 20))
    def make(self, tokens):
        self.tables.append((BlockTable(), 0))
        self.grow(tokens, len(self.tables) - 1)

    def grow(self, tokens, index):
        table, have = self.tables[index]
        before = table.num_blocks, self.pool.num_available
        try:
            table.grow(self.pool, have + tokens)
            self.tables[index] = (table, have + tokens)
        except CapacityError:
            assert (table.num_blocks, self.pool.num_available) == before

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), tokens=st.integers(1, 9))
    def append(self, data, tokens):
        self.grow(tokens, data.draw(st.integers(0, len(self.tables) - 1)))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def fork(self, data):
        table, tokens = data.draw(st.sampled_from(self.tables))
        self.tables.append((table.fork(self.pool, table.num_blocks), tokens))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def write(self, data):
        table, tokens = data.draw(st.sampled_from(self.tables))
        if tokens:
            position = data.draw(st.integers(0, tokens - 1))
            try:
                copy = table.make_writable(self.pool, position)
            except CapacityError:
                return
            own = int(table.blocks[position // SIZE])
            assert self.pool.users(own) == 1
            assert copy is None or (copy[1] == own and copy[0] != own)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def remember(self, data):
        table, _ = data.draw(st.sampled_from(self.tables))
        if table.num_blocks:
            self.names += 1
            self.prefix.insert(str(self.names).encode(), int(table.blocks[0]))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free(self, data):
        table, _ = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        table.free(self.pool)

    @rule(count=st.integers(1, 3), data=st.data())
    def revive(self, count, data):
        known = [block for block in range(BLOCKS) if self.prefix.is_idle(block)][:count]
        if known:
            table = BlockTable()
            for block in known:
                self.pool.retain(block)
                table.extend([block])
            self.tables.append((table, len(known) * SIZE))

    @invariant()
    def users_match_tables(self):
        held = np.zeros(BLOCKS, dtype=int)
        for table, _ in self.tables:
            for block in table.blocks:
                held[block] += 1
        assert [self.pool.users(block) for block in range(BLOCKS)] == held.tolist()
        assert self.pool.num_in_use == int((held > 0).sum())
        assert all(held[block] == 0 for block in range(BLOCKS) if self.prefix.is_idle(block))


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_free_blocks_come_back_last_in_first_out():
    pool = BlockPool(4, SIZE)
    blocks = pool.take(3)
    pool.release(blocks[1])
    pool.release(blocks[0])
    assert pool.take(2) == [blocks[0], blocks[1]]


def test_idle_blocks_are_evicted_least_recently_used_first():
    prefix = PrefixIndex()
    pool = BlockPool(3, SIZE, prefix)
    blocks = pool.take(3)
    for block in blocks:
        prefix.insert(bytes([block]), block)
    for block in (blocks[2], blocks[0], blocks[1]):
        pool.release(block)
    assert pool.take(1) == [blocks[2]]
    assert prefix.match([bytes([blocks[2]])]) == []
    assert prefix.match([bytes([blocks[0]])]) == [blocks[0]]


@pytest.mark.parametrize(("blocks", "size"), [(0, 4), (4, 3), (4, 0)])
def test_bad_sizes_are_refused(blocks, size):
    with pytest.raises(ConfigError, match="must be"):
        BlockPool(blocks, size)

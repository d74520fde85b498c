"""A pool that hands out blocks in runs, so that what a sequence holds moves in few copies."""

from steelyard.errors import ConfigError
from steelyard.serve.kv.blocks import BlockPool
from steelyard.serve.kv.prefix import PrefixIndex
from steelyard.serve.kv.runs import FreeRuns, SizeClasses

__all__ = ["GroupPool"]


class GroupPool(BlockPool):
    """Dynamic block groups: a table takes a run of blocks ahead and grows into it.

    A run comes from free blocks if one is long enough, then from the unused end of another table's
    run, then from shorter ones. Blocks taken ahead count as available: any table gets them when
    free runs are short, so no more than a table's last block is ever partly wasted. Freed blocks
    merge with free neighbours. Taking and releasing a block costs O(log num_blocks).

    Attributes:
        group_blocks: blocks taken ahead at once.

    Source: Shen et al. 2024 (arXiv 2411.18424), dynamic block group manager.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        prefix: PrefixIndex | None = None,
        *,
        group_blocks: int = 0,
    ) -> None:
        """Make a pool with every block free.

        Args:
            num_blocks: blocks in the pool, at least 1.
            block_size: token slots per block, a power of two.
            prefix: index of reusable blocks, or None to reuse none.
            group_blocks: blocks taken ahead at once; 0 for a sixteenth of the pool, at most 64
                (1024 tokens in blocks of 16).

        Raises:
            ConfigError: a size is out of range.
        """
        super().__init__(num_blocks, block_size, prefix)
        if not 0 <= group_blocks <= num_blocks:
            message = (
                f"group_blocks is {group_blocks}, but must be in [0, num_blocks = {num_blocks}]"
            )
            raise ConfigError(message, hint="leave it at 0 to have it derived")
        self.group_blocks = group_blocks or max(1, min(64, num_blocks // 16))
        self._free.clear()
        self._runs = FreeRuns(num_blocks)
        self._ahead = SizeClasses()

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out: free, taken ahead, or idle in the prefix index."""
        return self._runs.num_blocks + self._ahead.num_blocks + self.prefix.num_idle

    def take(self, count: int, *, after: int = -1) -> list[int]:
        """Take blocks for one table, as far as possible in its run.

        Args:
            count: how many, 0 for none.
            after: the table's last block, -1 when it has none.

        Returns:
            Their ids in the order to append them, each with one user.

        Raises:
            CapacityError: too few blocks are available; none was taken.
        """
        self._require(count)
        blocks = self._continue(after, count)
        while len(blocks) < count:
            start, size = self._group(count - len(blocks))
            used = min(size, count - len(blocks))
            blocks += range(start, start + used)
            if size > used:
                self._ahead.add(start + used, size - used)
        for block in blocks:
            self._users[block] = 1
        return blocks

    def release(self, block: int) -> None:
        """Drop a user; a block without users is free, with what was taken ahead of it."""
        assert self._users[block] > 0, f"block {block} has no user"
        self._users[block] -= 1
        if self._users[block]:
            return
        if block + 1 in self._ahead.sizes:
            self._runs.give(block + 1, self._ahead.remove(block + 1))
        if self.prefix.knows(block):
            self.prefix.park(block)
        else:
            self._runs.give(block, 1)

    def _continue(self, after: int, count: int) -> list[int]:
        """Take what a table has ahead, or the free blocks behind its last one."""
        if after < 0 or not count:
            return []
        start = after + 1
        if start not in self._ahead.sizes:
            grown = self._runs.take(start, max(count, self.group_blocks))
            if not grown:
                return []
            self._ahead.add(start, grown)
        size = self._ahead.remove(start)
        used = min(size, count)
        if size > used:
            self._ahead.add(start + used, size - used)
        return list(range(start, start + used))

    def _group(self, needed: int) -> tuple[int, int]:
        """Take a run for a table that needs blocks.

        Args:
            needed: blocks that the table lacks.

        Returns:
            (start, size) of the run; it may be longer or shorter than needed.
        """
        wanted = max(needed, self.group_blocks)
        # A full group first, so that the table can grow; then what is needed now, out of free
        # blocks before blocks that another table might grow into.
        for size in (wanted, needed):
            start = self._runs.at_least(size)
            if start >= 0:
                return start, self._runs.take(start, wanted)
        start = self._ahead.at_least(needed)
        if start >= 0:
            return self._cut(start, needed)
        return self._largest(needed)

    def _largest(self, needed: int) -> tuple[int, int]:
        """Take the longest run, free or ahead of a table; without one, the block longest idle."""
        free = self._runs.largest()
        ahead = self._ahead.largest()
        # Cached prefixes are the last to go: blocks ahead of tables hold nothing yet.
        if free < 0 and ahead < 0:
            return self.prefix.evict(), 1
        if free >= 0 and (ahead < 0 or self._runs.sizes[free] >= self._ahead.sizes[ahead]):
            return free, self._runs.take(free, needed)
        return self._cut(ahead, needed)

    def _cut(self, start: int, needed: int) -> tuple[int, int]:
        """Take the far end of what a table has ahead: half of it, or more if that is needed."""
        size = self._ahead.remove(start)
        cut = min(size, max(needed, size // 2))
        if size > cut:
            self._ahead.add(start, size - cut)
        return start + size - cut, cut

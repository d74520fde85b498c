"""Fixed-size blocks of key/value slots: the pool that counts their users, and block tables."""

import numpy as np

from steelyard.errors import CapacityError, require
from steelyard.serve.kv.prefix import PrefixIndex

__all__ = ["BlockPool", "BlockTable"]


class BlockPool:
    """Hands out block ids and counts how many tables hold each.

    A block nobody holds goes back to the free list (last in, first out, so warm memory is used
    first), or, when the prefix index knows its content, stays there until space is needed.

    Attributes:
        num_blocks: blocks in the pool.
        block_size: token slots per block.
        prefix: index of reusable blocks.

    Source: Kwon et al. 2023 (arXiv 2309.06180), section 4.
    """

    def __init__(self, num_blocks: int, block_size: int, prefix: PrefixIndex | None = None) -> None:
        """Make a pool with every block free.

        Args:
            num_blocks: blocks in the pool, at least 1.
            block_size: token slots per block, a power of two.
            prefix: index of reusable blocks; one that knows none by default.

        Raises:
            ConfigError: a size is out of range.
        """
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix = PrefixIndex() if prefix is None else prefix
        require(
            self,
            num_blocks=(num_blocks >= 1, "at least 1, so set more memory aside for the pool"),
            block_size=(
                block_size >= 1 and not block_size & (block_size - 1),
                "a power of two, such as 16",
            ),
        )
        self._users = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out: free ones and idle ones of the prefix index."""
        return len(self._free) + self.prefix.num_idle

    @property
    def num_in_use(self) -> int:
        """Blocks that may not be handed out."""
        return self.num_blocks - self.num_available

    @property
    def num_in_tables(self) -> int:
        """Blocks in use without those that an allocator loses by rounding: none here."""
        return self.num_in_use

    def users(self, block: int) -> int:
        """Return the number of tables that hold a block."""
        return self._users[block]

    def can_take(self, count: int) -> bool:
        """Whether `take` would succeed."""
        return count <= self.num_available

    def take(self, count: int, *, after: int = -1) -> list[int]:
        """Take blocks, each with one user; all or none.

        Args:
            count: how many, at least 0. The least recently used idle blocks are forgotten when too
                few are free.
            after: ignored, as any block is as good as another.

        Returns:
            Their ids in the order in which the table should use them.

        Raises:
            CapacityError: fewer are available; nothing was taken.
        """
        self._require(count)
        blocks: list[int] = []
        for _ in range(count):
            if self._free:
                blocks.append(self._free.pop())
            else:
                blocks.append(self.prefix.evict())
            self._users[blocks[-1]] = 1
        return blocks

    def _require(self, count: int) -> None:
        """Refuse to take more blocks than are available."""
        if not self.can_take(count):
            raise CapacityError(
                f"{count} blocks are needed and {self.num_available} available",
                hint="preempt a sequence first",
            )

    def retain(self, block: int) -> None:
        """Add a user to a block that is held or idle in the prefix index."""
        # A block without users that is asked for by its content is idle, never on the free list.
        if self._users[block] == 0:
            self.prefix.unpark(block)
        self._users[block] += 1

    def release(self, block: int) -> None:
        """Drop a user; a block without users is free, or idle if its content is known."""
        assert self._users[block] > 0, f"block {block} has no user"
        self._users[block] -= 1
        if self._users[block]:
            return
        if self.prefix.knows(block):
            self.prefix.park(block)
        else:
            self._free.append(block)


class BlockTable:
    """Physical blocks of one sequence, in token order.

    Attributes:
        num_blocks: blocks held.
    """

    __slots__ = ("_blocks", "num_blocks")

    def __init__(self) -> None:
        """Start empty."""
        self._blocks = np.zeros(8, dtype=np.int64)
        self.num_blocks = 0

    @property
    def blocks(self) -> np.ndarray:
        """Block ids, int64 [num_blocks]; a view."""
        return self._blocks[: self.num_blocks]

    @property
    def last(self) -> int:
        """The last block, -1 without any."""
        return int(self._blocks[self.num_blocks - 1]) if self.num_blocks else -1

    def extend(self, blocks: list[int]) -> None:
        """Add blocks at the end."""
        size = self.num_blocks + len(blocks)
        # The array doubles, so that a growing sequence copies each entry once on average.
        if size > len(self._blocks):
            grown = np.zeros(max(size, 2 * len(self._blocks)), dtype=np.int64)
            grown[: self.num_blocks] = self.blocks
            self._blocks = grown
        self._blocks[self.num_blocks : size] = blocks
        self.num_blocks = size

    def missing(self, num_tokens: int, block_size: int) -> int:
        """Count the blocks to add before `num_tokens` fit."""
        return max(0, -(-num_tokens // block_size) - self.num_blocks)

    def grow(self, pool: BlockPool, num_tokens: int) -> None:
        """Take blocks until `num_tokens` fit; all or none.

        Args:
            pool: pool that has the blocks.
            num_tokens: tokens the table must have slots for.

        Raises:
            CapacityError: the pool has too few; nothing was taken.
        """
        missing = self.missing(num_tokens, pool.block_size)
        if missing:
            self.extend(pool.take(missing, after=self.last))

    def shrink(self, pool: BlockPool, num_tokens: int) -> None:
        """Release the blocks behind those that hold `num_tokens`."""
        kept = -(-num_tokens // pool.block_size)
        # Last first: blocks that become idle are evicted in this order, and the end of a prefix is
        # of no use without its beginning.
        for block in self.blocks[kept:][::-1].tolist():
            pool.release(block)
        self.num_blocks = min(self.num_blocks, kept)

    def fork(self, pool: BlockPool, num_blocks: int) -> "BlockTable":
        """Share the leading `num_blocks` blocks with a new table."""
        copy = BlockTable()
        copy.extend(self._blocks[:num_blocks].tolist())
        for block in copy.blocks.tolist():
            pool.retain(block)
        return copy

    def make_writable(self, pool: BlockPool, position: int) -> tuple[int, int] | None:
        """Replace the block at a token position by a copy of this table's own, if it is shared.

        Args:
            pool: pool that handed the block out.
            position: about to be written.

        Returns:
            (from, to) block ids to copy before writing, or None when the block is not shared.

        Raises:
            CapacityError: the block is shared and no block is available.
        """
        index = position // pool.block_size
        shared = int(self._blocks[index])
        if pool.users(shared) == 1:
            return None
        own = pool.take(1, after=shared)[0]
        pool.release(shared)
        self._blocks[index] = own
        return shared, own

    def free(self, pool: BlockPool) -> None:
        """Release all blocks."""
        self.shrink(pool, 0)

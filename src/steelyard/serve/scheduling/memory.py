"""What requests need of the pool: admission, growth, sharing, copies, prefixes."""

from collections import Counter

import numpy as np

from steelyard.errors import CapacityError, ConfigError
from steelyard.serve.kv.blocks import BlockPool
from steelyard.serve.kv.groups import GroupPool
from steelyard.serve.kv.prefix import PrefixIndex
from steelyard.serve.scheduling.config import SchedulerConfig
from steelyard.serve.scheduling.request import Request

__all__ = ["KVMemory"]


class KVMemory:
    """A pool with the rules by which tables take from it.

    Attributes:
        config: limits.
        prefix: index of reusable blocks; it stays empty without prefix caching.
        pool: the blocks.
    """

    def __init__(self, config: SchedulerConfig, *, model_key: str = "") -> None:
        """Start with every block free.

        Args:
            config: limits and allocator.
            model_key: name of the weights, for the prefix index.
        """
        self.config = config
        self.prefix = PrefixIndex(model_key=model_key)
        limits = config.num_blocks, config.block_size, self.prefix
        self.pool: BlockPool = (
            GroupPool(*limits, group_blocks=config.group_blocks)
            if config.allocator == "block-group"
            else BlockPool(*limits)
        )
        self._copies: dict[int, int] = {}

    def blocks_for(self, num_tokens: int) -> int:
        """Count the blocks that hold `num_tokens`."""
        return -(-num_tokens // self.config.block_size)

    def footprint(self, request: Request) -> int:
        """Count the blocks that a request holds for its next step, or would take when admitted."""
        return sum(self.blocks_for(item.num_tokens + 1) for item in request.sequences)

    def check(self, request: Request) -> None:
        """Refuse a request whose sequences could fill more than the pool.

        Args:
            request: request that was not added yet.

        Raises:
            ConfigError: they would not fit even alone.
        """
        if not self.can_hold(request):
            count = request.params.num_sequences
            total = len(request.prompt) + request.params.max_tokens
            raise ConfigError(
                f"{count} sequences of {total} tokens do not fit in {self.config.num_blocks} "
                f"blocks of {self.config.block_size} tokens",
                hint="ask for fewer sequences or tokens, or give the pool more blocks",
            )

    def can_hold(self, request: Request) -> bool:
        """Whether the sequences of a request at their full length fit in an empty pool."""
        count = request.params.num_sequences
        total = len(request.prompt) + request.params.max_tokens
        # The block of the prompt's last token is not shared: every sequence writes into its own.
        shared = (len(request.prompt) - 1) // self.config.block_size
        needed = shared + count * (self.blocks_for(total) - shared)
        return needed <= self.config.num_blocks - self.prefix.num_pinned

    def pin(self, tokens: list[int]) -> int:
        """Keep the full blocks of a prefix in the pool, from when they are computed.

        Args:
            tokens: the prefix.

        Returns:
            The tokens that are kept, a multiple of the block size; 0 without prefix caching.

        Raises:
            CapacityError: the rest of the pool could not hold one sequence of the model length.
        """
        hashes = self._hashes(tokens)
        # Pinned blocks never come free; without room for one longest sequence beside them, a
        # request that was accepted might never run.
        needed = self.blocks_for(self.config.max_model_len)
        if self.prefix.num_pinned + len(hashes) + needed > self.config.num_blocks:
            raise CapacityError(
                f"{len(hashes)} more pinned blocks leave no room for a sequence of "
                f"{self.config.max_model_len} tokens",
                hint="unpin another prefix or enlarge the pool",
            )
        self.prefix.pin(hashes)
        return len(hashes) * self.config.block_size

    def unpin(self, tokens: list[int]) -> None:
        """Take one `pin` of the same tokens back."""
        self.prefix.unpin(self._hashes(tokens))

    def admit(self, sequences: list[Request], headroom: int) -> bool:
        """Find the sequences of a waiting request blocks for all their known tokens, or none.

        The first finds known prefixes; the others share the full blocks of what they have in common
        with it. One more token per sequence must fit, so that no request is admitted to be
        preempted at once.

        Args:
            sequences: without blocks.
            headroom: blocks that must stay available beside.

        Returns:
            Whether they got blocks; `num_computed` then counts what is shared.
        """
        leader, others = sequences[0], sequences[1:]
        known = self._match(leader)
        heads = [self._common_blocks(leader, item) for item in others]
        held = len(known) + sum(heads)
        # Idle blocks count as available, but those that this request finds again leave the idle
        # list when they are retained, so they are not there to be handed out.
        idle = sum(self.prefix.is_idle(block) for block in known)
        fresh = sum(self.blocks_for(item.num_tokens + 1) for item in sequences) - held
        if fresh + idle + headroom > self.pool.num_available:
            return False
        # Retained before anything is taken: taking may evict idle blocks, these among them.
        for block in known:
            self.pool.retain(block)
        leader.table.extend(known)
        leader.table.grow(self.pool, leader.num_tokens)
        leader.num_computed = len(known) * self.config.block_size
        leader.num_cached = min(leader.num_computed, len(leader.prompt))
        for item, head in zip(others, heads, strict=True):
            item.table = leader.table.fork(self.pool, head)
            item.table.grow(self.pool, item.num_tokens)
            item.num_computed = head * self.config.block_size
        if leader.family:
            leader.family.leader = leader
            leader.family.shared_tokens = max(heads, default=0) * self.config.block_size
        return True

    def has_slot(self, request: Request) -> bool:
        """Whether a request of one sequence has a slot for one more token."""
        return (
            request.family is None
            and request.num_computed < request.table.num_blocks * self.config.block_size
        )

    def missing(self, sequences: list[Request]) -> int:
        """Count the blocks that decoding sequences of one request need for one more token each.

        Args:
            sequences: decoding sequences of one request.

        Returns:
            New blocks, and copies of shared blocks that would be written.
        """
        size = self.config.block_size
        if len(sequences) == 1 and sequences[0].family is None:
            return sequences[0].table.missing(sequences[0].num_computed + 1, size)
        fresh = 0
        writers = Counter[int]()
        for item in sequences:
            lacking = item.table.missing(item.num_computed + 1, size)
            fresh += lacking
            if not lacking:
                writers[int(item.table.blocks[item.num_computed // size])] += 1
        # Of all users of a block the last one that writes keeps it, so a block that only its
        # writers use costs one copy less than it has writers.
        copies = (min(count, self.pool.users(block) - 1) for block, count in writers.items())
        return fresh + sum(copies)

    def grow(self, sequences: list[Request]) -> None:
        """Find each decoding sequence of one request a slot of its own for one more token.

        Args:
            sequences: decoding sequences of one request; `missing` blocks must be available.
        """
        for item in sequences:
            item.table.grow(self.pool, item.num_computed + 1)
            if item.family is not None:
                copy = item.table.make_writable(self.pool, item.num_computed)
                if copy:
                    self._copies[copy[1]] = copy[0]

    def fork(self, source: Request, target: Request) -> None:
        """Make `target` go on from where `source` stands; the blocks it held are given back."""
        target.table.free(self.pool)
        target.table = source.table.fork(self.pool, source.table.num_blocks)
        target.num_computed = source.num_computed
        target.block_hashes = list(source.block_hashes)

    def give_back(self, request: Request) -> None:
        """Release the blocks behind the one that a decoding sequence writes next."""
        request.table.shrink(self.pool, request.num_tokens)

    def drop(self, request: Request) -> None:
        """Take the blocks of a beam that died."""
        request.table.free(self.pool)

    def take_copies(self) -> np.ndarray:
        """Return the copies to make before the next step and forget them.

        Returns:
            int64 [C, 2] pairs of blocks (from, to).
        """
        copies = np.array(
            [(source, target) for target, source in self._copies.items()], dtype=np.int64
        ).reshape(-1, 2)
        self._copies.clear()
        return copies

    def remember(self, request: Request, start: int, stop: int) -> None:
        """Enter the blocks that computed tokens [start, stop) filled into the prefix index."""
        size = self.config.block_size
        before = start // size
        full = stop // size
        if full == before or not self.config.prefix_caching:
            return
        hashes = request.hash_blocks(self.prefix.root, size, full)
        for index in range(before, full):
            self.prefix.insert(hashes[index], int(request.table.blocks[index]))

    def num_cached(self, request: Request) -> int:
        """Count the leading tokens of a request that the prefix index knows now."""
        return len(self._match(request)) * self.config.block_size

    def _match(self, request: Request) -> list[int]:
        """Find known blocks for a request's beginning; at least its last token is left to run."""
        size = self.config.block_size
        full = (request.num_tokens - 1) // size if self.config.prefix_caching else 0
        return self.prefix.match(request.hash_blocks(self.prefix.root, size, full))

    def _hashes(self, tokens: list[int]) -> list[bytes]:
        """Return the chain hashes of a prefix's full blocks; none without prefix caching."""
        size = self.config.block_size
        full = len(tokens) // size if self.config.prefix_caching else 0
        return Request(id="", prompt=tokens).hash_blocks(self.prefix.root, size, full)

    def _common_blocks(self, leader: Request, other: Request) -> int:
        """Count the full blocks of what two sequences of one family have in common.

        Args:
            leader: sequence whose blocks are shared.
            other: sequence that shares them; its last token is left to run.

        Returns:
            Leading blocks of equal tokens.
        """
        shorter = min(len(leader.output), len(other.output))
        first = np.array(leader.output[:shorter], dtype=np.int64)
        second = np.array(other.output[:shorter], dtype=np.int64)
        apart = np.flatnonzero(first != second)
        common = len(leader.prompt) + (int(apart[0]) if apart.size else shorter)
        return min(common, other.num_tokens - 1) // self.config.block_size

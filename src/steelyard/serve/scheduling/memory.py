"""What requests need of the pool: admission, growth, sharing, copies, prefixes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from steelyard.errors import CapacityError, ConfigError
from steelyard.serve.kv.blocks import BlockPool, Pool
from steelyard.serve.kv.contiguous import ContiguousPool, power_of_two
from steelyard.serve.kv.groups import GroupPool
from steelyard.serve.kv.prefix import PrefixIndex, chain_hash

if TYPE_CHECKING:
    from steelyard.serve.scheduling.config import SchedulerConfig
    from steelyard.serve.scheduling.request import Request

__all__ = ["KVMemory"]


class KVMemory:
    """A pool with the rules by which tables take from it.

    Attributes:
        config: limits.
        prefix: index of reusable blocks, or None.
        pool: the blocks.
    """

    def __init__(self, config: SchedulerConfig, *, model_key: str = "") -> None:
        """Start with every block free.

        Args:
            config: limits and allocator.
            model_key: names the weights, for the prefix index.
        """
        self.config = config
        self.prefix = (
            PrefixIndex(model_key=model_key)
            if config.prefix_caching and not config.is_contiguous
            else None
        )
        self.pool: Pool = self._make_pool()
        self._copies: dict[int, int] = {}

    def _make_pool(self) -> Pool:
        """Make the pool of the configured allocator."""
        config = self.config
        if config.is_contiguous:
            return ContiguousPool(config.num_blocks, config.block_size)
        if config.allocator == "block-group":
            return GroupPool(
                config.num_blocks, config.block_size, self.prefix, group_blocks=config.group_blocks
            )
        return BlockPool(config.num_blocks, config.block_size, self.prefix)

    def blocks_for(self, num_tokens: int) -> int:
        """Count the blocks that hold `num_tokens`."""
        return -(-num_tokens // self.config.block_size)

    def footprint(self, request: Request) -> int:
        """Count the blocks that a request needs to run its next step: what it holds, or would take when admitted."""
        if self.config.is_contiguous:
            return len(self._reserving(request.sequences)) * power_of_two(
                self.blocks_for(self._reservation(request))
            )
        return sum(self.blocks_for(item.num_tokens + 1) for item in request.sequences)

    def check(self, request: Request) -> None:
        """Refuse a request whose sequences could fill more than the pool.

        Args:
            request: not yet added.

        Raises:
            ConfigError: they would not fit even alone.
        """
        count, total = request.params.num_sequences, len(request.prompt) + request.params.max_tokens
        if isinstance(self.pool, ContiguousPool):
            fits = self.pool.capacity(self.blocks_for(self._reservation(request))) >= count
        else:
            shared = (len(request.prompt) - 1) // self.config.block_size
            fits = (
                shared + count * (self.blocks_for(total) - shared)
                <= self.config.num_blocks - self.num_pinned
            )
        if not fits:
            raise ConfigError(
                f"{count} sequences of {total} tokens do not fit in {self.config.num_blocks} "
                f"blocks of {self.config.block_size} tokens",
                hint="ask for fewer sequences or tokens, or give the pool more blocks",
            )

    @property
    def num_pinned(self) -> int:
        """Blocks that pins keep or will keep."""
        return self.prefix.num_pinned if self.prefix else 0

    def admit(self, sequences: list[Request], headroom: int) -> bool:
        """Return the sequences of a waiting request blocks for all their known tokens, or nothing.

        The first finds known prefixes; the others share the full blocks of what they have in common
        with it. One more token per sequence must fit, so that no request is admitted to be
        preempted at once.

        Args:
            sequences: without blocks.
            headroom: blocks that must stay available beside.

        Returns:
            Whether they got blocks; `num_computed` then counts what is shared.
        """
        if self.config.is_contiguous:
            return self._admit_contiguous(sequences)
        leader, others = sequences[0], sequences[1:]
        known = self._match(leader)
        heads = [self._common_blocks(leader, item) for item in others]
        held = len(known) + sum(heads)
        idle = sum(self.prefix.is_idle(block) for block in known) if self.prefix else 0
        fresh = sum(self.blocks_for(item.num_tokens + 1) for item in sequences) - held
        if fresh + idle + headroom > self.pool.num_available:
            return False
        for block in known:
            self.pool.retain(block)
        leader.table.extend(known)
        leader.table.grow(self.pool, leader.num_tokens)
        leader.num_computed = len(known) * self.config.block_size
        leader.num_cached = min(leader.num_computed, len(leader.prompt))
        for item, head in zip(others, heads, strict=True):
            item.table = leader.table.fork_head(self.pool, head)
            item.table.grow(self.pool, item.num_tokens)
            item.num_computed = head * self.config.block_size
        if leader.family:
            leader.family.leader, leader.family.shared_tokens = (
                leader,
                max(heads, default=0) * self.config.block_size,
            )
        return True

    def has_slot(self, request: Request) -> bool:
        """Whether a request of one sequence has a slot for one more token."""
        return (
            request.family is None
            and request.num_computed < request.table.num_blocks * self.config.block_size
        )

    def missing(self, sequences: list[Request]) -> int:
        """Count the blocks that decoding sequences of one request need for one more token each, copies of shared ones included."""
        size = self.config.block_size
        if len(sequences) == 1 and sequences[0].family is None:
            return sequences[0].table.missing(sequences[0].num_computed + 1, size)
        fresh, writers = 0, Counter[int]()
        for item in sequences:
            lacking = item.table.missing(item.num_computed + 1, size)
            fresh += lacking
            if not lacking:
                writers[int(item.table.blocks[item.num_computed // size])] += 1
        return fresh + sum(
            min(count, self.pool.users(block) - 1) for block, count in writers.items()
        )

    def grow(self, sequences: list[Request]) -> None:
        """Give each of one request's decoding sequences a slot of its own for one more token; `missing` blocks must be available."""
        for item in sequences:
            item.table.grow(self.pool, item.num_computed + 1)
            if item.family is not None:
                copy = item.table.make_writable(self.pool, item.num_computed)
                if copy:
                    self._copies[copy[1]] = copy[0]

    def fork(self, source: Request, target: Request) -> None:
        """Make `target` go on from where `source` stands; blocks it held are given back, a contiguous reservation is filled by copies."""
        if self.config.is_contiguous:
            filled = self.blocks_for(source.num_computed) if source.table.num_blocks else 0
            self._copies.update(
                zip(
                    target.table.blocks[:filled].tolist(),
                    source.table.blocks[:filled].tolist(),
                    strict=True,
                )
            )
        else:
            target.table.free(self.pool)
            target.table = source.table.fork(self.pool)
        target.num_computed = source.num_computed
        target.block_hashes = list(source.block_hashes)

    def drop(self, request: Request) -> None:
        """Take the blocks of a beam that died; a contiguous reservation stays for the next one in its place."""
        if not self.config.is_contiguous:
            request.table.free(self.pool)

    def take_copies(self) -> np.ndarray:
        """Return the copies to make before the next step, int64 [C, 2] (from, to), and forget them."""
        copies = np.array(
            [(source, target) for target, source in self._copies.items()], dtype=np.int64
        ).reshape(-1, 2)
        self._copies.clear()
        return copies

    def remember(self, request: Request, start: int, stop: int) -> None:
        """Enter the blocks that computed tokens [start, stop) filled into the prefix index."""
        size = self.config.block_size
        before, full = start // size, stop // size
        if self.prefix is None or full == before:
            return
        self._extend_hashes(request, full)
        for index in range(before, full):
            self.prefix.insert(request.block_hashes[index], int(request.table.blocks[index]))

    def hashes(self, tokens: list[int]) -> list[bytes]:
        """Return the chain hashes of the full blocks of a prefix; none without prefix caching."""
        chain: list[bytes] = []
        if self.prefix is not None:
            for start in range(0, len(tokens) - self.config.block_size + 1, self.config.block_size):
                chain.append(
                    chain_hash(
                        chain[-1] if chain else self.prefix.root,
                        tokens[start : start + self.config.block_size],
                    )
                )
        return chain

    def _reservation(self, request: Request) -> int:
        """Return the tokens that a contiguous allocator reserves for a sequence."""
        if self.config.allocator == "contiguous-max":
            return self.config.max_model_len
        prompt, output = len(request.prompt), request.expected_tokens - len(request.prompt)
        rounded = output if self.config.allocator == "contiguous-oracle" else power_of_two(output)
        return min(prompt + rounded, self.config.max_model_len)

    def _reserving(self, sequences: list[Request]) -> list[Request]:
        """Return the sequences that need a contiguous run of their own, now or after a fork."""
        family = sequences[0].family
        return family.members if family and (family.is_beam or not family.has_forked) else sequences

    def _admit_contiguous(self, sequences: list[Request]) -> bool:
        """Reserve a run for every sequence that runs now or will, or none."""
        everyone = self._reserving(sequences)
        try:
            for item in everyone:
                item.table.extend(self.pool.take(self.blocks_for(self._reservation(item))))
        except CapacityError:
            for item in everyone:
                item.table.free(self.pool)
            return False
        for item in everyone:
            item.num_computed = 0
        return True

    def num_cached(self, request: Request) -> int:
        """Count the leading tokens of a request that the prefix index knows now."""
        return len(self._match(request)) * self.config.block_size

    def _match(self, request: Request) -> list[int]:
        """Find known blocks for a request's beginning; at least its last token is left to run."""
        if self.prefix is None:
            return []
        full = (request.num_tokens - 1) // self.config.block_size
        self._extend_hashes(request, full)
        return self.prefix.match(request.block_hashes[:full])

    def _common_blocks(self, leader: Request, other: Request) -> int:
        """Count the full blocks of what two sequences of one family have in common; the other's last token is left to run."""
        first, second = (
            np.array(item.output[: min(len(leader.output), len(other.output))], dtype=np.int64)
            for item in (leader, other)
        )
        apart = np.flatnonzero(first != second)
        common = len(leader.prompt) + (int(apart[0]) if apart.size else len(first))
        return min(common, other.num_tokens - 1) // self.config.block_size

    def _extend_hashes(self, request: Request, full: int) -> None:
        """Hash a request's leading `full` blocks, as far as not yet done."""
        assert self.prefix is not None
        size, known = self.config.block_size, request.block_hashes
        while len(known) < full:
            start = len(known) * size
            known.append(
                chain_hash(
                    known[-1] if known else self.prefix.root, request.tokens(start, start + size)
                )
            )

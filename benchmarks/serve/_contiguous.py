"""One contiguous reservation per sequence, as engines did before paging: its baselines."""

from dataclasses import replace
from typing import Literal

from steelyard.errors import CapacityError, ConfigError
from steelyard.serve import Request, Scheduler, SchedulerConfig
from steelyard.serve.kv.blocks import BlockPool
from steelyard.serve.scheduling.memory import KVMemory

__all__ = [
    "ContiguousMemory",
    "ContiguousPool",
    "Reservation",
    "contiguous_limits",
    "contiguous_scheduler",
    "power_of_two",
]

Reservation = Literal["max", "pow2", "oracle"]
"""What is reserved for a sequence: the model length, its prompt and its output rounded up to a
power of two, or its true final length."""


def contiguous_limits(config: SchedulerConfig) -> SchedulerConfig:
    """Return limits without prefix caching and watermark: nothing is shared, and nothing grows."""
    return replace(config, prefix_caching=False, watermark_fraction=0.0)


def contiguous_scheduler(config: SchedulerConfig, reservation: Reservation) -> Scheduler:
    """Make a scheduler whose sequences hold one contiguous reservation from admission to end.

    Args:
        config: limits, brought to `contiguous_limits`.
        reservation: what is reserved for a sequence.

    Returns:
        A scheduler without requests.
    """
    config = contiguous_limits(config)
    return Scheduler(config, memory=ContiguousMemory(config, reservation))


def power_of_two(count: int) -> int:
    """Return the smallest power of two that is at least `count`, for `count` of at least 1."""
    return 1 << (count - 1).bit_length()


class ContiguousPool(BlockPool):
    """Hands out runs of consecutive blocks with a buddy allocator.

    A run has a power of two of blocks.

    A pool whose size is no power of two starts as several runs, the largest first. Nothing is
    shared, so every block has one user.

    Source: Knowlton 1965 (buddy system); used for the baselines of Kwon et al. 2023 (arXiv
        2309.06180), section 6.1.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """Make a pool with every block free.

        Args:
            num_blocks: blocks in the pool, at least 1.
            block_size: token slots per block.

        Raises:
            ConfigError: the pool has no block.
        """
        super().__init__(num_blocks, block_size)
        self._starts: dict[int, set[int]] = {
            1 << power: set() for power in range(num_blocks.bit_length())
        }
        self._run_of: dict[int, tuple[int, int]] = {}
        self._held: dict[int, int] = {}
        start = 0
        for size in sorted(self._starts, reverse=True):
            if num_blocks & size:
                self._starts[size].add(start)
                start += size
        self._num_free = num_blocks

    @property
    def num_available(self) -> int:
        """Blocks of free runs."""
        return self._num_free

    @property
    def num_in_tables(self) -> int:
        """Blocks that tables hold, without the rounding of their runs."""
        return len(self._run_of)

    def capacity(self, count: int) -> int:
        """Count the runs of `count` blocks that fit when every block is free."""
        wanted = power_of_two(max(count, 1))
        return sum(size // wanted for size in self._starts if self.num_blocks & size)

    def users(self, block: int) -> int:
        """Return 1 for a block that a table holds, else 0."""
        return int(block in self._run_of)

    def can_take(self, count: int) -> bool:
        """Whether a free run of `count` blocks exists."""
        return count == 0 or any(starts and size >= count for size, starts in self._starts.items())

    def take(self, count: int, *, after: int = -1) -> list[int]:
        """Take the lowest of the smallest runs that hold `count` blocks.

        Args:
            count: how many, at least 0.
            after: -1; a run does not grow.

        Returns:
            Consecutive block ids.

        Raises:
            CapacityError: no run is long enough, or a table wants a second run.
        """
        if after >= 0 or not self.can_take(count):
            message = (
                f"no free run of {count} blocks among {self._num_free}"
                if after < 0
                else "a contiguous reservation cannot grow"
            )
            raise CapacityError(
                message, hint="reserve the final length, or wait for a sequence to end"
            )
        if not count:
            return []
        wanted = power_of_two(count)
        size = min(size for size, starts in self._starts.items() if starts and size >= wanted)
        start = min(self._starts[size])
        self._starts[size].remove(start)
        while size > wanted:
            size //= 2
            self._starts[size].add(start + size)
        blocks = list(range(start, start + count))
        self._run_of.update(dict.fromkeys(blocks, (start, wanted)))
        self._held[start] = count
        self._num_free -= wanted
        return blocks

    def retain(self, block: int) -> None:
        """Refuse: nothing is shared."""
        raise CapacityError(
            f"block {block} of a contiguous reservation cannot be shared",
            hint="use the paged allocator",
        )

    def release(self, block: int) -> None:
        """Drop a block; a run without held blocks is free."""
        start, size = self._run_of.pop(block)
        self._held[start] -= 1
        if self._held[start]:
            return
        del self._held[start]
        self._num_free += size
        while size * 2 in self._starts and (start ^ size) in self._starts[size]:
            self._starts[size].remove(start ^ size)
            start, size = min(start, start ^ size), size * 2
        self._starts[size].add(start)


class ContiguousMemory(KVMemory):
    """Memory that reserves the final length of every sequence of a request at its admission."""

    def __init__(self, config: SchedulerConfig, reservation: Reservation) -> None:
        """Start with every block free.

        Args:
            config: limits, without prefix caching.
            reservation: what is reserved for a sequence.

        Raises:
            ConfigError: blocks are to be moved to the host, which a reservation cannot do.
        """
        if config.preemption != "recompute":
            raise ConfigError(
                f"preemption is {config.preemption!r}, but must be 'recompute' with a contiguous "
                f"allocator",
                hint="change preemption",
            )
        super().__init__(config)
        self.reservation = reservation
        self.runs = ContiguousPool(config.num_blocks, config.block_size)
        self.pool = self.runs

    def footprint(self, request: Request) -> int:
        """Count the blocks that a request holds, or would take when admitted."""
        run = power_of_two(self.blocks_for(self._reserved_tokens(request)))
        return len(self._reserving(request.sequences)) * run

    def can_hold(self, request: Request) -> bool:
        """Whether an empty pool has a run for every sequence of a request."""
        count = self.blocks_for(self._reserved_tokens(request))
        return self.runs.capacity(count) >= request.params.num_sequences

    def admit(self, sequences: list[Request], headroom: int) -> bool:
        """Reserve a run for every sequence that runs now or will, or none."""
        everyone = self._reserving(sequences)
        try:
            for item in everyone:
                item.table.extend(self.pool.take(self.blocks_for(self._reserved_tokens(item))))
        except CapacityError:
            for item in everyone:
                item.table.free(self.pool)
            return False
        for item in everyone:
            item.num_computed = 0
        return True

    def fork(self, source: Request, target: Request) -> None:
        """Make `target` go on from where `source` stands, by copies into its own reservation."""
        filled = self.blocks_for(source.num_computed) if source.table.num_blocks else 0
        targets = target.table.blocks[:filled].tolist()
        sources = source.table.blocks[:filled].tolist()
        self._copies.update(zip(targets, sources, strict=True))
        target.num_computed = source.num_computed
        target.block_hashes = list(source.block_hashes)

    def drop(self, request: Request) -> None:
        """Keep the reservation of a beam that died for the next one in its place."""

    def _reserved_tokens(self, request: Request) -> int:
        """Return the tokens that are reserved for a sequence."""
        longest = self.config.max_model_len
        if self.reservation == "max":
            return longest
        prompt = len(request.prompt)
        output = request.expected_tokens - prompt
        return min(
            prompt + (output if self.reservation == "oracle" else power_of_two(output)), longest
        )

    def _reserving(self, sequences: list[Request]) -> list[Request]:
        """Return the sequences that need a run of their own, now or after a fork."""
        family = sequences[0].family
        # A fork cannot take a run later, when the pool may be full, so all members reserve at once.
        if family and (family.is_beam or not family.has_forked):
            return family.members
        return sequences

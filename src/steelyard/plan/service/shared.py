"""What the prompts of a long trace share, in blocks as coarse as a simulation of it can bear."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from steelyard.errors import CapacityError
from steelyard.plan.service.load import SHARED_BLOCK
from steelyard.serve.traces import TraceRow
from steelyard.serve.traces.fleet import block_ids
from steelyard.sim.fleet.instance import ReplicaGroup

__all__ = ["SharedPrompts"]

_MOST_IDS = 1_000_000
_MOST_PLACES = 40_000_000
"""Places of shared blocks over all micro-batches, 16 bytes each."""
_COARSEST = 512


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedPrompts:
    """Block ids of requests.

    Attributes:
        block_ids: what the leading blocks of each prompt hold, [R] tuples; empty where nothing is
            shared.
        block_size: token slots of these blocks.
        num_names: different ids.
    """

    block_ids: tuple[tuple[int, ...], ...] = ()
    block_size: int = SHARED_BLOCK
    num_names: int = 0

    @classmethod
    def of_rows(cls, rows: Sequence[TraceRow]) -> "SharedPrompts":
        """Take the finest blocks of which the prompts have at most a million.

        Args:
            rows: rows of a trace.

        Returns:
            The ids; none where no row has hash ids or a session.
        """
        if not any(row.hash_ids or row.session for row in rows):
            return cls()
        hashed = {row.block_tokens for row in rows if row.hash_ids}
        size = SHARED_BLOCK
        while (
            sum(row.input_tokens // size for row in rows) > _MOST_IDS
            and size < _COARSEST
            # Blocks have to divide those that the ids stand for.
            and all(tokens % (2 * size) == 0 for tokens in hashed)
        ):
            size *= 2
        ids = tuple(block_ids(row, size) for row in rows)
        return cls(block_ids=ids, block_size=size, num_names=len({n for row in ids for n in row}))

    def finest(self, count: int) -> tuple[tuple[int, ...], ...]:
        """Return what the first `count` prompts hold in blocks of `SHARED_BLOCK` tokens."""
        parts = range(self.block_size // SHARED_BLOCK)
        return tuple(
            tuple(name * len(parts) + part for name in ids for part in parts)
            for ids in self.block_ids[:count]
        )

    def groups(self, groups: Sequence[ReplicaGroup], longest: int) -> list[ReplicaGroup]:
        """Return replicas that keep prefixes in these blocks.

        Args:
            groups: replicas.
            longest: tokens of the longest request.

        Returns:
            The same memory in other blocks; the replicas as they are where nothing is shared.

        Raises:
            CapacityError: there are too many replicas to keep track of what each holds.
        """
        if not self.block_ids:
            return list(groups)
        lanes = sum(group.count * group.num_lanes for group in groups)
        if lanes * self.num_names > _MOST_PLACES:
            raise CapacityError(
                f"{self.num_names:,} shared blocks on {lanes} micro-batches are too many to follow",
                hint="give a shorter part of the trace",
            )
        least = -(-longest // self.block_size)
        return [
            replace(
                group,
                prefix_caching=True,
                block_size=self.block_size,
                # What is rounded away must not cost the room for the longest request.
                blocks=max(group.blocks * group.block_size // self.block_size, least),
            )
            for group in groups
        ]

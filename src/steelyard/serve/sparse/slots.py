"""The slots of bounded caches: a fixed slab per request, overwritten in place."""

import numpy as np

from steelyard.errors import CapacityError, ConfigError
from steelyard.serve.sparse.policies import RetentionPolicy

__all__ = ["BLOCK_SIZE", "SlotTable", "slab_width"]

BLOCK_SIZE = 16
"""Slots per block of the engine's pool; a slab is a whole number of blocks."""


def slab_width(policy: RetentionPolicy, max_length: int, chunk: int) -> int:
    """Return the slots a request needs: what it keeps and what one step adds, in whole blocks.

    Args:
        policy: what is kept.
        max_length: longest sequence; it bounds the slab of a policy that keeps all.
        chunk: most prompt tokens of a step.

    Returns:
        Slots, a multiple of `BLOCK_SIZE`; independent of the sequence's length when the policy has
        a capacity.
    """
    added = max(policy.rebuild + 1, chunk)
    needed = min(policy.capacity + added, max_length) if policy.capacity else max_length
    return -(-needed // BLOCK_SIZE) * BLOCK_SIZE


class SlotTable:
    """Which token stands in which slot, for B requests side by side.

    A slab is a run of whole blocks of the engine's pool: slot s of request b is its slot b * S + s.
    The order of slots means nothing, because keys are turned by their position before they are
    stored.

    Attributes:
        policy: decides what is released.
        positions: int64 [B, S] position of each slot's token, -1 when empty.
        cached: bool [B, T] whether the token at a position is in a slot.
        received: float32 [B, S] attention each slot's token received so far.
        lengths: int64 [B] tokens each request has seen.
    """

    def __init__(
        self, policy: RetentionPolicy, num_requests: int, max_length: int, *, chunk: int = 1
    ) -> None:
        """Start with every slot empty.

        Args:
            policy: decides what is released.
            num_requests: slabs, B.
            max_length: longest sequence, T.
            chunk: most tokens a request appends in a step.

        Raises:
            ConfigError: a size is below 1.
        """
        if min(num_requests, max_length, chunk) < 1:
            raise ConfigError(
                f"num_requests = {num_requests}, max_length = {max_length} and chunk = {chunk} "
                f"must be at least 1",
                hint="raise them",
            )
        self.policy = policy
        width = slab_width(policy, max_length, chunk)
        self.positions = np.full((num_requests, width), -1, dtype=np.int64)
        self.received = np.zeros((num_requests, width), dtype=np.float32)
        self.cached = np.zeros((num_requests, max_length), dtype=bool)
        self.lengths = np.zeros(num_requests, dtype=np.int64)

    @property
    def width(self) -> int:
        """Slots of a slab, S."""
        return self.positions.shape[1]

    @property
    def live(self) -> np.ndarray:
        """Tokens in each slab, int64 [B]."""
        return (self.positions >= 0).sum(1)

    def clear(self, row: int) -> None:
        """Empty a slab."""
        self.positions[row] = -1
        self.received[row] = 0.0
        self.cached[row] = False
        self.lengths[row] = 0

    def on_append(self, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return each token an empty slot of its request.

        Args:
            rows: int64 [N] request of each token, those of a request together.
            positions: int64 [N], none of them cached.

        Returns:
            int64 [N] slots.

        Raises:
            CapacityError: a request has fewer empty slots than tokens; nothing changes.
        """
        # Empty slots first, in order: while tokens come one at a time, each takes the slot that the
        # last release emptied, and the live slots stay the first of the slab.
        order = np.argsort(self.positions >= 0, axis=1, kind="stable")
        counts = np.bincount(rows, minlength=len(self.positions))
        if (counts > self.width - self.live).any():
            raise CapacityError(
                f"a request appends more tokens than its slab of {self.width} has empty slots",
                hint="release first",
            )
        starts = np.cumsum(counts) - counts
        slots = order[rows, np.arange(len(rows)) - starts[rows]]
        self.positions[rows, slots] = positions
        self.received[rows, slots] = 0.0
        self.cached[rows, positions] = True
        np.maximum.at(self.lengths, rows, positions + 1)
        return slots

    def select_release(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Release the tokens of least priority until no request holds more than the capacity.

        Args:
            scores: float32 [B, S] the policy's signal of each slot.

        Returns:
            Rows and slots that are empty now, each int64 [N].
        """
        excess = self.live - self.policy.capacity
        if not self.policy.capacity or excess.max(initial=0) <= 0:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        worth = self.policy.priority(self.positions, self.lengths - 1, scores)
        worth = np.where(self.positions < 0, np.float32(np.nan), worth)  # sorted last
        most = int(excess.max())
        lowest = np.argpartition(worth, range(most), axis=1)[:, :most]
        rows, ranks = np.nonzero(np.arange(most) < excess[:, None])
        slots = lowest[rows, ranks]
        self.cached[rows, self.positions[rows, slots]] = False
        self.positions[rows, slots] = -1
        return rows, slots

    def rebuild_set(self, scores: np.ndarray, wanting: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Choose released tokens worth more than the least cached one, the best of each request.

        Args:
            scores: float32 [B, T] of all tokens seen; anything beyond.
            wanting: bool [B] requests that may rebuild in this step.

        Returns:
            Rows and positions, each int64 [N], sorted by row, then position; at most
            `policy.rebuild` of a request.
        """
        # Before a cache is full nothing was released for want of room.
        full = wanting & (self.live >= self.policy.capacity)
        if not self.policy.rebuild or not self.policy.capacity or not full.any():
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        from steelyard.serve.sparse.scoring import best_released

        worth = self.policy.priority(self.positions, self.lengths - 1, self.of_slots(scores))
        # A rebuilt token has to beat the least of the cached ones, or it would be released again.
        floors = np.where(full, np.where(self.positions < 0, np.inf, worth).min(1), np.inf).astype(
            np.float32
        )
        best = np.empty((len(scores), self.policy.rebuild), dtype=np.int64)
        best_released(scores, self.cached, self.lengths, floors, best)
        best.sort(axis=1)
        rows, ranks = np.nonzero(best >= 0)
        return rows, best[rows, ranks]

    def of_slots(self, scores: np.ndarray) -> np.ndarray:
        """Take the scores [B, S] of the slots' tokens out of those of all positions [B, T]."""
        return np.take_along_axis(scores, np.maximum(self.positions, 0), axis=1)

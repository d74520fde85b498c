"""How much of a pool holds tokens, and where the rest went."""

from collections.abc import Iterable
from dataclasses import dataclass

from steelyard.serve.kv.blocks import BlockPool
from steelyard.serve.scheduling.request import Request

__all__ = ["KVUsage", "measure_usage"]


@dataclass(frozen=True, kw_only=True, slots=True)
class KVUsage:
    """Slots of a pool by what they hold; the six add up to all slots.

    Attributes:
        stored: keys and values of running requests, shared ones counted once, and of requests on
            their way out or in.
        cached: slots of idle blocks of the prefix index, which later requests may use and which are
            taken when space is needed.
        reserved: slots held for tokens that a running request will still produce.
        internal: slots held by a running request that will never fill them.
        external: slots neither held nor cached, or lost by the rounding of an allocator; no waste
            while no request waits.
        num_slots: all slots.

    Source: Kwon et al. 2023 (arXiv 2309.06180), section 3.1 and figure 2.
    """

    stored: int
    cached: int
    reserved: int
    internal: int
    external: int
    num_slots: int

    @property
    def utilization(self) -> float:
        """Stored token states over the slots that no idle prefix takes; 1 without such slots."""
        return self.stored / (self.num_slots - self.cached) if self.num_slots > self.cached else 1.0


def measure_usage(pool: BlockPool, running: Iterable[Request]) -> KVUsage:
    """Sort the slots of a pool.

    Args:
        pool: blocks that the requests took from.
        running: sequences with blocks; their final lengths are taken from
            `Request.expected_tokens`.

    Returns:
        Slots by what they hold. A block that several tables share is split evenly among them.
    """
    size = pool.block_size
    lacking = reserved = 0.0
    for request in running:
        share = 1.0
        if request.family is not None and request.table.num_blocks:
            share = 1.0 / max(pool.users(request.table.last), 1)
        slots = request.table.num_blocks * size
        empty = slots - request.num_computed
        future = max(min(slots, request.expected_tokens) - request.num_computed, 0)
        lacking += empty * share
        reserved += min(future, empty) * share
    cached = pool.prefix.num_idle * size
    tables = pool.num_in_tables * size
    return KVUsage(
        stored=tables - round(lacking),
        cached=cached,
        reserved=round(reserved),
        internal=round(lacking) - round(reserved),
        external=pool.num_blocks * size - tables - cached,
        num_slots=pool.num_blocks * size,
    )

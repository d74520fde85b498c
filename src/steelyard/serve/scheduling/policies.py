"""The choices of a configuration as objects: order, second tier, and how a request yields."""

from steelyard.serve.kv.host import HostSpace
from steelyard.serve.scheduling.config import SchedulerConfig
from steelyard.serve.scheduling.fairness import DLPM, FCFS, VTC, OrderPolicy, Priority, ShortestJob
from steelyard.serve.scheduling.memory import KVMemory
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.swaps.swapper import Swapper

__all__ = ["make_policy", "make_swapper", "prefers_swap"]

_ORDERS = {"vtc": VTC, "priority": Priority, "sjf": ShortestJob, "fcfs": FCFS}


def make_policy(config: SchedulerConfig, memory: KVMemory) -> OrderPolicy:
    """Make the order of a configuration with its usual settings.

    Args:
        config: limits and choices.
        memory: memory that knows which prefixes are cached.

    Returns:
        A policy without requests.
    """
    if config.policy == "dlpm":
        return DLPM(cached_prefix=memory.num_cached)
    return _ORDERS[config.policy]()


def make_swapper(config: SchedulerConfig, memory: KVMemory) -> Swapper:
    """Make the second tier's bookkeeping; without swapping it has one block, and nothing moves."""
    swaps = config.preemption != "recompute"
    blocks = config.host_blocks if swaps else 1
    return Swapper(
        memory.pool,
        HostSpace(blocks, config.block_size, group_blocks=config.group_blocks),
        reuse=config.reuse_host_copies,
        keep_turns=config.keep_turns and swaps,
        root=memory.prefix.root,
    )


def prefers_swap(config: SchedulerConfig, request: Request) -> bool:
    """Whether to move a request's blocks to the host rather than to compute them again.

    Families are computed again, as their members would not share blocks after coming back. With
    "auto" the way out and back is compared with the prefill of what is in the pool.

    Args:
        config: limits and choices.
        request: running.

    Returns:
        False when there is no host tier.
    """
    if config.preemption == "recompute" or request.family is not None:
        return False
    swap_s = 2 * request.table.num_blocks * config.swap_s_per_block
    return config.preemption == "swap" or swap_s < request.num_computed * config.prefill_s_per_token

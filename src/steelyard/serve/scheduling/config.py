"""Limits of one engine and the choice of its policies."""

from dataclasses import dataclass
from typing import Literal

from steelyard.errors import CapacityError, require

__all__ = ["SchedulerConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerConfig:
    """Limits of one engine and the choice of its policies.

    Attributes:
        num_blocks: blocks in the pool.
        block_size: token slots per block, a power of two.
        token_budget: most tokens a step runs.
        whole_prompts: whether prompts run undivided, up to the token budget together or a longer
            one alone, in steps of their own that come before decoding; else decoding sequences come
            first and parts of prompts fill the rest of the budget.
        max_num_seqs: most sequences that run at once, at most the token budget.
        max_model_len: most tokens of a prompt and its output together.
        watermark_fraction: share of the pool kept free when a request is admitted beside others.
        prefix_caching: whether equal prefixes share blocks.
        policy: order in which requests are served.
        update_every: steps between two updates of the order; at one, requests with blocks lose them
            to others that come first. 0 takes the order only when a request is admitted or
            preempted.
        allocator: how slots are handed out: blocks on demand, or runs of blocks that grow.
        group_blocks: blocks a request first takes as one run with the block-group allocator, 0 for
            a choice by the pool's size.
        preemption: what happens to the blocks of a request that has to yield: dropped and computed
            again, moved to the host, or the quicker of the two.
        host_blocks: blocks of the second tier, 0 for none.
        reuse_host_copies: whether a request that came back keeps its copy on the host, so that only
            new tokens are sent the next time.
        keep_turns: whether the host keeps what a request that ended had computed, for one that
            begins with the same tokens.
        swap_s_per_block: seconds to move one block out or in, for "auto".
        prefill_s_per_token: seconds to compute one token again, for "auto".
    """

    num_blocks: int
    block_size: int = 16
    token_budget: int = 512
    whole_prompts: bool = False
    max_num_seqs: int = 64
    max_model_len: int = 2048
    watermark_fraction: float = 0.01
    prefix_caching: bool = True
    policy: Literal["fcfs", "priority", "vtc", "dlpm", "sjf"] = "fcfs"
    update_every: int = 0
    allocator: Literal["paged", "block-group"] = "paged"
    group_blocks: int = 0
    preemption: Literal["recompute", "swap", "auto"] = "recompute"
    host_blocks: int = 0
    reuse_host_copies: bool = True
    keep_turns: bool = False
    swap_s_per_block: float = 0.0
    prefill_s_per_token: float = 0.0

    def __post_init__(self) -> None:
        """Refuse limits that contradict each other.

        Raises:
            ConfigError: a value is out of range.
            CapacityError: the pool, or the host tier of an engine that swaps, cannot hold one
                sequence of `max_model_len`.
        """
        size = self.block_size
        needed = -(-self.max_model_len // max(size, 1))
        swaps = self.preemption != "recompute"
        known = self.swap_s_per_block > 0 and self.prefill_s_per_token > 0
        require(
            self,
            block_size=(size >= 1 and size & (size - 1) == 0, "a power of two"),
            token_budget=(self.token_budget >= 1, "at least 1"),
            max_num_seqs=(
                1 <= self.max_num_seqs <= self.token_budget,
                f"in [1, token_budget = {self.token_budget}]",
            ),
            max_model_len=(self.max_model_len >= 2, "at least 2"),
            watermark_fraction=(0 <= self.watermark_fraction < 1, "in [0, 1)"),
            update_every=(self.update_every >= 0, "at least 0"),
            group_blocks=(self.group_blocks >= 0, "at least 0"),
            host_blocks=(self.host_blocks >= 0, "at least 0"),
            swap_s_per_block=(
                self.preemption != "auto" or known,
                "above 0, as prefill_s_per_token, when preemption is 'auto'",
            ),
        )
        # The oldest request is never preempted, so it must fit alone at its full length; one that
        # is swapped out must fit on the host in the same way.
        for name, count in (
            ("num_blocks", self.num_blocks),
            ("host_blocks", self.host_blocks if swaps else needed),
        ):
            if count < needed:
                raise CapacityError(
                    f"{count} blocks of {size} tokens cannot hold one sequence of max_model_len "
                    f"{self.max_model_len}",
                    hint=f"set {name} >= {needed} or max_model_len <= {max(count, 0) * size}",
                )

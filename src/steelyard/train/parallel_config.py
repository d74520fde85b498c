"""How processes share a run: one frozen record, a table of the recipe."""

from dataclasses import dataclass

from steelyard.train.transport.config import AllReduce, LinkSpeed

__all__ = ["ParallelConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelConfig:
    """How the processes of a run work together; a run alone does not read it.

    Attributes:
        reduce: how gradients are summed. "halving-doubling" (a power of two of processes) and
            "tree" (few messages, more bytes) add in one fixed order: equal bits for 1, 2 and 4
            processes. "ring" and "built-in" (gloo's or NCCL's own) take any number and agree
            with one process to rounding.
        overlap: whether gradients travel while the backward pass makes the next ones; it changes
            no bit of a sum of fixed order.
        link: link to emulate between the processes by waiting; None for what there is.
    """

    reduce: AllReduce = "halving-doubling"
    overlap: bool = True
    link: LinkSpeed | None = None

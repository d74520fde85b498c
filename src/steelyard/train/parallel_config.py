"""How processes share a run: one frozen record, a table of the recipe."""

from dataclasses import dataclass

from steelyard.errors import require
from steelyard.train.partition_rules import Preset, Rules, preset_rules
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
        link: link to emulate between the processes by waiting; None for what there is. It slows
            sums of gradients, not the messages of a partition.
        partition: how weights and activations are spread; None where every process holds all
            weights. P1 cuts weights over "model" (tensor parallel), P2 over "data" too (fully
            sharded); A2 cuts the residual stream over "model" along its length.
        model: processes along "model"; those along "data" are the rest.
        rules: pairs of axis and mesh axis that come before those of the partition, such as
            ("vocab", "") to keep the vocabulary whole.
    """

    reduce: AllReduce = "halving-doubling"
    overlap: bool = True
    link: LinkSpeed | None = None
    partition: Preset | None = None
    model: int = 1
    rules: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            ConfigError: there are processes along "model" or rules, but no partition.
        """
        is_spread = self.partition is not None
        require(
            self,
            model=(self.model == 1 or (is_spread and self.model > 1), "1, or more of a partition"),
            rules=(is_spread or not self.rules, "given with a partition"),
        )

    @property
    def all_rules(self) -> Rules:
        """The rules of the partition with those of the recipe before them."""
        return (*self.rules, *(preset_rules(self.partition) if self.partition else ()))

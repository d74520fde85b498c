"""A run and the machines that it may use: the search for its layout and number of accelerators."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.parameters import count_parameters
from steelyard.cost.roofline import Machine
from steelyard.errors import InfeasibleError
from steelyard.plan.interruptions import kept_share
from steelyard.plan.layout_space import LayoutSpace
from steelyard.plan.layouts import LayoutSearch, accelerator_counts, fitting_layouts
from steelyard.units import pretty

__all__ = ["TrainingSearch"]


@dataclass(frozen=True, kw_only=True)
class TrainingSearch:
    """What is searched for.

    Attributes:
        arch: model that is trained.
        machine: accelerator with its links.
        num_nodes: nodes that may be used.
        per_node: accelerators of a node.
        tokens: training tokens.
        global_batch: target sequences per step.
        sequence_length: tokens per sequence.
        deadline_s: longest acceptable run.
        min_efficiency: least throughput per accelerator over the best number of accelerators.
        reserve_fraction: share of memory kept free.
        name: name of the machines, for messages.
        counts: numbers of accelerators to try; parts and multiples of nodes when empty.
        space: what each axis of a layout may be.
    """

    arch: Architecture
    machine: Machine
    num_nodes: int
    per_node: int
    tokens: float
    global_batch: int
    sequence_length: int
    deadline_s: float
    min_efficiency: float = 0.85
    reserve_fraction: float = 0.12
    name: str = ""
    counts: tuple[int, ...] = ()
    space: LayoutSpace = field(default_factory=LayoutSpace)

    @cached_property
    def found(self) -> LayoutSearch:
        """Every layout of every number of accelerators.

        Returns:
            The candidates, of which one at least fits.

        Raises:
            InfeasibleError: no layout exists, or none fits in memory.
        """
        return fitting_layouts(
            self.arch,
            self.machine,
            counts=list(self.counts) or accelerator_counts(self.num_nodes, self.per_node),
            global_batch=self.global_batch,
            sequence_length=self.sequence_length,
            reserve_fraction=self.reserve_fraction,
            space=self.space,
        )

    @cached_property
    def best(self) -> dict[int, int]:
        """Index of the fastest layout that fits, by number of accelerators that have one."""
        found = self.found
        counts = sorted({*found.num_accelerators[found.fits].tolist()})
        return {
            count: found.best(found.fits & (found.num_accelerators == count)) for count in counts
        }

    @cached_property
    def rate(self) -> dict[int, float]:
        """Kept tokens per second of these, by number of accelerators."""
        return {
            count: float(self.found.tokens_per_s[index]) * self.kept(count)
            for count, index in self.best.items()
        }

    def kept(self, count: int) -> float:
        """Return the share of time that is kept work; 1 for a calibrated machine.

        Args:
            count: accelerators.

        Returns:
            A fraction.
        """
        if self.machine.provenance == "measured":  # one machine at hand: its failures are unknown
            return 1.0
        return kept_share(count_parameters(self.arch).total, count, self.nodes_of(count))

    def nodes_of(self, count: int) -> int:
        """Return the nodes that a number of accelerators is in."""
        return -(-count // self.per_node)

    @cached_property
    def chosen(self) -> int:
        """Index of the layout of the largest efficient number of accelerators.

        Where that misses the deadline it is the one of the fewest accelerators that meet it.

        Returns:
            An index of `found`.

        Raises:
            InfeasibleError: none meets the deadline.
        """
        rate = self.rate
        # A deadline that the fastest number misses is missed by all.
        fastest = max(rate, key=lambda count: rate[count])
        if self.tokens / rate[fastest] > self.deadline_s:
            raise InfeasibleError(
                f"time: {pretty(self.tokens, 'token')} take "
                f"{pretty(self.tokens / rate[fastest], 's')} on {fastest} accelerators of "
                f"{self.name}, longer than the limit of {pretty(self.deadline_s, 's')}",
                hint="lower the budget, choose a larger cluster, or allow more time",
            )
        efficiency = {count: rate[count] / count for count in rate}
        least = self.min_efficiency * max(efficiency.values())
        efficient = [count for count in rate if efficiency[count] >= least]
        chosen = max(efficient, key=lambda count: rate[count])
        # A deadline comes before efficiency.
        if self.tokens / rate[chosen] > self.deadline_s:
            chosen = min(count for count in rate if self.tokens / rate[count] <= self.deadline_s)
        return self.best[chosen]

    @property
    def count(self) -> int:
        """Accelerators of the chosen layout."""
        return int(self.found.num_accelerators[self.chosen])

    @property
    def duration_s(self) -> float:
        """Seconds of the run with the chosen layout, failures included."""
        return self.tokens / self.rate[self.count]

    @property
    def fastest_s(self) -> float:
        """Seconds of the run on the number of accelerators that ends first, failures included."""
        return float(self.tokens / np.max(list(self.rate.values())))

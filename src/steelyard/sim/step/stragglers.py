"""Slow machines: which ranks they hold up, and what a step then lasts on average."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import require
from steelyard.sim.step.timeline import Array

__all__ = ["Stragglers"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stragglers:
    """A share of a cluster's machines whose kernels are slower than the others'.

    Attributes:
        share: share of the machines, from 0 to 1.
        slowdown: share by which their kernels take longer, 0 or more.
        draws: how often slow machines are drawn for a mean.
        seed: seed of the draws.

    Source: Jiang et al. 2024, arXiv 2402.15627, section 5: about 0.5 % of the machines take about
        10 % longer.
    """

    share: float = 0.005
    slowdown: float = 0.1
    draws: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        require(
            self,
            share=(0 <= self.share <= 1, "from 0 to 1"),
            slowdown=(self.slowdown >= 0, "0 or more"),
            draws=(self.draws >= 1, "at least 1"),
        )

    def patterns(
        self, *, tensor: int, data: int, pipeline: int, per_machine: int
    ) -> list[tuple[Array, float]]:
        """Draw which ranks are slow, with replicas that are alike drawn together.

        Accelerators are numbered tensor first, then data, then pipeline, as Megatron-LM places
        them. A tensor-parallel group is as slow as its slowest member.

        Args:
            tensor: accelerators of a tensor-parallel group.
            data: replicas.
            pipeline: ranks of a pipeline.
            per_machine: accelerators of a machine.

        Returns:
            Slowdown factors [unlike replicas, pipeline], 1 for none, and the share of the draws
            that gave them. Which replica is slow does not matter, nor how many are slow alike.
        """
        rng = np.random.default_rng(self.seed)
        groups = np.arange(data * pipeline) * tensor
        first, last = groups // per_machine, (groups + tensor - 1) // per_machine
        machines = int(last[-1]) + 1
        counts: dict[tuple[tuple[bool, ...], ...], int] = {}
        for _ in range(self.draws):
            # One more than the slow machines before each place: a group is slow where it differs.
            before = np.concatenate(([0], np.cumsum(rng.random(machines) < self.share)))
            slow: NDArray[np.bool_] = before[last + 1] > before[first]
            rows = slow.reshape(pipeline, data).T
            key = tuple(sorted({tuple(map(bool, row)) for row in rows}))
            counts[key] = counts.get(key, 0) + 1
        return [
            (1 + self.slowdown * np.array(key, dtype=float), count / self.draws)
            for key, count in counts.items()
        ]

"""Processes of torch.distributed that share each step."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn

from steelyard.train.gradients import GradientTree
from steelyard.train.overlap import OverlappedSum, lay_out, num_bytes, pack, unpack
from steelyard.train.parallel_config import ParallelConfig
from steelyard.train.transport.collectives import check_count, sum_over
from steelyard.train.transport.link import GroupTransport, reaching_others
from steelyard.train.transport.shaper import Shaper

__all__ = ["GroupReducer"]


class GroupReducer:
    """Sums gradients over the processes of a group, during the backward pass where it is asked to.

    Attributes:
        rank: number of this process, from 0.
        world_size: processes.
        transport: carries the gradients and counts their bytes.
        partition: None: every process holds all weights.
    """

    partition = None

    def __init__(
        self, config: ParallelConfig | None = None, *, group: dist.ProcessGroup | None = None
    ) -> None:
        """Join a group, which must have been made.

        Args:
            config: how the processes work together; the default one when left out.
            group: the processes; the default group when left out.

        Raises:
            ConfigError: the processes are too many or too few for the way to sum.
        """
        self._config = config or ParallelConfig()
        self._group = group
        link = self._config.link
        self.transport = GroupTransport(group, shaper=Shaper(link) if link else None)
        self.rank, self.world_size = self.transport.rank, self.transport.world_size
        check_count(self._config.reduce, self.world_size)
        self._overlapped: OverlappedSum | None = None
        self._is_summed = False

    @property
    def everyone(self) -> "GroupReducer":
        """This reducer: its processes are all there are."""
        return self

    def overlapped(self, tree: GradientTree, /) -> AbstractContextManager[None]:
        """Surround the last backward pass of a step, in which gradients are summed."""
        if not self._config.overlap:
            return nullcontext()
        if self._overlapped is None or not self._overlapped.is_for(tree):
            self._overlapped = OverlappedSum(tree, self._sum, is_first=not self.rank)
        self._is_summed = True
        return self._overlapped.around_backward()

    def sum_gradients(self, parameters: Sequence[nn.Parameter], /) -> None:
        """Leave in each `grad` the sum over all processes, if that is not done yet."""
        if self._is_summed:
            self._is_summed = False
            return
        # One vector for each type of parameters: nothing goes on meanwhile.
        for bucket in lay_out(parameters, range(len(parameters)), num_bytes(parameters)):
            chosen = [parameters[index] for index in bucket]
            values = pack(chosen, [item.grad for item in chosen])
            self._sum(values)
            unpack(chosen, values)

    def _sum(self, values: Tensor) -> None:
        """Sum a vector over all processes."""
        sum_over(self.transport, values, self._config.reduce)

    def gather(self, values: Tensor, /) -> Tensor:
        """Return the values [n] of all processes by rank, [world_size * n]."""
        found = [torch.empty_like(values) for _ in range(self.world_size)]
        with reaching_others():
            dist.all_gather(found, values, group=self._group)
        return torch.cat(found)

    def wait(self) -> None:
        """Return when every process has come here."""
        with reaching_others():
            dist.barrier(group=self._group)

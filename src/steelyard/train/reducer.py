"""How processes that share a step put their gradients together."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from torch import Tensor, nn

from steelyard.train.gradients import GradientTree

__all__ = ["AloneReducer", "Reducer"]


class Reducer(Protocol):
    """Joins what the processes of one step computed; every process calls the same methods.

    Attributes:
        rank: number of this process, from 0; process 0 writes files.
        world_size: processes that share a step.
    """

    rank: int
    world_size: int

    def overlapped(self, tree: GradientTree, /) -> AbstractContextManager[None]:
        """Surround the last backward pass of a step, in which gradients may already be summed.

        `sum_gradients` follows and then finds nothing left to do.
        """
        ...

    def sum_gradients(self, parameters: Sequence[nn.Parameter], /) -> None:
        """Leave in each parameter's `grad` the sum over all processes, equal bits in each.

        Unless a reducer says otherwise, neighbours are added first, then pairs of neighbours, and
        so on: the upper part of the tree that `GradientTree` sums a process's micro-batches in. A
        gradient that is None everywhere stays None.
        """
        ...

    def gather(self, values: Tensor, /) -> Tensor:
        """Return the values [n] of all processes by rank, [world_size * n]."""
        ...

    def wait(self) -> None:
        """Return when every process has come here."""
        ...


class AloneReducer:
    """One process does the whole step: there is nothing to join."""

    rank = 0
    world_size = 1

    def overlapped(self, tree: GradientTree, /) -> AbstractContextManager[None]:
        """Surround nothing."""
        return nullcontext()

    def sum_gradients(self, parameters: Sequence[nn.Parameter], /) -> None:
        """Leave the gradients as they are."""

    def gather(self, values: Tensor, /) -> Tensor:
        """Return the values."""
        return values

    def wait(self) -> None:
        """Return at once."""

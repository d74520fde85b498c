"""How processes that share a step put their gradients together."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from steelyard.train.estimator_config import EstimatorConfig
from steelyard.train.gradients import GradientTree
from steelyard.train.pieces import TensorPiece

__all__ = ["AloneReducer", "Reducer", "WeightPartition"]


class WeightPartition(Protocol):
    """Spreads the weights and moments of one module over processes.

    `train.partition.partition.Partition` is one; the loop knows this much of it.
    """

    def spread(self, module: nn.Module, config: EstimatorConfig, /) -> None:
        """Leave in this process its part of a module, or refuse it with all reasons."""
        ...

    def regroup(self, optimizers: Sequence[Optimizer], /) -> None:
        """Make optimizers ready for weights of which there are parts."""
        ...

    def clip(self, parameters: Sequence[nn.Parameter], largest: float, /) -> None:
        """Scale the gradients down to a norm of `largest` over all processes, if it is larger."""
        ...

    def pieces(self, tensors: Mapping[str, Tensor], /) -> list[TensorPiece]:
        """Return what this process writes of a run's state."""
        ...

    def parts(self, tensors: Mapping[str, Tensor], /) -> dict[str, Tensor]:
        """Return what this process holds of whole tensors, in the form of its weights."""
        ...


class Reducer(Protocol):
    """Joins what the processes of one step computed; every process calls the same methods.

    Attributes:
        rank: number of this process, from 0: which micro-batches of a step it takes.
        world_size: processes that share a step.
    """

    rank: int
    world_size: int

    @property
    def everyone(self) -> "Reducer":
        """All processes of the run, of which the first writes files.

        More than those that share a step where several hold parts of the same weights.
        """
        ...

    @property
    def partition(self) -> WeightPartition | None:
        """How the weights are spread; None where every process holds all of them."""
        ...

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
    partition = None

    @property
    def everyone(self) -> "AloneReducer":
        """This reducer."""
        return self

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

"""Processes that spread one model: data parallel in one direction, its weights in the others."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from steelyard.errors import ConfigError
from steelyard.train.gradients import GradientTree
from steelyard.train.parallel_config import ParallelConfig
from steelyard.train.partition.partition import Partition
from steelyard.train.process_group import GroupReducer

__all__ = ["PartitionedReducer"]


class PartitionedReducer:
    """Processes in a mesh: those along "data" share a step, those along "model" its weights.

    Attributes:
        rank: this process's place along "data": which micro-batches it takes.
        world_size: processes along "data".
        everyone: all processes.
        partition: how the model is spread.
    """

    def __init__(self, config: ParallelConfig) -> None:
        """Lay the processes of the default group, which must have been made, into a mesh.

        Args:
            config: rules, and the processes along "model".

        Raises:
            ConfigError: the processes do not fill the mesh.
        """
        world_size = dist.get_world_size()
        if world_size % config.model:
            raise ConfigError(
                f"{world_size} processes cannot be laid into rows of model = {config.model}",
                hint=f"start a multiple of {config.model} processes, or set parallel.model",
            )
        sizes = (world_size // config.model, config.model)
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("data", "model"))
        # What all processes do together is gathering and waiting, for any number of them.
        self.everyone = GroupReducer(ParallelConfig(reduce="ring", overlap=False))
        self._data = GroupReducer(config, group=mesh.get_group("data"))
        self.rank, self.world_size = self._data.rank, self._data.world_size
        self.partition = Partition(config, mesh)

    def overlapped(self, tree: GradientTree, /) -> AbstractContextManager[None]:
        """Surround nothing: FSDP sums during each backward pass by itself."""
        del tree
        return nullcontext()

    def sum_gradients(self, parameters: Sequence[nn.Parameter], /) -> None:
        """Leave in each `grad` the sum over all processes that hold the same part."""
        with self.partition.unsummed(parameters) as rest:
            if rest and self.world_size > 1:
                self._data.sum_gradients(rest)

    def gather(self, values: Tensor, /) -> Tensor:
        """Return the values [n] of the processes along "data", [world_size * n]."""
        return self._data.gather(values)

    def wait(self) -> None:
        """Return when every process has come here."""
        self.everyone.wait()

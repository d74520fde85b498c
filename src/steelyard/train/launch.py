"""The processes that a launcher such as torchrun starts for one run."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from steelyard.errors import BackendError
from steelyard.train.parallel_config import ParallelConfig
from steelyard.train.process_group import GroupReducer
from steelyard.train.reducer import AloneReducer, Reducer

__all__ = ["launched"]


@contextmanager
def launched(config: ParallelConfig | None = None) -> Iterator[Reducer]:
    """Join the processes that a launcher such as torchrun started with this one.

    Args:
        config: how they work together; the default one when left out.

    Yields:
        A reducer over them; the one for a process alone where there is no launcher.

    Raises:
        BackendError: the other processes were not reached.
        ConfigError: their number does not fit the way to sum, or the mesh.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield AloneReducer()
        return
    try:
        dist.init_process_group("gloo")
    except (RuntimeError, ValueError) as error:
        raise BackendError(
            f"the processes of this run do not reach one another: {error}",
            hint="start them with torchrun --nproc-per-node 2 -m steelyard train run ...",
        ) from error
    try:
        yield _reducer(config or ParallelConfig())
    finally:
        dist.destroy_process_group()


def _reducer(config: ParallelConfig) -> Reducer:
    """Make the reducer of the default group."""
    if config.partition is None:
        return GroupReducer(config)
    # It brings DTensor and FSDP, which take seconds to import.
    from steelyard.train.partition.reducer import PartitionedReducer

    return PartitionedReducer(config)

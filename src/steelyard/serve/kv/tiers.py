"""Transfers of keys and values between the pool's tensor and a second tier."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from steelyard.data.tiers.links import LinkModel
from steelyard.data.tiers.movers import BlockMover
from steelyard.data.tiers.stores import BlockStore, FileStore, MemoryStore
from steelyard.errors import ConfigError

__all__ = ["TieredKV", "make_store", "pool_bytes"]


def pool_bytes(kv: Tensor) -> np.ndarray:
    """View a pool tensor as bytes.

    Args:
        kv: contiguous [L, 2, num_blocks, ...], on the CPU.

    Returns:
        uint8 [num_blocks, 2 L, B], sharing memory.

    Raises:
        ConfigError: the tensor stands elsewhere or has gaps.
    """
    if kv.device.type != "cpu" or not kv.is_contiguous():
        raise ConfigError(
            f"the second tier copies a contiguous pool on the CPU, not on {kv.device}",
            hint="set host_blocks to 0",
        )
    return kv.flatten(0, 1).flatten(2).view(torch.uint8).numpy().transpose(1, 0, 2)


def make_store(kv: Tensor, num_blocks: int, folder: Path | None = None) -> BlockStore:
    """Make a second tier for a pool.

    Args:
        kv: pool tensor [L, 2, num_blocks, ...].
        num_blocks: blocks of the tier.
        folder: folder of the file that holds them; None for memory.

    Returns:
        An empty store.

    Raises:
        ConfigError: the pool is not on the CPU, or the folder cannot be written.
        CapacityError: memory or disk are too small.
    """
    _, pieces, size = pool_bytes(kv).shape
    return (
        FileStore(folder, num_blocks, pieces, size)
        if folder
        else MemoryStore(num_blocks, pieces, size)
    )


class TieredKV(BlockMover):
    """Copies blocks of keys and values between a pool's tensor and a store, in threads."""

    def __init__(
        self, kv: Tensor, store: BlockStore, *, grouped: bool = True, link: LinkModel | None = None
    ) -> None:
        """Start the threads.

        Args:
            kv: pool tensor [L, 2, num_blocks, ...], contiguous and on the CPU.
            store: the second tier, shaped for it.
            grouped: as of `BlockMover`.
            link: emulated slower link; None for the machine's own speed.

        Raises:
            ConfigError: the pool is not on the CPU.
        """
        super().__init__(pool_bytes(kv), store, grouped=grouped, link=link)

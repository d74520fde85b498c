"""The tensor behind the block pool: keys and values of all layers in one allocation."""

import contextlib
import math
import mmap

import numpy as np
import torch
from torch import Tensor

from steelyard.catalog.architecture import Architecture
from steelyard.errors import CapacityError

__all__ = ["KVPool", "lazy_zeros"]


class KVPool:
    """Keys and values of every block, as the kernels read them.

    Attributes:
        kv: [L, 2, num_blocks, KV, B, D], B tokens per block; for each layer, and for keys (0) and
            values (1), a run of consecutive blocks is one contiguous piece. A block holds its
            tokens head by head, so that a kernel reads B * D values in a row.
    """

    def __init__(
        self,
        arch: Architecture,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocate zeros.

        Args:
            arch: architecture of the model.
            num_blocks: number of blocks.
            block_size: tokens per block.
            dtype: type of keys and values.
            device: where they stand.

        Raises:
            CapacityError: the device has no memory for the pool.
        """
        shape = (arch.num_layers, 2, num_blocks, arch.num_kv_heads, block_size, arch.head_dim)
        try:
            self.kv = lazy_zeros(shape, dtype, device)
        except (OSError, OverflowError, RuntimeError) as error:
            message = (
                f"no memory for {num_blocks} blocks of {block_size} tokens in "
                f"{arch.num_layers} layers"
            )
            raise CapacityError(message, hint="lower num_blocks") from error

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor."""
        return self.kv.numel() * self.kv.element_size()

    def arrays(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Return keys and values of a layer as the bits of their numbers.

        numpy has no bfloat16, so kernels that read both types take integers.

        Args:
            layer: its index.

        Returns:
            uint32 or uint16 [num_blocks, KV, B, D] of each; on the CPU only.
        """
        bits = (
            self.kv[layer]
            .view(torch.uint32 if self.kv.element_size() == 4 else torch.uint16)
            .numpy()
        )
        return bits[0], bits[1]

    def write(
        self, layer: int, blocks: Tensor, offsets: Tensor, key: Tensor, value: Tensor
    ) -> None:
        """Store tokens.

        Args:
            layer: its index.
            blocks: int64 [T].
            offsets: int64 [T] place of each token in its block.
            key: [T, KV, D].
            value: [T, KV, D].
        """
        self.kv[layer, 0][blocks, :, offsets] = key.to(self.kv.dtype)
        self.kv[layer, 1][blocks, :, offsets] = value.to(self.kv.dtype)

    def gather(self, layer: int, tables: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Read whole blocks in the order of block tables.

        Args:
            layer: its index.
            tables: int64 [..., M].
            dtype: type of the result.

        Returns:
            Keys and values, each [..., KV, M * B, D].
        """
        found = self.kv[layer][:, tables].to(dtype).transpose(-4, -3).flatten(-3, -2)
        return found[0], found[1]

    def copy_blocks(self, copies: np.ndarray) -> None:
        """Copy whole blocks in all layers at once.

        Args:
            copies: int64 [C, 2] (from, to); every source is read before any target is written.
        """
        source, target = torch.from_numpy(np.ascontiguousarray(copies.T)).to(self.kv.device)
        self.kv[:, :, target] = self.kv[:, :, source]


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Make zeros, in huge pages where the system has them.

    Blocks lie scattered; each in a small page of its own would cost a walk of the page table.

    Args:
        shape: shape of the tensor.
        dtype: type of its numbers.
        device: where it stands.

    Returns:
        The tensor; on the CPU its memory is taken when it is first written.

    Raises:
        OSError: there is no memory; as the system has it, so may be the next two.
        OverflowError: the size is beyond any memory.
        RuntimeError: the device has no memory.
    """
    count = math.prod(shape)
    if device.type != "cpu" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel built without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype, count=count).view(shape)

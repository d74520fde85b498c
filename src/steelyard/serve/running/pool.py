"""The tensor behind the block pool: keys and values of all layers in one allocation."""

import contextlib
import math
import mmap
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from steelyard.catalog.architecture import Architecture
from steelyard.errors import CapacityError
from steelyard.nn.numerics.int8 import quantize_int8
from steelyard.serve.running.pages import HUGE_PAGE_BYTES, take

__all__ = ["KVPool", "cached_shape", "lazy_zeros", "slot_bytes"]

_SCALE_BYTES = 4
"""Bytes of the float32 scale that a key or value head of a token has in eight bits."""


def cached_shape(arch: Architecture) -> tuple[int, int, int]:
    """Return what the pool keeps of a token in a layer.

    Args:
        arch: architecture of the model.

    Returns:
        Sides (keys and values; latents of latent attention are both), heads of a side, and numbers
        of a head.
    """
    if arch.kv_lora_rank:
        return 1, 1, arch.kv_lora_rank + arch.qk_rope_head_dim
    return 2, arch.num_kv_heads, arch.head_dim


def slot_bytes(arch: Architecture, dtype: torch.dtype) -> int:
    """Return the bytes of a token's keys and values in all layers.

    Args:
        arch: architecture of the model.
        dtype: type of keys and values; `torch.int8` counts the scale of each head.

    Returns:
        Bytes of one slot of the pool.
    """
    sides, heads, width = cached_shape(arch)
    return arch.num_layers * sides * heads * _row(width, dtype) * dtype.itemsize


def _row(width: int, dtype: torch.dtype) -> int:
    """Return the numbers that a head of a token takes."""
    return width + (_SCALE_BYTES if dtype == torch.int8 else 0)


class KVPool:
    """Keys and values of every block, as the kernels read them.

    Attributes:
        kv: [L, 2, num_blocks, KV, B, D], B tokens per block; for each layer, and for keys (0) and
            values (1), a run of consecutive blocks is one contiguous piece. A block holds its
            tokens head by head, so that a kernel reads B * D values in a row. In int8 each head of
            a block is B * (D + 4) bytes: codes [B, D], then float32 scales [B].
            Latents (`cached_shape`) have one side in place of two: [L, 1, ...].
        has_scales: whether keys and values are signed bytes, with a scale per head and token.

    Source: Dettmers et al. 2022 (arXiv 2208.07339), section 2 (absolute maximum by vector), of
        keys and values.
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
            dtype: type of keys and values; `torch.int8` for codes with a scale per head and token.
            device: where they stand.

        Raises:
            CapacityError: the device has no memory for the pool.
        """
        self.has_scales = dtype == torch.int8
        sides, heads, width = cached_shape(arch)
        shape = (arch.num_layers, sides, num_blocks, heads, block_size, _row(width, dtype))
        try:
            self.kv = lazy_zeros(shape, dtype, device)
        except (OSError, OverflowError, RuntimeError) as error:
            message = (
                f"no memory for {num_blocks} blocks of {block_size} tokens in "
                f"{arch.num_layers} layers"
            )
            raise CapacityError(message, hint="lower num_blocks") from error
        # Taken ahead: pieces of a layer's side, each of so many blocks.
        self._run = max(1, HUGE_PAGE_BYTES // self.kv[0, 0, 0].nbytes)
        self._per_layer, self._sides = sides, sides * arch.num_layers
        self._pieces_taken, self._blocks = 0, num_blocks
        self._is_lazy = device.type == "cpu" and hasattr(mmap, "MADV_HUGEPAGE")

    def take_ahead(self, block: int) -> None:
        """Take about one huge page that is soon written for the first time, if there is any.

        A prompt writes to all layers, and its step would wait for the pages of each. Called in
        other steps, this takes those of the blocks to come, as far as a page of each layer and
        side reaches: blocks are first handed out in order.

        Args:
            block: the last of those in use.
        """
        run, side = divmod(self._pieces_taken, self._sides)
        if self._is_lazy and run * self._run < min(block + self._run, self._blocks):
            piece = slice(run * self._run, (run + 1) * self._run)
            take(self.kv[side // self._per_layer, side % self._per_layer, piece])
            self._pieces_taken += 1

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
            uint32 or uint16 [num_blocks, KV, B, D] of each; on the CPU only, and not of int8.
        """
        bits = (
            self.kv[layer]
            .view(torch.uint32 if self.kv.element_size() == 4 else torch.uint16)
            .numpy()
        )
        return bits[0], bits[-1]

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
        for which, numbers in enumerate((key, value)[: self._per_layer]):
            if not self.has_scales:
                self.kv[layer, which][blocks, :, offsets] = numbers.to(self.kv.dtype)
                continue
            # Each head of each token has its own scale: no later token rounds an earlier one anew.
            rows = quantize_int8(numbers.flatten(0, 1))
            codes, scales = (part[layer, which] for part in self._coded)
            codes[blocks, :, offsets] = rows.codes.view(numbers.shape)
            scales[blocks, :, offsets] = rows.scales.view(numbers.shape[:2])

    @cached_property
    def _coded(self) -> tuple[Tensor, Tensor]:
        """Views of codes int8 [L, 2, N, KV, B, D] and scales float32 [L, 2, N, KV, B]."""
        *head, block_size, row = self.kv.shape
        codes = block_size * (row - _SCALE_BYTES)
        flat = self.kv.flatten(4)
        return (
            flat[..., :codes].view(*head, block_size, row - _SCALE_BYTES),
            flat[..., codes:].view(torch.float32),
        )

    def gather(self, layer: int, tables: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Read whole blocks in the order of block tables.

        Args:
            layer: its index.
            tables: int64 [..., M].
            dtype: type of the result.

        Returns:
            Keys and values, each [..., KV, M * B, D].
        """
        if self.has_scales:
            codes, scales = (part[layer][:, tables] for part in self._coded)
            found = codes.to(dtype) * scales[..., None].to(dtype)
        else:
            found = self.kv[layer][:, tables].to(dtype)
        found = found.transpose(-4, -3).flatten(-3, -2)
        return found[0], found[-1]

    def copy_blocks(self, copies: np.ndarray) -> None:
        """Copy whole blocks in all layers at once.

        Args:
            copies: int64 [C, 2] (from, to); every source is read before any target is written.
        """
        # Indexing on the right makes a copy first: a block may be source and target at once.
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

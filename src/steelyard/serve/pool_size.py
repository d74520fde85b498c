"""How much memory an engine's keys and values take when nobody says."""

import os
from pathlib import Path

import torch

from steelyard.nn.transformer import Transformer
from steelyard.serve.running.pool import slot_bytes

__all__ = ["chosen_pool_bytes", "free_bytes"]

_SEQUENCES = 32
_TOKENS = 1024
"""Prompt and output of a request that is longer than most: of a chat with some turns behind it."""
_BLOCK_TOKENS = 16


def chosen_pool_bytes(
    model: Transformer, dtype: torch.dtype, max_model_len: int = 0, *, free: int | None = None
) -> int:
    """Return the pool of an engine: 32 sequences of 1,024 tokens, as far as there is memory.

    Sequences count with the longest that the engine takes where that is less. The pool is at most
    half of the memory that packed weights leave free, but one sequence of a stated longest length,
    or a block, fits in any case.

    Args:
        model: a decoder; its weights are packed beside what is there now.
        dtype: type of keys and values.
        max_model_len: longest sequence, 0 for the model's positions.
        free: bytes of memory that are free; those of the model's device by default.

    Returns:
        Bytes. They are taken from the system when they are first written.
    """
    arch = model.architecture
    slot = slot_bytes(arch, dtype)
    weight = next(model.parameters())
    left = free_bytes(weight.device) if free is None else free
    packed = 0 if weight.is_cuda else sum(item.nbytes for item in model.parameters())
    longest = max_model_len or arch.max_positions
    blocks = -(-min(longest, _TOKENS) // _BLOCK_TOKENS)
    wanted = _SEQUENCES * blocks * _BLOCK_TOKENS * slot
    least = -(-max_model_len // _BLOCK_TOKENS) or 1
    return max(min(wanted, (left - packed) // 2), least * _BLOCK_TOKENS * slot)


def free_bytes(device: torch.device) -> int:
    """Return the memory that a process may still take.

    Args:
        device: where.

    Returns:
        Bytes; on the CPU what Linux counts as available and the container's limit leaves, elsewhere
        what is installed.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    info = Path("/proc/meminfo")
    for line in info.read_text().splitlines() if info.is_file() else ():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    limit, used = (Path(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    text = limit.read_text().strip() if limit.is_file() and used.is_file() else "max"
    # Pages of files count as used there, though they would make room.
    return min(free, int(text) - int(used.read_text())) if text.isdigit() else free

"""Peak memory of a training run, measured.

On Linux the kernel keeps the high-water mark of a process's resident memory (`VmHWM`) and resets it
on request (`5` into `/proc/self/clear_refs`), so no peak between two samples is missed. File pages
(libraries, memory-mapped shards) are not the run's memory and are taken out: peak = (high-water
mark - file pages at the end) - anonymous pages at the start.

The GNU C library keeps freed blocks for later, up to a third of what training needs, which makes
steps of small models up to 1.6x faster. So the first steps run with that turned off (every block
goes back to the system when freed) and give what the run needs; then every freed block is kept to
the end of the run, for fresh pages cost a step of 100 M parameters a sixteenth of its time, and
`resident_peak_bytes` tells what the process came to hold. On CUDA the allocator's own peak of live
blocks is used.
"""

import contextlib
import ctypes
import gc

import torch
import torch.nn.functional as F

from steelyard.resident import (
    anonymous_bytes,
    anonymous_peak_bytes,
    peak_resident_bytes,
    reset_peak,
)

__all__ = ["PeakMemory", "peak_resident_bytes", "warm_libraries"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4
_MAPPINGS = 1 << 16
"""Blocks that may have a mapping of their own: the library's default."""


class PeakMemory:
    """Measures from its making: strictly until `settle`, generously afterwards."""

    def __init__(self, device: str, held_bytes: int = 0) -> None:
        """Take the baseline.

        Args:
            device: torch device the run uses.
            held_bytes: what the run holds already, such as its model.
        """
        self._cuda = device if device.startswith("cuda") else ""
        self._needed: int | None = None
        gc.collect()
        if self._cuda:
            torch.cuda.synchronize(self._cuda)
            torch.cuda.reset_peak_memory_stats(self._cuda)
            self._baseline = torch.cuda.memory_allocated(self._cuda) - held_bytes
            return
        _keep_freed_blocks(False)
        reset_peak()
        self._baseline = anonymous_bytes() - held_bytes

    def settle(self) -> None:
        """End the strict phase.

        Note the peak and let the C library keep freed blocks. Later calls do nothing.
        """
        if self._needed is None:
            self._needed = self.resident_peak_bytes()
            _keep_freed_blocks(True)

    def release(self) -> None:
        """Give back what the C library kept, once the run has ended."""
        if not self._cuda:
            _keep_freed_blocks(False)
            _bound_kept_blocks()

    def peak_bytes(self) -> int:
        """Return the bytes the run needs at its peak beyond the baseline; never negative."""
        return self.resident_peak_bytes() if self._needed is None or self._cuda else self._needed

    def resident_peak_bytes(self) -> int:
        """Return the most bytes held beyond the baseline, kept free blocks included."""
        if self._cuda:
            return max(0, torch.cuda.max_memory_allocated(self._cuda) - self._baseline)
        return max(0, anonymous_peak_bytes() - self._baseline)


def warm_libraries(device: str) -> None:
    """Train a few numbers, so that libraries are loaded before memory is measured.

    The first optimizer of a process alone imports about 100 MB of modules, which are not the run's.
    """
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(64, 64, generator=generator).to(device).requires_grad_()
    optimizer = torch.optim.AdamW([weight], fused=True)
    hidden = (
        F.linear(torch.randn(4, 32, 64, generator=generator).to(device), weight)
        .unflatten(-1, (2, 32))
        .transpose(1, 2)
    )
    logits = F.scaled_dot_product_attention(hidden, hidden, hidden, is_causal=True).flatten(0, 2)
    F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64, device=device)).backward()
    torch.nn.utils.clip_grad_norm_([weight], 1.0)
    optimizer.step()


def _keep_freed_blocks(keep: bool) -> None:
    """Tell the GNU C library to keep all freed blocks, or none; do nothing elsewhere."""
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        # A block with a mapping of its own goes back when it is freed, whatever the other limits.
        library.mallopt(_M_MMAP_MAX, 0 if keep else _MAPPINGS)
        library.mallopt(_M_MMAP_THRESHOLD, (32 << 20) if keep else (64 << 10))
        library.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1 if keep else (64 << 10))
        if not keep:
            library.malloc_trim(0)


def _bound_kept_blocks() -> None:
    """Tell the GNU C library to keep small freed blocks alone."""
    # 32 MiB and twice that are the largest values the library's own heuristic reaches.
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        library.mallopt(_M_TRIM_THRESHOLD, 64 << 20)

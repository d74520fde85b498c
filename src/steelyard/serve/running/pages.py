"""Memory that is no longer read: pages of files that were mapped and copied."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["HUGE_PAGE_BYTES", "let_go", "share_heap", "take", "trim"]

HUGE_PAGE_BYTES = 2**21
"""Bytes of a huge page of x86-64 and of Arm with small pages of 4 KiB."""

_MADV_POPULATE_WRITE = 23
"""Linux 5.14: take the pages as a write to each would."""

_MADV_PAGEOUT = 21
"""Linux 5.4: take the pages now. What was written stays; what the file still has is read again."""

_M_ARENA_MAX = -8
"""Most heaps, as malloc.h of glibc numbers it; other libraries do not know the number."""


def let_go(tensor: Tensor) -> None:
    """Take the pages behind a mapped file's tensor out of memory; reading it brings them back.

    Nothing happens to other tensors, nor on systems that do not know the advice.

    Args:
        tensor: one on the CPU; contiguous.
    """
    start, size = tensor.data_ptr(), tensor.nbytes
    if not _is_mapped_file(start):
        return
    page = mmap.PAGESIZE
    first = -(-start // page) * page
    if (start + size) // page * page <= first:
        return
    library = ctypes.CDLL(None)
    library.madvise(
        ctypes.c_void_p(first),
        ctypes.c_size_t((start + size) // page * page - first),
        ctypes.c_int(_MADV_PAGEOUT),
    )


def take(tensor: Tensor) -> None:
    """Take the pages of a tensor's memory from the system, so that no later write waits for them.

    Nothing is written, and nothing happens on systems that do not know the advice.

    Args:
        tensor: one on the CPU; contiguous.
    """
    first = tensor.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    ctypes.CDLL(None).madvise(
        ctypes.c_void_p(first),
        ctypes.c_size_t(tensor.data_ptr() + tensor.nbytes - first),
        ctypes.c_int(_MADV_POPULATE_WRITE),
    )


def share_heap() -> None:
    """Let all threads of this process take memory from one heap, where the C library has several.

    What threads free at the end of a heap of their own, `trim` cannot give back (glibc): after
    packing, tens of megabytes.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(ctypes.c_int(_M_ARENA_MAX), ctypes.c_int(1))


def trim() -> None:
    """Return freed memory to the system, where the C library keeps it (glibc)."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(ctypes.c_size_t(0))


def _is_mapped_file(address: int) -> bool:
    """Whether an address lies in a map of a file: other memory would go to the swap device."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return False
    for line in lines:
        span, _, _, _, inode, *_ = line.split(maxsplit=5)
        first, _, last = span.partition("-")
        if int(first, 16) <= address < int(last, 16):
            return inode != "0"
    return False

"""Reads that bypass the page cache: aligned buffers, files opened for them, calls without the GIL.

The calls to the system are made from compiled code, so that a thread that reads thousands of blocks
never takes Python's lock, and no compiler is needed.
"""

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from steelyard.errors import BackendError, DataError
from steelyard.jit import njit

__all__ = [
    "PAGE_BYTES",
    "DirectFile",
    "aligned_bytes",
    "monotonic_ns",
    "read_at",
    "read_blocks",
    "sleep_until",
]

PAGE_BYTES = 4096
_MONOTONIC = 1
_NS = 1_000_000_000
_SPIN_NS = 60_000
"""Shorter waits turn in place: a sleep ends up to as much too late."""

_pread = types.ExternalFunction(
    "pread", types.int64(types.int32, types.uintp, types.uint64, types.int64)
)
_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.uintp))
_nanosleep = types.ExternalFunction("nanosleep", types.int32(types.uintp, types.uintp))
_sched_yield = types.ExternalFunction("sched_yield", types.int32())


def aligned_bytes(num_bytes: int) -> NDArray[np.uint8]:
    """Return memory that begins on a page, as direct reads need it.

    Args:
        num_bytes: 1 or more.

    Returns:
        uint8 [num_bytes], zeros.
    """
    return np.frombuffer(mmap.mmap(-1, num_bytes), np.uint8)


@dataclass(slots=True)
class DirectFile:
    """A file that is read past the page cache, where its file system allows that.

    Attributes:
        path: the file.
        handle: its descriptor.
        is_direct: whether reads bypass the page cache.
        note: why they do not; empty where they do.
    """

    path: Path
    handle: int
    is_direct: bool
    note: str = ""

    @classmethod
    def open(
        cls, path: Path, *, align: int = PAGE_BYTES, direct: bool | None = None
    ) -> "DirectFile":
        """Open a file for reading.

        Args:
            path: the file.
            align: bytes of which offsets and sizes of reads are multiples.
            direct: True refuses where the page cache cannot be bypassed, False does not try; by
                default it is tried.

        Returns:
            The open file.

        Raises:
            DataError: the file cannot be opened.
            BackendError: `direct` was asked for where it is not possible.
        """
        note = "the page cache was asked for"
        if direct is not False:
            handle, note = _opened_direct(path, align)
            if handle >= 0:
                return cls(path, handle, True)
            if direct:
                raise BackendError(
                    f"{path} cannot be read past the page cache: {note}",
                    hint="put it on a local disk, or leave `direct` out",
                )
        try:
            return cls(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC), False, note)
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from error

    def drop_cached(self) -> None:
        """Ask the system to forget what its page cache holds of the file: a request, no promise."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.handle, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the file."""
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1


def _opened_direct(path: Path, align: int) -> tuple[int, str]:
    """Return a descriptor for direct reads and no word, or -1 and why there is none."""
    flag = getattr(os, "O_DIRECT", 0)
    if not flag:
        return -1, "this system has no O_DIRECT"
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flag)
    except FileNotFoundError as error:
        raise DataError(f"no such file: {path}") from error
    except OSError as error:
        return -1, f"O_DIRECT is refused ({error.strerror})"
    try:
        # Some file systems open the file and refuse the first read, or reads of small blocks.
        os.preadv(handle, [mmap.mmap(-1, align)], 0)
    except OSError as error:
        os.close(handle)
        return -1, f"direct reads of {align} bytes are refused ({error.strerror})"
    return handle, ""


@njit()
def read_at(handle: int, address: Any, size: int, offset: int) -> Any:
    """Read bytes of a file into memory.

    Args:
        handle: descriptor.
        address: where they go.
        size: bytes that are wanted.
        offset: the first byte in the file.

    Returns:
        How many came, fewer at the end or after an error.
    """
    done = 0
    while done < size:
        count = _pread(handle, address + done, size - done, offset + done)
        if count <= 0:
            break
        done += count
    return done


@njit()
def read_blocks(handle: int, buffer: np.ndarray, offsets: np.ndarray, first: int, step: int) -> Any:
    """Read every `step`-th of some blocks into one buffer, one after the other.

    Args:
        handle: descriptor.
        buffer: uint8 of a block, page-aligned.
        offsets: first byte of each block.
        first: the first of the blocks that are read.
        step: from one to the next.

    Returns:
        Bytes that were read.
    """
    total = 0
    for place in range(first, len(offsets), step):
        total += read_at(handle, buffer.ctypes.data, len(buffer), offsets[place])
    return total


@njit()
def monotonic_ns(room: np.ndarray) -> Any:
    """Return nanoseconds of the clock of `time.monotonic_ns`.

    Args:
        room: int64 [2], written over.

    Returns:
        Nanoseconds.
    """
    _clock_gettime(_MONOTONIC, room.ctypes.data)
    return room[0] * _NS + room[1]


@njit()
def sleep_until(moment_ns: int, room: np.ndarray) -> None:
    """Wait until a moment, without Python's lock; the last microseconds turn in place.

    Args:
        moment_ns: nanoseconds of the clock of `monotonic_ns`.
        room: int64 [2], written over.
    """
    while True:
        left = moment_ns - monotonic_ns(room)
        if left <= 0:
            return
        if left > _SPIN_NS:
            room[0], room[1] = 0, left - _SPIN_NS
            if left > _NS:
                room[1] = _NS - _SPIN_NS
            _nanosleep(room.ctypes.data, 0)
        else:
            _sched_yield()

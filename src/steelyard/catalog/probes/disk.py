"""Sequential disk rates of a temporary file, past the page cache where the system allows it."""

import mmap
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from steelyard.catalog.probes.timing import Clock, Samples, Timed, host_clock

__all__ = ["disk_rates"]

_BLOCK_BYTES = 4 * 2**20
# Memory from mmap is aligned to pages, which direct access requires.
_DIRECT = getattr(os, "O_DIRECT", 0)


def disk_rates(
    folder: Path, *, quick: bool, clock: Clock = host_clock
) -> tuple[dict[str, Timed], bool]:
    """Write and read a temporary file in `folder`, which is removed again.

    The file is 32 MiB when quick, else 128 MiB, and at most a twentieth of the free space; with
    less than 4 MiB of that, or without permission to write, nothing is measured.

    Args:
        folder: existing folder on the disk that is measured.
        quick: smaller file, fewer passes.
        clock: times one pass.

    Returns:
        Samples of both directions by the field of the calibration, flush included in writing, none
        when nothing could be written; and whether both bypassed the page cache.
    """
    wanted = (32 if quick else 128) * 2**20
    blocks = min(wanted, shutil.disk_usage(folder).free // 20) // _BLOCK_BYTES
    if blocks == 0 or not os.access(folder, os.W_OK):
        return {}, False
    with (
        tempfile.TemporaryDirectory(prefix=".calibrate-", dir=folder) as temporary,
        mmap.mmap(-1, _BLOCK_BYTES) as block,
    ):
        # Random bytes: a disk that compresses or deduplicates would store zeros at no cost.
        block.write(os.urandom(_BLOCK_BYTES))
        path = Path(temporary) / "probe"
        flag = _DIRECT if _DIRECT and _accepts_direct(path, block) else 0
        passes, most_s = (3, 1.5) if quick else (5, 5.0)
        write = _passes(lambda: _write(path, block, blocks, flag), clock, passes, most_s)
        read = _passes(lambda: _read(path, block, blocks, flag), clock, passes, most_s)
    size = float(blocks * _BLOCK_BYTES)
    found = {"disk_write_bytes_per_s": (write, size), "disk_read_bytes_per_s": (read, size)}
    return found, bool(flag)


def _passes(run: Callable[[], None], clock: Clock, passes: int, most_s: float) -> Samples:
    """Time a few passes, at least one, stopping when they take too long."""
    seconds: list[float] = []
    while not seconds or (len(seconds) < passes and sum(seconds) < most_s):
        seconds.append(clock(run, 1))
    return Samples(tuple(seconds))


def _accepts_direct(path: Path, block: mmap.mmap) -> bool:
    """Try one direct write; some file systems refuse it."""
    try:
        _write(path, block, 1, _DIRECT)
    except OSError:
        return False
    return True


def _write(path: Path, block: mmap.mmap, blocks: int, flag: int) -> None:
    """Write the whole file and flush it to the device."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | flag, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        for _ in range(blocks):
            file.write(block)
        os.fsync(descriptor)


def _read(path: Path, block: mmap.mmap, blocks: int, flag: int) -> None:
    """Read the whole file."""
    descriptor = os.open(path, os.O_RDONLY | flag)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        # Without direct access the page cache is asked to forget the file: a request, no promise.
        if not flag and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        for _ in range(blocks):
            file.readinto(block)

"""Sequential disk rates through a bounded temporary file, past the page cache where the system allows."""

import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from steelyard.catalog.probes.timing import Samples

__all__ = ["DiskRates", "disk_rates"]

_BLOCK_BYTES = 4 * 2**20
_DIRECT = getattr(os, "O_DIRECT", 0)


@dataclass(frozen=True, slots=True)
class DiskRates:
    """Timed passes over one file.

    Attributes:
        write: seconds per pass, flush included; None when nothing could be written.
        read: seconds per pass; None when nothing could be written.
        size_bytes: of the file.
        direct: both passes bypassed the page cache.
    """

    write: Samples | None
    read: Samples | None
    size_bytes: int
    direct: bool


def disk_rates(folder: Path, *, quick: bool) -> DiskRates:
    """Write and read a temporary file in `folder`, which is removed again.

    The file is 32 MiB when quick, else 128 MiB, and at most a twentieth of the free space; with
    less than 4 MiB of that, or without permission to write, nothing is measured.

    Args:
        folder: an existing folder on the disk in question.
        quick: smaller file, fewer passes.

    Returns:
        Samples of both directions.
    """
    blocks = (
        min((32 if quick else 128) * 2**20, shutil.disk_usage(folder).free // 20) // _BLOCK_BYTES
    )
    if blocks == 0 or not os.access(folder, os.W_OK):
        return DiskRates(None, None, 0, False)
    with (
        tempfile.TemporaryDirectory(prefix=".calibrate-", dir=folder) as temporary,
        mmap.mmap(-1, _BLOCK_BYTES) as block,
    ):
        block.write(os.urandom(_BLOCK_BYTES))
        path = Path(temporary) / "probe"
        flag = _DIRECT if _DIRECT and _accepts_direct(path, block) else 0
        passes, most_s = (3, 1.5) if quick else (5, 5.0)
        write = _passes(lambda: _write(path, block, blocks, flag), passes, most_s)
        read = _passes(lambda: _read(path, block, blocks, flag), passes, most_s)
    return DiskRates(write, read, blocks * _BLOCK_BYTES, bool(flag))


def _passes(run: Callable[[], None], passes: int, most_s: float) -> Samples:
    """Time a few passes, at least one, stopping when they take too long."""
    seconds: list[float] = []
    while not seconds or (len(seconds) < passes and sum(seconds) < most_s):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
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
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | flag, 0o600)
    try:
        for _ in range(blocks):
            os.write(handle, block)
        os.fsync(handle)
    finally:
        os.close(handle)


def _read(path: Path, block: mmap.mmap, blocks: int, flag: int) -> None:
    """Read the whole file; without direct access the page cache is asked to forget it first."""
    handle = os.open(path, os.O_RDONLY | flag)
    try:
        if not flag and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        for _ in range(blocks):
            os.readv(handle, [block])
    finally:
        os.close(handle)

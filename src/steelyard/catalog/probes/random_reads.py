"""Random reads of 4 KiB over queue depths, past the page cache where the system allows it."""

import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from steelyard.catalog.calibration import RandomReads
from steelyard.catalog.probes.timing import Clock, Samples, host_clock
from steelyard.direct_io import PAGE_BYTES, DirectFile, aligned_bytes, read_blocks

__all__ = ["random_read_rates"]

_DEPTHS = (1, 4, 16, 32)
_CHUNK_BYTES = 4 * 2**20


def random_read_rates(
    folder: Path, *, quick: bool, clock: Clock = host_clock
) -> tuple[RandomReads, ...]:
    """Read random blocks of a temporary file in `folder`, which is removed again.

    The file is 32 MiB when quick, else 256 MiB, and at most a twentieth of the free space. Threads
    without Python's lock keep as many reads under way as the depth says.

    Args:
        folder: existing folder on the disk that is measured.
        quick: smaller file, fewer reads.
        clock: times one pass.

    Returns:
        A rate for each depth; none where the folder cannot be written, or only through the page
        cache, whose rates say nothing of the disk.
    """
    wanted = (32 if quick else 256) * 2**20
    chunks = min(wanted, shutil.disk_usage(folder).free // 20) // _CHUNK_BYTES
    if not chunks or not os.access(folder, os.W_OK):
        return ()
    with tempfile.TemporaryDirectory(prefix=".calibrate-", dir=folder) as temporary:
        path = Path(temporary) / "probe"
        with path.open("wb") as file:
            for _ in range(chunks):
                file.write(os.urandom(_CHUNK_BYTES))
            file.flush()
            os.fsync(file.fileno())
        source = DirectFile.open(path)
        try:
            if not source.is_direct:
                return ()
            blocks = chunks * _CHUNK_BYTES // PAGE_BYTES
            return tuple(_rate(source, blocks, depth, quick, clock) for depth in _DEPTHS)
        finally:
            source.close()


def _rate(source: DirectFile, blocks: int, depth: int, quick: bool, clock: Clock) -> RandomReads:
    """Time a few passes at one depth."""
    count = (60 if quick else 250) * depth
    rng = np.random.default_rng(depth)
    buffers = [aligned_bytes(PAGE_BYTES) for _ in range(depth)]
    seconds: list[float] = []
    with ThreadPoolExecutor(depth, thread_name_prefix="probe") as threads:
        for turn in range(3 if quick else 4):
            offsets = rng.integers(0, blocks, count) * PAGE_BYTES

            def work(offsets: np.ndarray = offsets) -> None:
                jobs = [
                    threads.submit(
                        read_blocks, source.handle, buffers[place], offsets, place, depth
                    )
                    for place in range(depth)
                ]
                for job in jobs:
                    job.result()

            took_s = clock(work, 1)
            # The first pass loads the kernel and starts the threads.
            seconds += [took_s] if turn else []
    found = Samples(tuple(seconds))
    return RandomReads(
        depth=depth, block_bytes=PAGE_BYTES, reads_per_s=found.rate(count), spread=found.spread
    )

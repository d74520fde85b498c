"""A reader that is as slow as a named drive, so that any machine can play any other."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from steelyard.catalog.storage import StorageTier
from steelyard.cost.overlap import read_busy_s, read_ready_s
from steelyard.errors import ConfigError
from steelyard.retrieve.multivector.jobs import ScoreJob
from steelyard.retrieve.multivector.native import native_scores
from steelyard.retrieve.multivector.readers import MappedReader
from steelyard.retrieve.multivector.store import MultiVectorStore

__all__ = ["ThrottledReader"]


class ThrottledReader:
    """Reads that are done when a drive of some latency and rates would have done them.

    The bytes come from a mapped file that is touched whole before; each document is scored no
    sooner than the drive would have brought it. A drive faster than memory cannot be played.
    Documents that are dropped before the drive would have been asked for them take none of its
    time; without native code they still do.

    Attributes:
        drive: what is played.
        depth: reads under way at once.
    """

    name = "throttled"

    def __init__(self, store: MultiVectorStore, drive: StorageTier, *, depth: int = 32) -> None:
        """Map the file.

        Args:
            store: the store.
            drive: latency, rate of bytes, and rate of random reads.
            depth: reads under way at once.

        Raises:
            ConfigError: the drive has no latency or rate, or the depth is below 1.
            DataError: the file cannot be mapped.
        """
        if not (drive.first_byte_s > 0 and drive.bytes_per_s > 0) or depth < 1:
            raise ConfigError(
                f"{drive.name} at {depth} reads at once: latency {drive.first_byte_s:g} s, "
                f"{drive.bytes_per_s:g} bytes/s",
                hint="name a drive with both, such as pm9a3, and a depth of 1 or more",
            )
        self.drive, self.depth = drive, depth
        self.note = f"plays {drive.name}: not the speed of this machine's drive"
        self._source = MappedReader(store)
        self._source.fill()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="score-throttled")

    def score(self, job: ScoreJob) -> None:
        """Fill a job in; returns when it is done."""
        native, raw = native_scores(), self._source.raw
        if native is None:
            ready_s = read_ready_s(job.sizes, self.drive, self.depth)
            job.score_compiled(raw, (ready_s * 1e9).astype(np.int64), time.monotonic_ns())
            return
        busy_ns = (read_busy_s(job.sizes, self.drive) * 1e9).astype(np.int64)
        native.score_memory(job, raw, busy_ns, round(self.drive.first_byte_s * 1e9), self.depth)

    def start(self, job: ScoreJob) -> "Future[Any]":
        """Begin to fill a job in."""
        return self._thread.submit(self.score, job)

    def close(self) -> None:
        """End the thread and give the map back."""
        self._thread.shutdown()
        self._source.close()

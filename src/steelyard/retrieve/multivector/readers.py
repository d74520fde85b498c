"""Where documents are read from while they are scored: memory, a mapped file, or a drive."""

import mmap
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from steelyard.direct_io import PAGE_BYTES, DirectFile, aligned_bytes
from steelyard.errors import CapacityError, ConfigError, DataError
from steelyard.retrieve.multivector.jobs import ScoreJob, work_room
from steelyard.retrieve.multivector.kernels import score_documents
from steelyard.retrieve.multivector.native import native_scores
from steelyard.retrieve.multivector.store import MultiVectorStore

__all__ = [
    "MappedReader",
    "MemoryReader",
    "ReaderKind",
    "RecordReader",
    "ThreadedReader",
    "make_reader",
]

ReaderKind = Literal["threads", "mmap", "memory"]


_POPULATE_READ = 22
"""Linux's MADV_POPULATE_READ."""
_AT_ONCE = np.empty(0, np.int64)


class RecordReader(Protocol):
    """Reads documents and scores them as they arrive."""

    name: str
    note: str
    """What a user should know of how it reads; empty where all is as asked."""

    def score(self, job: ScoreJob) -> None:
        """Fill a job in; returns when it is done."""
        ...

    def start(self, job: ScoreJob) -> "Future[Any]":
        """Begin to fill a job in, beside the caller's own work."""
        ...

    def close(self) -> None:
        """Close files and end threads."""
        ...


class _InBackground(ABC):
    """Scores in one thread of its own when asked to."""

    def __init__(self, name: str) -> None:
        """Make the thread when it is first needed.

        Args:
            name: of the thread.
        """
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    @abstractmethod
    def score(self, job: ScoreJob) -> None:
        """Fill a job in; returns when it is done."""

    def start(self, job: ScoreJob) -> "Future[Any]":
        """Begin to fill a job in."""
        return self._thread.submit(self.score, job)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()


def _score_there(raw: NDArray[np.uint8], job: ScoreJob) -> None:
    """Score documents that lie in memory or in a mapped file."""
    native = native_scores()
    if native is None:
        job.score_compiled(raw)
    else:
        native.score_memory(job, raw)


class MemoryReader(_InBackground):
    """All records in memory: the fastest, and the largest."""

    name = "memory"
    note = ""

    def __init__(self, store: MultiVectorStore) -> None:
        """Read all records.

        Args:
            store: the store.

        Raises:
            CapacityError: they do not fit.
            DataError: they cannot be read.
        """
        super().__init__("score-memory")
        size = store.records.stat().st_size
        try:
            self.raw = np.empty(size, np.uint8)
            with store.records.open("rb") as file:
                done = file.readinto(self.raw.data)
        except MemoryError as error:
            raise CapacityError(
                f"no memory for {size / 1e9:.1f} GB of records", hint="take the reader threads"
            ) from error
        except OSError as error:
            raise DataError(f"cannot read {store.records}: {error.strerror}") from error
        if done != size:
            raise DataError(f"{store.records} ends after {done:,} of {size:,} bytes")

    def score(self, job: ScoreJob) -> None:
        """Fill a job in; returns when it is done."""
        _score_there(self.raw, job)


class MappedReader(_InBackground):
    """Records in a mapped file: pages come as they are touched, one after the other.

    Attributes:
        raw: the mapped file.
    """

    name = "mmap"

    def __init__(self, store: MultiVectorStore, *, random: bool = True) -> None:
        """Map the file.

        Args:
            store: the store.
            random: tell the system not to read around what is touched; without it most of what is
                read was never asked for.

        Raises:
            DataError: the file cannot be mapped.
        """
        super().__init__("score-mapped")
        self.note = "the page cache takes memory that is counted to nobody"
        try:
            with store.records.open("rb") as file:
                # Nothing is written; but a map that may be written to is the same type for the
                # kernel as memory, which then is compiled once.
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise DataError(f"cannot map {store.records}: {error}") from error
        if random and hasattr(mmap, "MADV_RANDOM"):
            self._map.madvise(mmap.MADV_RANDOM)
        self.raw = np.frombuffer(self._map, np.uint8)

    def fill(self) -> None:
        """Touch all pages, so that no search waits for one: for measurements, not for memory."""
        try:
            self._map.madvise(_POPULATE_READ)
        except (OSError, ValueError):
            # Kernels before 5.14 do not know it, and other systems neither.
            self.raw[::4096].max(initial=0)

    def close(self) -> None:
        """End the thread and give the map back."""
        super().close()
        self.raw = np.empty(0, np.uint8)
        self._map.close()

    def forget(self, store: MultiVectorStore) -> None:
        """Drop all pages, so that the next search finds the file cold."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)
        file = DirectFile.open(store.records, direct=False)
        file.drop_cached()
        file.close()

    def score(self, job: ScoreJob) -> None:
        """Fill a job in; returns when it is done."""
        _score_there(self.raw, job)


class ThreadedReader:
    """Direct reads, as many at once as there are buffers; each document is scored as it comes.

    Where the system reads asynchronously, one thread hands many reads over in one call and scores
    what has come; otherwise as many threads as buffers each read and score. None of them takes
    Python's lock between the first document and the last.

    Attributes:
        depth: reads under way at once.
        is_direct: whether reads bypass the page cache.
        is_queued: whether the system reads asynchronously.
        note: why they do not bypass it.
    """

    name = "threads"

    def __init__(
        self, store: MultiVectorStore, *, depth: int = 32, direct: bool | None = None
    ) -> None:
        """Open the file and set buffers aside.

        Args:
            store: the store.
            depth: reads under way at once.
            direct: as of `DirectFile.open`.

        Raises:
            ConfigError: the depth is out of range.
            DataError: the file cannot be opened.
            BackendError: direct reads were asked for where there are none.
        """
        if not 1 <= depth <= 256:
            raise ConfigError(f"{depth} reads at once", hint="give 1 to 256")
        self._file = DirectFile.open(store.records, align=store.layout.block_bytes, direct=direct)
        self.depth, self.is_direct = depth, self._file.is_direct
        self.note = "" if self.is_direct else f"reads go through the page cache: {self._file.note}"
        # Each buffer begins on a page: direct reads need that.
        stride = -(-store.longest_bytes // PAGE_BYTES) * PAGE_BYTES
        self._room = aligned_bytes(depth * stride)
        self._buffers = self._room.reshape(depth, stride)
        self._native = native_scores()
        self._queue = self._native.open_reads(depth) if self._native else 0
        self.is_queued = self._queue > 0
        self._threads = ThreadPoolExecutor(depth, thread_name_prefix="read")
        self._leader = ThreadPoolExecutor(1, thread_name_prefix="read-leader")

    def score(self, job: ScoreJob) -> None:
        """Fill a job in; returns when it is done."""
        if self._native and self.is_queued:
            self._native.score_file(job, self._file.handle, self._queue, self._room, self.depth)
            return
        width = min(self.depth, len(job))
        arrays, columns = job.arrays(), job.asked.columns.shape[1]
        work = partial(self._part, width, job.store, columns, arrays)
        others = [self._threads.submit(work, first) for first in range(1, width)]
        if width:
            work(0)
        for other in others:
            other.result()

    def _part(
        self,
        step: int,
        store: MultiVectorStore,
        columns: int,
        arrays: tuple[Any, Any, Any, Any],
        first: int,
    ) -> None:
        """Read and score every `step`-th document; buffers belong to places, not threads."""
        room = work_room(store, columns)
        buffer = self._buffers[first]
        score_documents(buffer, self._file.handle, first, step, 0, _AT_ONCE, *arrays, room)

    def start(self, job: ScoreJob) -> "Future[Any]":
        """Begin to fill a job in; one job at a time."""
        return self._leader.submit(self.score, job)

    def close(self) -> None:
        """End the threads and close the file."""
        self._leader.shutdown()
        self._threads.shutdown()
        if self._native and self.is_queued:
            self._native.close_reads(self._queue)
            self.is_queued = False
        self._file.close()


def make_reader(
    kind: ReaderKind | RecordReader, store: MultiVectorStore, *, depth: int = 32
) -> RecordReader:
    """Return a reader by its name.

    Args:
        kind: "threads", "mmap" or "memory", or a reader.
        store: the store.
        depth: reads under way at once, of "threads".

    Returns:
        The reader.

    Raises:
        ConfigError: there is none of that name.
    """
    if not isinstance(kind, str):
        return kind
    if kind == "threads":
        return ThreadedReader(store, depth=depth)
    if kind == "mmap":
        return MappedReader(store)
    if kind == "memory":
        return MemoryReader(store)
    raise ConfigError(f"the reader {kind!r} is not known", hint="give threads, mmap or memory")

"""Transfers of blocks between a pool in memory and a second tier, in own threads."""

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

import numpy as np

from steelyard.data.tiers.links import LinkModel
from steelyard.data.tiers.stores import BlockStore
from steelyard.data.tiers.transfers import Tiers, Transfer

__all__ = ["BlockMover", "TransferStats"]

_NUM_THREADS = 2
"""Threads per direction; one packs its buffer while the other waits for the device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferStats:
    """What was moved in one direction.

    Attributes:
        transfers: landed or failed.
        copies: copies in memory, or calls to the system, that they took.
        num_bytes: bytes of blocks moved.
        busy_s: seconds that threads spent in them, summed.
        failures: transfers that failed.
    """

    transfers: int = 0
    copies: int = 0
    num_bytes: int = 0
    busy_s: float = 0.0
    failures: int = 0

    @property
    def bytes_per_s(self) -> float:
        """Bytes per second of one thread; 0 before the first."""
        return self.num_bytes / self.busy_s if self.busy_s else 0.0


class BlockMover(Tiers):
    """Copies blocks between a pool in memory and a store, in threads without the interpreter lock.

    A transfer's runs of blocks move one copy per run. Incoming and outgoing transfers have threads
    of their own, so that a request is not kept waiting by those that leave. The order among
    transfers is free; the `Swapper` never lets two touch the same block.

    Attributes:
        store: the second tier.
        grouped: whether runs of blocks move at once.
        link: emulated link, or None.
        took_s: seconds from the submission of each transfer of the latest `landed` to its end.

    Source: Shen et al. 2024 (arXiv 2411.18424), multithreading swap manager.
    """

    def __init__(
        self,
        pool: np.ndarray,
        store: BlockStore,
        *,
        grouped: bool = True,
        link: LinkModel | None = None,
    ) -> None:
        """Start the threads.

        Args:
            pool: uint8 [num_blocks, pieces, B], any strides.
            store: the second tier, shaped for it.
            grouped: whether runs of blocks move at once; else every block's keys and values of
                every layer move on their own, the baseline.
            link: emulated slower link; None for the machine's own speed.
        """
        super().__init__()
        self.store = store
        self.grouped = grouped
        self.link = link
        self._pool = pool
        self._threads = {
            name: ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix=f"swap-{name}")
            for name in ("out", "in")
        }
        self._stats = {"out": TransferStats(), "in": TransferStats()}
        self._lock = threading.Lock()
        self._under_way: dict[int, Future[float]] = {}

    @property
    def num_under_way(self) -> int:
        """Transfers submitted and not yet reported by `landed` or `failed`."""
        return len(self._under_way)

    def stats(self, direction: str) -> TransferStats:
        """Return what was moved "out" of or "in" to the pool so far."""
        with self._lock:
            return self._stats[direction]

    def submit(self, transfers: Iterable[Transfer]) -> None:
        """Start transfers; the steps that write the blocks they read must have run."""
        for transfer in transfers:
            self._under_way[transfer.id] = self._threads[transfer.direction].submit(
                self._run, transfer, time.perf_counter()
            )

    def landed(self) -> list[int]:
        """Return the transfers that are done, each once."""
        ended = self._take(lambda future: future.exception() is None)
        self.took_s = {name: future.result() for name, future in ended.items()}
        return list(ended)

    def failed(self) -> list[int]:
        """Return the transfers that did not work, each once; `stats` counts them."""
        return list(self._take(lambda future: future.exception() is not None))

    def wait(self, transfer_ids: Iterable[int] | None = None) -> None:
        """Wait for transfers.

        Args:
            transfer_ids: transfers to wait for; None for at least one of those under way.
        """
        if transfer_ids is None:
            wait(self._under_way.values(), return_when="FIRST_COMPLETED")
        else:
            wait([self._under_way[name] for name in transfer_ids if name in self._under_way])

    def close(self) -> None:
        """Wait for what is under way, end the threads and close the store."""
        for threads in self._threads.values():
            threads.shutdown()
        self.store.close()

    def _take(self, fits: Callable[[Future[float]], bool]) -> dict[int, Future[float]]:
        """Take ended transfers that fit off the list."""
        ended = {
            name: future
            for name, future in self._under_way.items()
            if future.done() and fits(future)
        }
        for name in ended:
            del self._under_way[name]
        return ended

    def _run(self, transfer: Transfer, submitted_s: float) -> float:
        """Carry one transfer out and return the seconds since its submission."""
        start = time.perf_counter()
        copies = 0
        size = 0
        failures = 1  # until all runs are copied, so that whatever is raised counts
        try:
            for device, host, count in transfer.runs.tolist():
                copies += self._copy(transfer.direction, device, host, count)
                size += self._pool[device : device + count].nbytes
            failures = 0
            return time.perf_counter() - submitted_s
        finally:
            with self._lock:
                old = self._stats[transfer.direction]
                self._stats[transfer.direction] = replace(
                    old,
                    transfers=old.transfers + 1,
                    copies=old.copies + copies,
                    num_bytes=old.num_bytes + size,
                    busy_s=old.busy_s + time.perf_counter() - start,
                    failures=old.failures + failures,
                )

    def _copy(self, direction: str, device: int, host: int, count: int) -> int:
        """Copy a run of blocks and return the number of copies."""
        blocks = self._pool[device : device + count]
        move = self.store.put if direction == "out" else self.store.get
        if self.grouped:
            return self._timed(move, host, 0, blocks)
        pieces = range(blocks.shape[1])
        return sum(
            self._timed(move, host + row, piece, blocks[row : row + 1, piece : piece + 1])
            for row in range(count)
            for piece in pieces
        )

    def _timed(
        self,
        move: Callable[[int, int, np.ndarray], int],
        block: int,
        piece: int,
        pieces: np.ndarray,
    ) -> int:
        """Make one copy; with an emulated link, let at least its time pass."""
        if self.link is None:
            return move(block, piece, pieces)
        start = time.perf_counter()
        copies = move(block, piece, pieces)
        time.sleep(max(self.link.copy_s(pieces.nbytes) - (time.perf_counter() - start), 0.0))
        return copies

"""Processes that train the cells of a study: as many as run at once, used again and again."""

import queue
import threading
from pathlib import Path
from types import TracebackType
from typing import Protocol

from steelyard.data.shards import TokenShards
from steelyard.train.config import TrainConfig
from steelyard.train.result import OnStep, TrainResult
from steelyard.train.worker import TrainProcess

__all__ = ["CellTrainer", "TrainProcesses"]


class CellTrainer(Protocol):
    """What trains a cell of a study: processes apart, or this one."""

    def train(
        self,
        config: TrainConfig,
        directory: Path,
        *,
        pool: str = "",
        start_from: Path | None = None,
        on_step: OnStep | None = None,
    ) -> TrainResult:
        """Train one run; arguments, result and errors of `TrainProcesses.train`."""
        ...


class TrainProcesses:
    """Trains in whichever process is idle; may be called by several threads."""

    def __init__(self, data: Path) -> None:
        """Start nothing yet.

        Args:
            data: folder of the token shards that runs train on.
        """
        self._data = data
        self._lock = threading.Lock()
        self._checked: set[str] = set()
        self._idle: queue.LifoQueue[TrainProcess] = queue.LifoQueue()

    def __enter__(self) -> "TrainProcesses":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while not self._idle.empty():
            self._idle.get().close()

    def warm(self) -> None:
        """Start one more process, and wait until it is ready.

        Raises:
            BackendError: it died before that.
        """
        process = TrainProcess()
        try:
            process.start()
        finally:
            self._idle.put(process)

    def train(
        self,
        config: TrainConfig,
        directory: Path,
        *,
        pool: str = "",
        start_from: Path | None = None,
        on_step: OnStep | None = None,
    ) -> TrainResult:
        """Train one run in a process of its own.

        Args:
            config: the run.
            directory: its folder.
            pool: folder below the data's that it trains on; empty for the data's own.
            start_from: tensors file of a checkpoint to begin with.
            on_step: called after each step; an exception of it ends the run.

        Returns:
            Its result.

        Raises:
            SteelyardError: what the run met, of its class.
        """
        self._check(pool)
        try:
            process = self._idle.get_nowait()
        except queue.Empty:
            process = TrainProcess()
        try:
            return process.train(
                config,
                self._data / pool,
                directory,
                start_from=start_from,
                on_step=on_step,
                is_checked=True,
            )
        finally:
            self._idle.put(process)

    def _check(self, pool: str) -> None:
        """Compare shards with their hashes once, and not again in every run."""
        with self._lock:
            if pool not in self._checked:
                TokenShards(self._data / pool)
                self._checked.add(pool)

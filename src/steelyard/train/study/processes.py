"""Processes that train the cells of a study: as many as run at once, used again and again."""

import queue
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from steelyard.train.config import TrainConfig
from steelyard.train.result import Progress, TrainResult
from steelyard.train.worker import TrainProcess

__all__ = ["TrainProcesses"]


class TrainProcesses:
    """Trains in whichever process is idle; may be called by several threads."""

    def __init__(self, data: Path) -> None:
        """Start nothing yet.

        Args:
            data: folder of token shards that all runs train on.
        """
        self._data = data
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
        start_from: Path | None = None,
        on_step: Callable[[Progress], None] | None = None,
    ) -> TrainResult:
        """Train one run in a process of its own.

        Args:
            config: the run.
            directory: its folder.
            start_from: tensors file of a checkpoint to begin with.
            on_step: called after each step; an exception of it ends the run.

        Returns:
            Its result.

        Raises:
            SteelyardError: what the run met, of its class.
        """
        try:
            process = self._idle.get_nowait()
        except queue.Empty:
            process = TrainProcess()
        try:
            return process.train(
                config, self._data, directory, start_from=start_from, on_step=on_step
            )
        finally:
            self._idle.put(process)

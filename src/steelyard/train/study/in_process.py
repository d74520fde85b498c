"""Cells trained in this process, one after another: nothing is started, nothing runs beside it."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import ParamSpec, TypeVar

from steelyard.data.shards import TokenShards
from steelyard.train.config import TrainConfig
from steelyard.train.result import OnStep, Progress, TrainResult

__all__ = ["InProcess"]

P = ParamSpec("P")
T = TypeVar("T")


class InProcess(Executor):
    """Trains the cells of a study here, each when it is handed in.

    What `TrainProcesses` and a pool of threads are to a study that runs several cells at once.
    """

    def __init__(
        self, data: Path, *, on_step: Callable[[TrainConfig, Progress], None] | None = None
    ) -> None:
        """Read nothing yet.

        Args:
            data: folder of the token shards that runs train on.
            on_step: called after each step of any run, with the run's recipe.
        """
        self._data = Path(data)
        self._on_step = on_step
        self._shards: dict[str, TokenShards] = {}

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
        # Opening shards compares them with their hashes: once, and not again in every run.
        if pool not in self._shards:
            self._shards[pool] = TokenShards(self._data / pool)
        # Only now, so that a study can be planned without torch.
        from steelyard.train.trainer import train

        def both(now: Progress) -> None:
            if on_step:
                on_step(now)
            if self._on_step:
                self._on_step(config, now)

        return train(config, self._shards[pool], directory, start_from=start_from, on_step=both)

    def submit(
        self, work: Callable[P, T], /, *arguments: P.args, **options: P.kwargs
    ) -> "Future[T]":
        """Do the work now, in the caller's thread.

        Args:
            work: what to do.
            *arguments: its arguments.
            **options: its named arguments.

        Returns:
            Its result, ready; what it raises is raised here.
        """
        done: Future[T] = Future()
        done.set_result(work(*arguments, **options))
        return done

"""Batches as a pure function of a step: the only state of a loader is the number of its step.

The global batch of a step is the same for every number of readers; each takes its share of the
rows. So a run may be killed, or go on with more or fewer readers, without a row lost or seen twice.
"""

import itertools
import pickle
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING

import numpy as np

from steelyard.data.convert import Converter, batch
from steelyard.data.index import derive_seed, epoch_and_place
from steelyard.data.schedule import Interleave
from steelyard.data.tasks.cached import CachedTask
from steelyard.data.tasks.mixture import TaskMixture
from steelyard.data.tasks.task import Examples
from steelyard.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from steelyard.data.rows import PackedRows

__all__ = ["LoadedRow", "Loader", "TensorBatches", "can_pack"]


@dataclass(frozen=True, slots=True)
class LoadedRow:
    """Where a row of a batch comes from.

    Attributes:
        task: name of the task.
        epoch: number of the task's pass.
        examples: numbers of its examples, in the order they stand in the row.
    """

    task: str
    epoch: int
    examples: tuple[int, ...]


class Loader:
    """Batches of a task or mixture without end; each pass over a task has an order of its own.

    Attributes:
        converter: what an example becomes.
        batch_size: rows B of a global batch.
        seed: seed of orders and of random steps.
        rates: share of rows of each task, by name.
    """

    def __init__(
        self,
        data: Examples | TaskMixture,
        converter: Converter,
        batch_size: int,
        *,
        seed: int = 0,
        pack: bool = False,
        window: int = 1024,
    ) -> None:
        """Open the stream.

        Args:
            data: a task, its cache, or a mixture of such.
            converter: what an example becomes.
            batch_size: rows of a global batch, over all readers.
            seed: seed of orders and of random steps, 0 or more.
            pack: whether a row holds as many examples as fit; every task must be cached, and its
                steps keep lengths.
            window: examples that are packed together.

        Raises:
            ConfigError: a value is out of range, a task lacks a feature, or one to pack is not
                cached.
        """
        if batch_size < 1 or seed < 0:
            raise ConfigError(
                f"a batch of {batch_size} rows with seed {seed}",
                hint="give a batch from 1 and a seed from 0",
            )
        self.converter, self.batch_size, self.seed = converter, batch_size, seed
        mixture = data if isinstance(data, TaskMixture) else TaskMixture(data.name, ((data, 1.0),))
        self._tasks = mixture.tasks
        _check_features(self._tasks, converter)
        self._packed = (
            [_pack(task, converter, seed, window) for task in self._tasks] if pack else None
        )
        # A rate speaks of examples. A packed row holds several, so its rate is that much lower.
        rates = [rate / self._per_row(place) for place, rate in enumerate(mixture.rates().values())]
        self._interleave = Interleave(rates)
        names = [task.name for task in self._tasks]
        self.rates = dict(zip(names, self._interleave.shares.tolist(), strict=True))

    @property
    def packed(self) -> "dict[str, PackedRows]":
        """The rows of each task by name; empty without packing."""
        return {
            task.name: rows for task, rows in zip(self._tasks, self._packed or (), strict=False)
        }

    def batch(self, step: int, rank: int = 0, world: int = 1) -> dict[str, np.ndarray]:
        """Return one reader's share of the batch of a step; a pure function of its arguments.

        Args:
            step: number of the step, from 0, without end.
            rank: number of the reader.
            world: number of readers; divides the batch size. The shares of all, one after the
                other, are the global batch whatever their number.

        Returns:
            Arrays [B / world, length]; see `convert.batch`.

        Raises:
            ConfigError: the step or rank is out of range, or the batch cannot be shared evenly.
            DataError: an example is malformed.
        """
        by_name = {task.name: task for task in self._tasks}
        rows = [
            [
                by_name[row.task].read(example, seed=self.seed, epoch=row.epoch)
                for example in row.examples
            ]
            for row in self.rows(step, rank, world)
        ]
        return batch(self.converter, rows)

    def rows(self, step: int, rank: int = 0, world: int = 1) -> list[LoadedRow]:
        """Say which examples the rows of a batch hold; arguments and errors as of `batch`."""
        if step < 0 or world < 1 or not 0 <= rank < world or self.batch_size % world:
            raise ConfigError(
                f"step {step} for reader {rank} of {world} with a batch of {self.batch_size} rows",
                hint="give a step from 0, a rank below the number of readers, and a number of "
                "readers that divides the batch",
            )
        share = self.batch_size // world
        first = step * self.batch_size + rank * share
        parts, places = self._interleave(np.arange(first, first + share))
        rows: list[LoadedRow | None] = [None] * share
        for part in np.unique(parts).tolist():
            task, here = self._tasks[part], np.flatnonzero(parts == part)
            size = len(self._packed[part]) if self._packed else len(task)
            found = epoch_and_place(places[here], size, derive_seed(self.seed, task.name))
            for row, epoch, unit in zip(here.tolist(), *map(np.ndarray.tolist, found), strict=True):
                rows[row] = LoadedRow(task.name, epoch, self._examples(part, unit))
        return [row for row in rows if row is not None]

    def batches(
        self, start: int = 0, rank: int = 0, world: int = 1, *, workers: int = 0, ahead: int = 2
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield the batches of a reader from a step on, without end.

        Args:
            start: first step.
            rank: number of the reader.
            world: number of readers.
            workers: processes that make batches ahead; 0 makes each when it is asked for. What is
                yielded does not depend on it.
            ahead: batches that each worker is ahead.

        Yields:
            Batches as `batch` returns them.

        Raises:
            ConfigError: as `batch`; or a count is too low, or the data cannot be sent to a process.
        """
        if workers < 0 or ahead < 1:
            raise ConfigError(
                f"{workers} workers that are {ahead} batches ahead",
                hint="give 0 or more workers, at least 1 batch ahead",
            )
        self.rows(start, rank, world)
        if not workers:
            for step in itertools.count(start):
                yield self.batch(step, rank, world)
        _check_sendable(self)
        with ProcessPoolExecutor(workers, get_context("spawn"), _keep, (self,)) as pool:
            waiting: deque[Future[dict[str, np.ndarray]]] = deque()
            try:
                for step in itertools.count(start):
                    waiting.append(pool.submit(_make, step, rank, world))
                    if len(waiting) >= workers * ahead:
                        yield waiting.popleft().result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _examples(self, part: int, unit: int) -> tuple[int, ...]:
        """Return the examples of a row of a task."""
        return tuple(self._packed[part].examples(unit).tolist()) if self._packed else (unit,)

    def _per_row(self, part: int) -> float:
        """Return how many examples an average row of a task holds."""
        return len(self._tasks[part]) / len(self._packed[part]) if self._packed else 1.0


class TensorBatches:
    """The global batches of a loader as torch tensors, by the step alone: what a trainer reads."""

    def __init__(self, loader: Loader) -> None:
        """Keep the loader.

        Args:
            loader: makes the batches.
        """
        self.loader = loader

    def batch(self, index: int, /) -> "dict[str, Tensor]":
        """Return the batch of a step.

        Args:
            index: number of the step, from 0.

        Returns:
            Tensors [B, length] by name; see `convert.batch`.
        """
        import torch

        return {name: torch.from_numpy(array) for name, array in self.loader.batch(index).items()}


def can_pack(data: Examples | TaskMixture) -> bool:
    """Return whether rows may hold several examples: all are cached, and no step changes lengths.

    Args:
        data: a task, its cache, or a mixture of such.

    Returns:
        Whether a loader takes them with `pack`.
    """
    tasks = data.tasks if isinstance(data, TaskMixture) else [data]
    # Steps run after packing; what they do to lengths cannot be told, so any step counts.
    return all(isinstance(task, CachedTask) and not task.task.steps for task in tasks)


def _check_features(tasks: list[Examples], converter: Converter) -> None:
    """Refuse tasks that lack a feature of the converter; all are named."""
    gaps = [
        f"{task.name!r} lacks {name!r}"
        for task in tasks
        for name in converter.features
        if name not in task.features and not _is_made(task, name)
    ]
    if gaps:
        raise ConfigError(
            f"{type(converter).__name__} needs {', '.join(converter.features)}: {'; '.join(gaps)}",
            hint="add the feature to the task, or use another converter",
        )


def _is_made(task: Examples, name: str) -> bool:
    """Whether the steps of a task make a field although it is not among its features."""
    return name in task.read(0)


def _pack(task: Examples, converter: Converter, seed: int, window: int) -> "PackedRows":
    """Pack a task, which must be cached."""
    from steelyard.data.rows import PackedRows, Sized

    if not isinstance(task, Sized):
        raise ConfigError(
            f"task {task.name!r} is not cached, so the lengths of its examples are not known",
            hint="cache it (steelyard data cache), or load without packing",
        )
    return PackedRows(task, converter, seed=seed, window=window)


def _check_sendable(loader: Loader) -> None:
    """Refuse a loader that cannot be sent to worker processes."""
    try:
        pickle.dumps(loader)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"the data cannot be sent to worker processes: {error}",
            hint="use functions of a module in the task's steps, or workers = 0",
        ) from error


_loader: Loader | None = None


def _keep(loader: Loader) -> None:
    """Keep the loader of a worker process."""
    global _loader  # noqa: PLW0603  # what a pool's process works on
    _loader = loader


def _make(step: int, rank: int, world: int) -> dict[str, np.ndarray]:
    """Make a batch in a worker process."""
    assert _loader is not None
    return _loader.batch(step, rank, world)

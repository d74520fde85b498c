"""Searches that came while one ran are answered together by the next."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.retrieve.index import Hits
from steelyard.retrieve.serving.metrics import RetrieveMetrics
from steelyard.retrieve.serving.service import FoundInShards, SearchService
from steelyard.retrieve.serving.turns import TooBusyError
from steelyard.retrieve.serving.watch import RecallWatch

__all__ = ["SearchQueue"]

_BATCH_MOST = 256
_CHANGES_MOST = 64
"""Changes that may wait: each holds a body."""
_IDLE_S = 0.05


@dataclass(slots=True)
class _Queued:
    """Queries that wait for their turn, with how they are to be searched."""

    queries: NDArray[np.float32]
    how: tuple[int, int, bool]
    answer: "asyncio.Future[FoundInShards]"


class SearchQueue:
    """Runs one batch at a time in a thread; changes run between batches."""

    def __init__(
        self,
        service: SearchService,
        metrics: RetrieveMetrics,
        *,
        watch: RecallWatch | None = None,
        most_waiting: int = 4096,
    ) -> None:
        """Start with nothing to do; `run` does it.

        Args:
            service: what is searched.
            metrics: counts what is done.
            watch: checks some answers while nothing else is to be done.
            most_waiting: queries that may wait; more are refused.
        """
        self._service, self._metrics, self._watch = service, metrics, watch
        self._most_waiting = most_waiting
        self._waiting: deque[_Queued] = deque()
        self._changes: deque[tuple[Callable[[], object], asyncio.Future[object]]] = deque()
        self._is_asked = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="search")

    async def search(
        self, queries: NDArray[np.float32], k: int, *, nprobe: int, strict: bool
    ) -> FoundInShards:
        """Return what is found, when its turn has come.

        Args:
            queries: [Q, D], checked.
            k: neighbours that are wanted.
            nprobe: cells to look into; 0 for the indexes' own number.
            strict: a shard that does not answer is an error.

        Returns:
            The hits.

        Raises:
            TooBusyError: too many queries wait.
            SteelyardError: the search fails.
        """
        waiting = sum(len(item.queries) for item in self._waiting)
        if waiting and waiting + len(queries) > self._most_waiting:
            raise TooBusyError(
                f"{waiting} queries wait, more are not taken", hint="ask again in a second"
            )
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append(_Queued(queries, (k, nprobe, strict), answer))
        self._is_asked.set()
        return await answer

    async def change(self, work: Callable[[], object]) -> object:
        """Run a change between two batches.

        Args:
            work: makes the change.

        Returns:
            What it returns; what it raises is raised.

        Raises:
            TooBusyError: too many changes wait.
        """
        if len(self._changes) >= _CHANGES_MOST:
            raise TooBusyError(
                f"{len(self._changes)} changes wait, more are not taken",
                hint="ask again in a second",
            )
        done = asyncio.get_running_loop().create_future()
        self._changes.append((work, done))
        self._is_asked.set()
        return await done

    async def run(self) -> None:
        """Do what is asked for, until cancelled."""
        try:
            while True:
                self._metrics.waiting.set(sum(len(item.queries) for item in self._waiting))
                if self._changes:
                    await self._run_change()
                elif self._waiting:
                    await self._run_batch()
                else:
                    await self._rest()
        finally:
            self._thread.shutdown()

    async def _run_change(self) -> None:
        work, done = self._changes.popleft()
        try:
            result = await self._off_loop(work)
        except Exception as error:
            # Whatever it is, it is the asker's: the loop goes on for all others.
            _end(done, error=error)
        else:
            if self._watch is not None:
                self._watch.forget()
            _end(done, result)

    async def _run_batch(self) -> None:
        """Search for the first that waits, and all those behind it that search likewise."""
        batch, rest, how = list[_Queued](), deque[_Queued](), self._waiting[0].how
        size = 0
        for item in self._waiting:
            fits = item.how == how and (not batch or size + len(item.queries) <= _BATCH_MOST)
            if fits:
                batch.append(item)
                size += len(item.queries)
            else:
                rest.append(item)
        self._waiting = rest
        queries, (k, nprobe, strict) = np.concatenate([item.queries for item in batch]), how
        began_s = time.perf_counter()
        try:
            found = await self._off_loop(
                lambda: self._service.search(queries, k, nprobe=nprobe, strict=strict)
            )
        except Exception as error:
            for item in batch:
                _end(item.answer, error=error)
            return
        assert isinstance(found, FoundInShards)
        self._metrics.note(len(queries), time.perf_counter() - began_s, found)
        if self._watch is not None and not found.missing:
            self._watch.note(queries, found.hits.ids)
        first = 0
        for item in batch:
            last = first + len(item.queries)
            _end(item.answer, _part(found, slice(first, last)))
            first = last

    async def _rest(self) -> None:
        """Wait for work; check an answer where none comes for a while."""
        self._is_asked.clear()
        timeout_s = None if self._watch is None or not self._watch.is_due() else _IDLE_S
        try:
            await asyncio.wait_for(self._is_asked.wait(), timeout_s)
        except TimeoutError:
            assert self._watch is not None
            checked = self._watch.check
            await self._off_loop(lambda: checked(self._service))
            self._metrics.note_recall(self._watch)

    async def _off_loop(self, work: Callable[[], object]) -> object:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _part(found: FoundInShards, rows: slice) -> FoundInShards:
    """Return what one of a batch asked for."""
    hits = found.hits
    part = Hits(ids=hits.ids[rows], distances=hits.distances[rows], stats=hits.stats)
    return FoundInShards(hits=part, missing=found.missing)


def _end(
    future: "asyncio.Future[object] | asyncio.Future[FoundInShards]",
    result: object = None,
    *,
    error: Exception | None = None,
) -> None:
    """Answer, unless whoever asked has gone."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)  # pyright: ignore[reportArgumentType]

"""One map for every room, over local processes or a Ray cluster; threads of torch."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from steelyard.errors import CapacityError, ConfigError
from steelyard.units import pretty
from steelyard.worker_pools import LocalPool, ProcessPool, RayPool, WorkerDied, WorkerPool

__all__ = ["parallel_map", "spawn_seeds", "stream_map", "torch_threads"]

T = TypeVar("T")


def spawn_seeds(seed: int, count: int) -> list[int]:
    """Derive `count` independent task seeds from one seed; equal input makes equal seeds."""
    return [int(child.generate_state(1)[0]) for child in np.random.SeedSequence(seed).spawn(count)]


@contextmanager
def torch_threads(count: int) -> Iterator[int]:
    """Set the CPU threads of torch for a block, then put them back.

    Args:
        count: threads; 0 leaves them.

    Yields:
        Threads inside the block.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield count or before
    finally:
        torch.set_num_threads(before)


def stream_map(
    function: Callable[..., T],
    items: Iterable[Any],
    *,
    workers: int | None = None,
    cluster: str = "",
    seed: int | None = None,
    in_flight: int | None = None,
    name: Callable[[Any], str] = repr,
) -> Iterator[T]:
    """Apply `function` to items as they come and give results in their order.

    Few calls are begun before the first result is taken, so that neither items nor results pile
    up. The items of a worker that dies are done again, each in a fresh worker of its own.

    Args:
        function: called as `function(item)`, or `function(item, seed=...)` when `seed` is given.
        items: the inputs; read when there is room, so there may be no end of them.
        workers: 1 stays in this process, more are processes of this machine, or calls at once on
            the cluster; None for one per usable core.
        cluster: Ray address ("auto", "ray://host:10001"); empty for this machine.
        seed: makes one independent seed per item.
        in_flight: calls that are begun and not yet taken; None for two per worker.
        name: what messages call an item.

    Yields:
        One result per item, in order.

    Raises:
        BackendError: `cluster` is given but Ray is not installed or cannot be reached.
        CapacityError: an item killed the worker that ran it, twice.
        ConfigError: `workers` or `in_flight` is below 1.
        KeyboardInterrupt: Ctrl-C was pressed; the workers are stopped first.
    """
    count = _num_workers(workers)
    most = 2 * count if in_flight is None else in_flight
    if most < 1:
        raise ConfigError(f"in_flight: {most} is not allowed", hint="give 1 or more")
    pool = _pool(function, count, cluster)
    # A seed belongs to an item, not to a process, so results do not depend on `workers`.
    seeds = None if seed is None else np.random.SeedSequence(seed)
    calls = (_Call(item, {} if seeds is None else {"seed": _child(seeds)}) for item in items)
    # Here a call is made when it is begun: the next one waits until its result was taken.
    ahead = 1 if isinstance(pool, LocalPool) else most
    try:
        yield from _streamed(pool, calls, ahead, name)
    except KeyboardInterrupt:
        pool.kill()
        raise


@dataclass(slots=True, eq=False)
class _Call:
    """An item with its seed, and the ticket of its call."""

    item: Any
    named: dict[str, Any]
    ticket: Any = None


def _streamed(
    pool: WorkerPool, calls: Iterator[_Call], most: int, name: Callable[[Any], str]
) -> Iterator[Any]:
    """Keep some calls begun and give their results in order."""
    begun: deque[_Call] = deque()
    try:
        while True:
            for call in islice(calls, most - len(begun)):
                call.ticket = pool.submit(call.item, **call.named)
                begun.append(call)
            if not begun:
                return
            call = begun.popleft()
            try:
                found = pool.result(call.ticket)
            except WorkerDied as error:
                found = _again(pool, call, name, str(error))
            yield found
    finally:
        # Whoever stops taking results does not want the others either.
        for call in begun:
            pool.cancel(call.ticket)


def _again(pool: WorkerPool, call: _Call, name: Callable[[Any], str], why: str) -> Any:
    """Make a call once more, alone, for with others one cannot tell whose worker died."""
    try:
        return pool.alone(call.item, **call.named)
    except WorkerDied as error:
        held = pretty(error.peak_bytes, "byte") if error.peak_bytes else "an unknown amount"
        raise CapacityError(
            f"the worker of {name(call.item)} died, and so did a fresh one that ran nothing else: "
            f"{error or why}; it held {held} of memory at most, this machine has {_memory_told()}",
            hint="give smaller items, or a machine with more memory",
        ) from error


def _memory_told() -> str:
    """Return this machine's memory in words."""
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        whole, free = (page * os.sysconf(key) for key in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES"))
    except (OSError, ValueError, AttributeError):
        return "an unknown amount"
    return f"{pretty(whole, 'byte')}, {pretty(free, 'byte')} of it free"


def _num_workers(workers: int | None) -> int:
    """Return how many workers there are."""
    import joblib

    if workers is not None and workers < 1:
        raise ConfigError(
            f"workers: {workers} is not allowed",
            hint="give 1 or more, or leave it out for one per core",
        )
    return workers or joblib.cpu_count()


def _pool(function: Callable[..., Any], workers: int, cluster: str) -> WorkerPool:
    """Return where calls are made."""
    if cluster:
        return RayPool(function, cluster)
    return ProcessPool(function, workers) if workers > 1 else LocalPool(function)


def _child(seeds: np.random.SeedSequence) -> int:
    """Return the next item's seed, the same as that of `spawn_seeds`."""
    return int(seeds.spawn(1)[0].generate_state(1)[0])


def parallel_map(
    function: Callable[..., T],
    items: Iterable[Any],
    *,
    workers: int | None = None,
    seed: int | None = None,
    label: str = "",
    cluster: str = "",
) -> list[T]:
    """Apply `function` to every item and return all results; see `stream_map`.

    Args:
        function: called as `function(item)`, or `function(item, seed=...)` when `seed` is given.
        items: the inputs.
        workers: processes, 1 or more; None for one per usable core, 1 runs in this process.
        seed: makes one independent seed per task.
        label: text of a progress bar on standard error; empty for none.
        cluster: Ray address ("auto", "ray://host:10001"); empty for local processes.

    Returns:
        One result per item, in order.

    Raises:
        BackendError: `cluster` is given but Ray is not installed or cannot be reached.
        CapacityError: an item killed the worker that ran it, twice.
        ConfigError: `workers` is below 1.
        KeyboardInterrupt: Ctrl-C was pressed; the workers are stopped first.
    """
    tasks = list(items)
    count = min(_num_workers(workers), max(len(tasks), 1))
    results = stream_map(function, tasks, workers=count, cluster=cluster, seed=seed)
    return list(_with_progress(results, len(tasks), label))


def _with_progress(results: Iterable[T], total: int, label: str) -> Iterable[T]:
    """Pass results through, advancing a progress bar when there is a label."""
    if not label:
        yield from results
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(
        results, description=label, total=total, console=Console(stderr=True), transient=True
    )

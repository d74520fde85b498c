"""One `parallel_map` for every room, over local processes or a Ray cluster; threads of torch."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from steelyard.errors import ConfigError
from steelyard.ray_cluster import join_ray

__all__ = ["parallel_map", "spawn_seeds", "torch_threads"]

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


def _register_ray(address: str) -> None:
    """Connect to a Ray cluster and make it a joblib backend."""
    join_ray(address)
    from ray.util.joblib import register_ray  # pyright: ignore[reportMissingImports]

    register_ray()


def parallel_map(
    function: Callable[..., T],
    items: Iterable[Any],
    *,
    workers: int | None = None,
    seed: int | None = None,
    label: str = "",
    cluster: str = "",
) -> list[T]:
    """Apply `function` to every item, in order of the items, over processes.

    Args:
        function: called as `function(item)`, or `function(item, seed=...)` when `seed` is given;
            must be importable.
        items: the inputs.
        workers: processes, 1 or more; None for one per usable core, 1 runs in this process.
        seed: makes one independent seed per task.
        label: text of a progress bar on standard error; empty for none.
        cluster: Ray address ("auto", "ray://host:10001"); empty for local processes.

    Returns:
        One result per item, in order.

    Raises:
        BackendError: `cluster` is given but Ray is not installed or cannot be reached.
        ConfigError: `workers` is below 1.
        KeyboardInterrupt: Ctrl-C was pressed; the workers are stopped first.
    """
    import joblib

    if workers is not None and workers < 1:
        raise ConfigError(
            f"workers: {workers} is not allowed",
            hint="give 1 or more, or leave it out for one per core",
        )
    tasks = list(items)
    calls = [joblib.delayed(function)(task) for task in tasks]
    if seed is not None:
        # A seed belongs to a task, not to a process, so results do not depend on `workers`.
        seeds = spawn_seeds(seed, len(tasks))
        calls = [
            joblib.delayed(function)(task, seed=child)
            for task, child in zip(tasks, seeds, strict=True)
        ]
    if cluster:
        _register_ray(cluster)
    backend = "ray" if cluster else "loky"
    count = min(workers or joblib.cpu_count(), max(len(tasks), 1))
    with joblib.parallel_config(backend=backend, n_jobs=count):
        results: Any = joblib.Parallel(return_as="generator")(calls)
        try:
            return list(_with_progress(results, len(tasks), label))
        except KeyboardInterrupt:
            if backend == "loky" and count > 1:
                _stop_workers()
            raise


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


def _stop_workers() -> None:
    """Kill the loky workers, so that Ctrl-C leaves no process behind."""
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor().shutdown(wait=False, kill_workers=True)

"""Threads that share the rows of a compiled kernel."""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

__all__ = ["RowThreads"]

_SMALL = 1 << 18
"""Values below which handing rows to a thread costs more than it saves."""


class RowThreads:
    """Runs kernels that hold no lock on parts of their rows, with as many threads as PyTorch."""

    def __init__(self) -> None:
        """Start no thread yet."""
        self._pool: ThreadPoolExecutor | None = None
        self._size = 0

    def run(
        self, kernel: Callable[..., None], width: int, shared: tuple[Any, ...], *rows: np.ndarray
    ) -> None:
        """Call `kernel(*shared, *part)` for parts that together cover all rows.

        Args:
            kernel: compiled, without the interpreter's lock.
            width: values that the kernel looks at per row.
            shared: first arguments, the same for every part.
            *rows: arrays of one length, of which a part takes a run.
        """
        count = len(rows[0])
        parts = min(torch.get_num_threads(), count)
        if parts <= 1 or count * width < _SMALL:
            kernel(*shared, *rows)
            return
        edges = [count * part // parts for part in range(parts + 1)]
        runs = [[item[first:end] for item in rows] for first, end in itertools.pairwise(edges)]
        pool = self._helpers(parts - 1)
        rest = [pool.submit(kernel, *shared, *run) for run in runs[1:]]
        kernel(*shared, *runs[0])  # the calling thread does its share
        for part in rest:
            part.result()

    def _helpers(self, size: int) -> ThreadPoolExecutor:
        """Return a pool of at least `size` threads."""
        if self._pool is None or self._size < size:
            self._pool = ThreadPoolExecutor(size, thread_name_prefix="sampling")
            self._size = size
        return self._pool

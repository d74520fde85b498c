"""Threads that share the rows of a compiled kernel."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

__all__ = ["RowThreads"]

_SMALL = 1 << 18
"""Values below which handing rows to a thread costs more than it saves."""


class RowThreads:
    """Runs kernels that hold no lock over parts of their rows, with as many threads as PyTorch uses."""

    def __init__(self) -> None:
        """Start no thread yet."""
        self._pool: ThreadPoolExecutor | None = None
        self._size = 0

    def run(self, kernel: Callable[..., None], count: int, width: int, *arrays: Any) -> None:
        """Call `kernel(*arrays, first, end)` for runs that cover [0, count).

        Args:
            kernel: compiled, without the interpreter's lock.
            count: rows.
            width: values per row.
            *arrays: of the kernel.
        """
        parts = min(torch.get_num_threads(), count)
        if parts <= 1 or count * width < _SMALL:
            kernel(*arrays, 0, count)
            return
        edges = [count * part // parts for part in range(parts + 1)]
        pool = self._helpers(parts - 1)
        rest = [
            pool.submit(kernel, *arrays, edges[part], edges[part + 1]) for part in range(1, parts)
        ]
        kernel(*arrays, 0, edges[1])
        for part in rest:
            part.result()

    def _helpers(self, size: int) -> ThreadPoolExecutor:
        """Return a pool of at least `size` threads."""
        if self._pool is None or self._size < size:
            self._pool, self._size = ThreadPoolExecutor(size, thread_name_prefix="sampling"), size
        return self._pool

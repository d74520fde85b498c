"""Keep Python's collector away from what lives as long as the process.

A full collection visits every object of every loaded library: some hundred milliseconds in which no
token is made.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["freeze_heap", "frozen_heap"]


def freeze_heap() -> None:
    """Collect once, and leave what is there out of every later collection."""
    gc.collect()
    gc.freeze()


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Leave what is there out of the collections within the block."""
    freeze_heap()
    try:
        yield
    finally:
        gc.unfreeze()

"""Reads the next batch in a thread while the one before is used."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["read_ahead"]

T = TypeVar("T")


def read_ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield items while the next one is made.

    Reading and parsing give Python's lock away, as kernels do, so that both go on at once where
    there is a second core.

    Args:
        items: made one at a time, in a thread.

    Yields:
        The same items in the same order; what making one raises is raised here.
    """
    end = object()
    with ThreadPoolExecutor(1) as thread:
        ahead = thread.submit(next, items, end)
        while (item := ahead.result()) is not end:
            ahead = thread.submit(next, items, end)
            yield item  # pyright: ignore[reportReturnType]

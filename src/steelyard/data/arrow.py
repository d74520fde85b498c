"""Arrow's functions on columns, where a type checker can look at them."""

from typing import Any

__all__ = ["compute", "release_unused"]


def compute() -> Any:
    """Return `pyarrow.compute`, most of whose functions are made when it is imported."""
    import pyarrow.compute

    return pyarrow.compute


def release_unused() -> None:
    """Return memory that Arrow's allocator keeps for later: between parts no one wants it."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()

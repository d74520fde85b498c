"""Arrow's functions on columns, where a type checker can look at them."""

from typing import Any

__all__ = ["compute"]


def compute() -> Any:
    """Return `pyarrow.compute`, most of whose functions are made when it is imported."""
    import pyarrow.compute

    return pyarrow.compute

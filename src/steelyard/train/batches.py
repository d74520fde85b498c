"""Where batches come from: a pure function of their index."""

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor

from steelyard.errors import DataError

__all__ = ["Batch", "BatchSource", "count_examples", "micro_batches"]

Batch = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
"""Tensors whose first axis runs over examples."""


class BatchSource(Protocol):
    """Batches in an order that depends on nothing but their index."""

    def batch(self, index: int, /) -> Batch:
        """Return the batch of step `index`, from 0: all its examples, the same at every call."""
        ...


def count_examples(batch: Batch) -> int:
    """Count the examples of a batch.

    Args:
        batch: tensors of equal length.

    Returns:
        That length.

    Raises:
        DataError: the batch holds no tensor, or tensors of different lengths.
    """
    lengths = {len(tensor) for tensor in _tensors(batch)}
    if len(lengths) != 1:
        raise DataError(
            f"a batch has tensors of {sorted(lengths)} examples",
            hint="give tensors whose first axis is the same examples",
        )
    return lengths.pop()


def micro_batches(batch: Batch, size: int, device: str) -> Iterator[Batch]:
    """Cut a batch into consecutive micro-batches.

    Args:
        batch: tensors of equal length.
        size: examples of a micro-batch.
        device: where they are wanted.

    Yields:
        Parts of the same kind as the batch.
    """
    # What lies on another device moves as a whole: one large transfer in place of many small ones.
    parts = [tensor.to(device, non_blocking=True).split(size) for tensor in _tensors(batch)]
    for pieces in zip(*parts, strict=True):
        if isinstance(batch, dict):
            yield dict(zip(batch, pieces, strict=True))
        else:
            yield pieces if isinstance(batch, tuple) else pieces[0]


def _tensors(batch: Batch) -> list[Tensor]:
    """List the tensors of a batch."""
    if isinstance(batch, Tensor):
        return [batch]
    return list(batch.values() if isinstance(batch, dict) else batch)

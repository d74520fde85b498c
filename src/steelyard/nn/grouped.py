"""Weights stored as small whole numbers with a scale per group of them."""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["GroupedCodes"]


@dataclass(frozen=True, slots=True)
class GroupedCodes:
    """Rows of a matrix as codes; a weight is `code * scale - minimum` of its group.

    The groups of a row are equally long and follow each other. It is what products on quantized
    weights read, and what `dequantize` turns into numbers.

    Attributes:
        codes: int8 [rows, columns].
        scales: float32 [rows, columns / group].
        minimums: float32 [rows, columns / group] to subtract, or None where codes are signed.
    """

    codes: Tensor
    scales: Tensor
    minimums: Tensor | None = None

    @property
    def group_size(self) -> int:
        """Columns that share a scale."""
        return self.codes.shape[1] // self.scales.shape[1]

    def rows(self, first: int, stop: int) -> "GroupedCodes":
        """Return some rows, sharing memory.

        Args:
            first: number of the first.
            stop: number after the last, or beyond the end.

        Returns:
            The rows.
        """
        minimums = None if self.minimums is None else self.minimums[first:stop]
        return GroupedCodes(self.codes[first:stop], self.scales[first:stop], minimums)

    def dequantize(self) -> Tensor:
        """Return the weights, float32 [rows, columns], rounded as the product and difference are.

        Returns:
            A new tensor.
        """
        grouped = self.codes.unflatten(1, (-1, self.group_size)).to(torch.float32)
        grouped.mul_(self.scales.unsqueeze(-1))
        if self.minimums is not None:
            grouped.sub_(self.minimums.unsqueeze(-1))
        return grouped.flatten(1)

"""Gradient, hessian and count of a row in one whole number: one addition sums all three."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from steelyard.jit import njit

__all__ = ["BLOCK", "PackScale", "pack_rows", "pack_slopes"]

BLOCK = 2048
"""Rows whose numbers may be added up before their parts run into each other."""
COUNT_BITS, HESSIAN_BITS = 12, 26
"""Bits of the sums of counts and of hessians; gradients have those above."""
_GRADIENT_LEVELS, _HESSIAN_LEVELS = 2**14 - 1, 2**15 - 1
_FINE_LEVELS = 2**39


@dataclass(frozen=True, slots=True)
class PackScale:
    """What one step of packed numbers stands for.

    Attributes:
        gradient: step of gradients.
        hessian: step of hessians; 0 where all are 1, as then counts say them, and gradients have
            their bits too.
    """

    gradient: float
    hessian: float

    @classmethod
    def of_classes(cls) -> "PackScale":
        """Return the scale of log losses: gradients of -1 to 1, hessians of 0 to 1/4."""
        return cls(1 / _GRADIENT_LEVELS, 0.25 / _HESSIAN_LEVELS)

    @classmethod
    def of_numbers(cls, largest: float) -> "PackScale":
        """Return the scale of squared losses.

        Args:
            largest: size of the largest gradient.

        Returns:
            The scale.
        """
        return cls(max(largest, 1e-300) / _FINE_LEVELS, 0.0)


@njit()
def pack_rows(
    gradients: np.ndarray, hessians: np.ndarray, per_g: Any, per_h: Any, salt: Any, out: np.ndarray
) -> None:
    """Pack gradients and hessians.

    Both are rounded up or down by a chance that their remainder gives, so that sums have no bias;
    the chance follows from the place of the row and the salt.

    Args:
        gradients: float32 [N].
        hessians: float32, 0 or more [N].
        per_g: steps of gradients in 1.
        per_h: steps of hessians in 1.
        salt: changes how rows are rounded.
        out: int64 [N].

    Source: Shi et al. 2022 (arXiv 2207.09682), "Quantized training of gradient boosting decision
        trees", sections 3 and 4.
    """
    for place in range(len(gradients)):
        # numba makes 64 bits of products of 32: the upper ones are cut off.
        mixed = (np.uint32(place + salt) * np.uint32(2654435761)) & np.uint64(0xFFFFFFFF)
        first = np.float64(mixed) * 2.0**-32
        second = np.float64(mixed ^ np.uint64(0x9E3779B9)) * 2.0**-32
        g = np.int64(np.floor(np.float64(gradients[place]) * per_g + first))
        h = np.int64(np.float64(hessians[place]) * per_h + second)
        out[place] = (g << 38) + (h << 12) + 1


@njit()
def pack_slopes(gradients: np.ndarray, per_g: Any, out: np.ndarray) -> None:
    """Pack gradients whose hessians are 1.

    Args:
        gradients: float32 [N].
        per_g: steps of gradients in 1.
        out: int64 [N].
    """
    for place in range(len(gradients)):
        g = np.int64(np.rint(np.float64(gradients[place]) * per_g))
        out[place] = (g << 12) + 1

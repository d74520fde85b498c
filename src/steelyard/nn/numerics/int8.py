"""Signed bytes with one scale per row: weights by output channel, activations by token."""

from dataclasses import dataclass

import torch
from torch import Tensor

from steelyard.nn.numerics.groups import refuse_unquantizable, rounded_up

__all__ = ["Int8Rows", "quantize_int8"]

LEVELS = 127
"""Codes lie in [-127, 127]: the same number of steps on both sides of 0."""


@dataclass(frozen=True, slots=True)
class Int8Rows:
    """Rows of signed bytes.

    Attributes:
        codes: int8 [N, K].
        scales: float32 [N]; 0 for a row of zeros.
    """

    codes: Tensor
    scales: Tensor

    @property
    def num_bytes(self) -> int:
        """Bytes of codes and scales."""
        return self.codes.nbytes + self.scales.nbytes

    def dequantize(self) -> Tensor:
        """Return float32 [N, K]: codes times scales."""
        return self.codes.float() * self.scales[:, None]

    def error_bound(self) -> Tensor:
        """Return float32 [N, 1]: no number of a row was farther from what `dequantize` gives.

        Half a step, and the rounding of the codes' own arithmetic in float32, of at most 3 units
        in the last place of the largest number; below float32's normal numbers, a scale's own
        rounding.
        """
        return self.scales[:, None] * (0.5 + 3 * LEVELS * 2.0**-23) + LEVELS * 2.0**-149


def quantize_int8(values: Tensor, *, scale_dtype: torch.dtype = torch.float32) -> Int8Rows:
    """Round each row to 255 steps that are symmetric around 0.

    Args:
        values: floating point [N, K], finite; weights of an output channel, or activations of a
            token, per row.
        scale_dtype: type that the scales fit into; narrower ones are rounded up, so that no code is
            cut off.

    Returns:
        Codes and scales; rows of multiples of a 127th of their largest number come back exactly, to
        float32's rounding.

    Raises:
        ConfigError: the shape, the type or a number cannot be taken.

    Source: Dettmers et al. 2022 (arXiv 2208.07339), section 2 (absolute maximum by
        vector).
    """
    wide = refuse_unquantizable(values, "values of int8 rows")
    largest = wide.abs().amax(1) if wide.shape[1] else wide.new_zeros(len(wide))
    if scale_dtype == torch.float32:
        # A tensor over a tensor: a number over one becomes a reciprocal, which rounds twice.
        scales, above = largest / LEVELS, torch.full_like(largest, LEVELS) / largest
    else:
        scales = rounded_up(largest / LEVELS, scale_dtype).float()
        above = 1 / scales
    inverse = torch.where(largest > 0, above, 0.0)
    # The inverse of the smallest numbers is infinite.
    inverse = inverse.clamp(max=torch.finfo(torch.float32).max)
    codes = (wide * inverse[:, None]).round().clamp(-LEVELS, LEVELS)
    return Int8Rows(codes.to(torch.int8), scales)

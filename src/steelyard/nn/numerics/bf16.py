"""bfloat16: float32 with eight bits of significand."""

import torch
from torch import Tensor

from steelyard.nn.numerics.groups import refuse_unquantizable

__all__ = ["bf16_error_bound", "to_bf16"]

_HALF_STEP = 2.0**-8
_SMALLEST_STEP = 2.0**-133


def to_bf16(values: Tensor) -> Tensor:
    """Round to the nearest bfloat16, ties to even.

    Args:
        values: floating point [N, K], finite.

    Returns:
        bfloat16 [N, K].

    Raises:
        ConfigError: the shape, the type or a number cannot be taken, or a number rounds to
            infinity.
    """
    wide = refuse_unquantizable(values, "values of bfloat16")
    rounded = wide.to(torch.bfloat16)
    # Numbers near float32's largest round to infinity.
    refuse_unquantizable(rounded, "values rounded to bfloat16")
    return rounded


def bf16_error_bound(values: Tensor) -> Tensor:
    """Return the largest error of `to_bf16`.

    Args:
        values: what is rounded, float32.

    Returns:
        float32 of the same shape: 2^-8 of each number, or half of the smallest step.
    """
    return (values.abs() * _HALF_STEP).clamp(min=_SMALLEST_STEP / 2)

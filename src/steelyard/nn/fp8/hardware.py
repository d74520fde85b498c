"""Products of codes on devices that multiply eight-bit floats: NVIDIA Hopper and later."""

import torch
from torch import Tensor
from torch.nn import functional as F

from steelyard.nn.fp8.scaled import ScaledCodes
from steelyard.nn.numerics.fp8 import power_of_two

__all__ = ["multiplies_codes", "scaled_product"]

_MULTIPLE = 16
"""Both sides of what `torch._scaled_mm` multiplies are multiples of this."""
_HOPPER = (8, 9)
"""Oldest CUDA capability that has such products."""
_TYPES = (torch.float8_e4m3fn, torch.float8_e5m2)


def multiplies_codes(a: ScaledCodes, b: ScaledCodes) -> bool:
    """Whether `scaled_product` runs in hardware.

    Args:
        a: left side.
        b: right side; two sides of e5m2 have no product.

    Returns:
        False elsewhere than on such a device, and for other scalings or formats than it knows.
    """
    if a.codes.device.type != "cuda" or not (a.is_whole and b.is_whole):
        return False
    types = (a.fmt.torch_dtype, b.fmt.torch_dtype)
    is_known = set(types) <= set(_TYPES) and torch.float8_e4m3fn in types
    return is_known and torch.cuda.get_device_capability(a.codes.device) >= _HOPPER


def scaled_product(a: ScaledCodes, b: ScaledCodes, dtype: torch.dtype) -> Tensor:
    """Return a b^T, unscaled, without decoding; sums are kept in float32.

    Args:
        a: codes [M, K] with one bias.
        b: codes [N, K] with one bias.
        dtype: type of the result.

    Returns:
        [M, N].
    """
    left, right = _padded(a), _padded(b)
    product = torch.ops.aten._scaled_mm(
        left,
        right.t(),
        scale_a=power_of_two(-a.biases).view(()),
        scale_b=power_of_two(-b.biases).view(()),
        out_dtype=dtype,
        # The fast sums of Hopper keep 14 bits.
        use_fast_accum=False,
    )
    return product[: a.codes.shape[0], : b.codes.shape[0]]


def _padded(side: ScaledCodes) -> Tensor:
    """Return codes as PyTorch's type, filled up with zeros to multiples of 16, row by row."""
    missing = [-size % _MULTIPLE for size in side.codes.shape]
    codes = F.pad(side.codes, (0, missing[1], 0, missing[0])) if any(missing) else side.codes
    assert side.fmt.torch_dtype is not None
    return codes.contiguous().view(side.fmt.torch_dtype)

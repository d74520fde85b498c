"""A matrix as eight-bit codes with powers of two."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from steelyard.nn.fp8.native import compiled, native_decode, native_round
from steelyard.nn.numerics.floats import FloatFormat
from steelyard.nn.numerics.fp8 import decode, encode, power_of_two

__all__ = ["ScaledCodes", "quantize", "spread_factors"]

_NATIVE_TYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class ScaledCodes:
    """Codes of numbers times 2^b.

    Attributes:
        codes: uint8 [N, K].
        biases: int32 [1, 1] for one b of all, or [N, G] for one per group of a row.
        fmt: format of the codes.
        group: numbers of a row that share a b.
    """

    codes: Tensor
    biases: Tensor
    fmt: FloatFormat
    group: int

    @property
    def is_whole(self) -> bool:
        """Whether one b serves the whole matrix, so that a product with it is unscaled after."""
        return self.biases.numel() == 1

    @property
    def num_bytes(self) -> int:
        """Bytes of codes and biases, a byte each."""
        return self.codes.nbytes + self.biases.numel()

    def numbers(self, dtype: torch.dtype) -> Tensor:
        """Return what goes into a product.

        Args:
            dtype: float32 or bfloat16.

        Returns:
            [N, K]: still times 2^b where one b serves all, else unscaled. Every number of a format
            of eight bits is exact in either type.
        """
        factors = None if self.is_whole else power_of_two(-self.biases)
        library = compiled() if self.codes.device.type == "cpu" else None
        if library is not None and dtype in _NATIVE_TYPES:
            return native_decode(library, self.codes, self.fmt, factors, self.group, dtype)
        found = decode(self.codes, self.fmt, dtype)
        if factors is None:
            return found
        return found * spread_factors(factors, self.group, found.shape[1]).to(dtype)

    def dequantize(self) -> Tensor:
        """Return float32 [N, K]: numbers times 2^-b."""
        numbers = self.numbers(torch.float32)
        return numbers * power_of_two(-self.biases) if self.is_whole else numbers


def quantize(
    x: Tensor, fmt: FloatFormat, biases: Tensor, group: int, dtype: torch.dtype
) -> tuple[ScaledCodes, Tensor]:
    """Scale numbers by powers of two and round them to a format, saturating.

    Args:
        x: floating point [N, K].
        fmt: a format of eight bits.
        biases: int32 [1, 1] or [N, G].
        group: numbers of a row that share a bias.
        dtype: type of the numbers returned, float32 or bfloat16.

    Returns:
        The codes, and what their `numbers` returns: rounding gives both at once.
    """
    is_whole = biases.numel() == 1
    factors = power_of_two(biases)
    library = compiled() if x.device.type == "cpu" else None
    if library is not None and x.dtype in _NATIVE_TYPES and dtype in _NATIVE_TYPES:
        codes, numbers = native_round(
            library, x.contiguous(), fmt, factors, group, unscaled=not is_whole, dtype=dtype
        )
        return ScaledCodes(codes, biases, fmt, group), numbers
    wide = x.float() * spread_factors(factors, group, x.shape[1])
    if fmt.torch_dtype is None:
        codes = encode(wide, fmt)
    else:
        codes = wide.clamp(-fmt.max, fmt.max).to(fmt.torch_dtype).view(torch.uint8)
    found = ScaledCodes(codes, biases, fmt, group)
    return found, found.numbers(dtype)


def spread_factors(factors: Tensor, group: int, width: int) -> Tensor:
    """Return factors that broadcast to the rows they belong to.

    Args:
        factors: [1, 1] or [N, G].
        group: numbers of a row that share a factor.
        width: K.

    Returns:
        [1, 1], [N, 1] or [N, K].
    """
    if factors.shape[1] == 1:
        return factors
    repeated = factors.repeat_interleave(group, dim=1)
    return F.pad(repeated, (0, max(0, width - repeated.shape[1])))[:, :width]

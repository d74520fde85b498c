"""Floating point formats of at most eight bits, as records."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor

__all__ = [
    "E2M1",
    "E3M4",
    "E4M3",
    "E4M3FNUZ",
    "E5M2",
    "E5M2FNUZ",
    "FloatFormat",
    "decode_table",
]

_TABLE_ROWS = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatFormat:
    """A sign, an exponent and a mantissa in at most eight bits.

    Attributes:
        name: what PyTorch calls the format where it has it, after "float8_" or "float4_".
        exponent_bits: bits of the exponent.
        mantissa_bits: bits of the mantissa, without the leading 1.
        bias: what the stored exponent is above the true one.
        specials: codes that are no numbers. "ieee": the largest exponent is infinity and NaN;
            "fn": no infinity, only all ones is NaN; "fnuz": no infinity and no negative 0, whose
            code is the one NaN; "none": every code is a finite number.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: Literal["ieee", "fn", "fnuz", "none"]

    @property
    def size_bits(self) -> int:
        """Bits of a code below its sign."""
        return self.exponent_bits + self.mantissa_bits

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal number, and of all subnormal ones."""
        return 1 - self.bias

    @property
    def max_code(self) -> int:
        """Code of the largest finite number."""
        codes = 2**self.size_bits
        taken = {"ieee": 2**self.mantissa_bits, "fn": 1, "fnuz": 0, "none": 0}
        return codes - taken[self.specials] - 1

    @property
    def nan_code(self) -> int | None:
        """Code of NaN without its sign ("fnuz": with it); None where there is none."""
        top = 2**self.size_bits
        return {"ieee": top - 1, "fn": top - 1, "fnuz": top, "none": None}[self.specials]

    @property
    def overflow_code(self) -> int | None:
        """Code of what lies beyond the largest number: infinity, else NaN, else None."""
        return self.max_code + 1 if self.specials == "ieee" else self.nan_code

    @property
    def max(self) -> float:
        """Largest finite number."""
        steps = 2**self.mantissa_bits + self.max_code % 2**self.mantissa_bits
        exponent = (self.max_code >> self.mantissa_bits) - self.bias
        return steps * 2.0 ** (exponent - self.mantissa_bits)

    @property
    def min_normal(self) -> float:
        """Smallest number of full precision."""
        return 2.0**self.min_exponent

    @property
    def min_subnormal(self) -> float:
        """Smallest number above 0: the step of all below `min_normal`."""
        return 2.0 ** (self.min_exponent - self.mantissa_bits)

    @property
    def torch_dtype(self) -> torch.dtype | None:
        """PyTorch's type of the same codes, one a byte; None where it has none."""
        return getattr(torch, f"float8_{self.name}", None)


E4M3 = FloatFormat(name="e4m3fn", exponent_bits=4, mantissa_bits=3, bias=7, specials="fn")
"""OCP format of weights and activations: largest number 448."""
E5M2 = FloatFormat(name="e5m2", exponent_bits=5, mantissa_bits=2, bias=15, specials="ieee")
"""OCP format of gradients: largest number 57344, infinities as in IEEE 754."""
E4M3FNUZ = FloatFormat(name="e4m3fnuz", exponent_bits=4, mantissa_bits=3, bias=8, specials="fnuz")
"""Weights and activations on Graphcore, AMD and Qualcomm: largest number 240."""
E5M2FNUZ = FloatFormat(name="e5m2fnuz", exponent_bits=5, mantissa_bits=2, bias=16, specials="fnuz")
"""Gradients there: largest number 57344."""
E3M4 = FloatFormat(name="e3m4", exponent_bits=3, mantissa_bits=4, bias=3, specials="ieee")
"""More precision, less range: largest number 15.5."""
E2M1 = FloatFormat(name="e2m1fn", exponent_bits=2, mantissa_bits=1, bias=1, specials="none")
"""Four bits: 0, .5, 1, 1.5, 2, 3, 4 and 6."""


@cache
def decode_table(fmt: FloatFormat) -> Tensor:
    """Return the number that each code stands for.

    Args:
        fmt: the format.

    Returns:
        float32 [256] by code; a format of fewer bits repeats, so that higher bits do not count.
        Not to be written to: callers share it.

    Source: Micikevicius et al. 2022 (arXiv 2209.05433), table 1 (E4M3, E5M2); Noune et al. 2022
        (arXiv 2206.02915), section 2 (the formats without negative 0).
    """
    # Doubles hold every step, so the table is exact.
    codes = torch.arange(_TABLE_ROWS) % 2 ** (fmt.size_bits + 1)
    sizes = codes % 2**fmt.size_bits
    fields, mantissas = sizes >> fmt.mantissa_bits, sizes % 2**fmt.mantissa_bits
    steps = mantissas + (fields > 0) * 2**fmt.mantissa_bits
    exponents = fields.clamp(min=1) - fmt.bias - fmt.mantissa_bits
    numbers = torch.ldexp(steps.double(), exponents)
    if fmt.specials == "ieee":
        numbers[sizes == fmt.overflow_code] = torch.inf
    signed = torch.where(codes >= 2**fmt.size_bits, -numbers, numbers)
    if fmt.nan_code is not None:
        # "fnuz" has its NaN where the sign stands alone; elsewhere it has either sign.
        nan = codes == fmt.nan_code if fmt.specials == "fnuz" else sizes > fmt.max_code
        signed[nan & ~torch.isinf(signed)] = torch.nan
    return signed.float()

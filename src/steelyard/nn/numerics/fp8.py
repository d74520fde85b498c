"""Casts to floating point formats of eight bits and fewer, and the power of two that fits a tensor.

Plain and for any format: faster code (PyTorch's own casts, `nn.fp8`) is tested against this.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from steelyard.errors import ConfigError
from steelyard.nn.numerics.floats import FloatFormat, decode_table

__all__ = ["MAX_SCALE_BIAS", "Rounding", "cast", "decode", "encode", "power_of_two", "scale_bias"]

MAX_SCALE_BIAS = 126
"""Scaling biases lie in [-126, 126]: int8 fits them, and 2^b and 2^-b are normal float32."""

Rounding = Literal["nearest", "stochastic"]


def encode(
    x: Tensor,
    fmt: FloatFormat,
    *,
    rounding: Rounding = "nearest",
    saturate: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Round numbers to codes of a format.

    Args:
        x: floating point, any shape, of at most float32's precision; NaN stays NaN.
        fmt: the format.
        rounding: "nearest" with ties to even, or "stochastic": up or down with the probability
            that leaves the mean unchanged.
        saturate: what lies beyond the largest number, infinity included, becomes that number; else
            the format's infinity, or NaN where it has none. PyTorch's casts do the latter, but to
            `float8_e4m3fn` they saturate (from 2.13).
        generator: draws of stochastic rounding, on the device of `x`.

    Returns:
        uint8 of the same shape.

    Raises:
        ConfigError: the numbers are no floating point numbers, or one needs a code that the format
            does not have.

    Source: Perez et al. 2023 (arXiv 2309.17224) (formats, saturating casts).
    """
    if not x.is_floating_point():
        raise ConfigError(f"cannot cast {x.dtype} to {fmt.name}", hint="give floating point")
    wide = x.detach().float()
    size = wide.abs()
    is_nan = torch.isnan(size)
    # What is beyond any format would overflow an integer below.
    bounded = size.nan_to_num(0.0, posinf=2 * fmt.max).clamp(max=2 * fmt.max)
    exponents = torch.frexp(bounded).exponent - 1
    exponents = torch.where(bounded < fmt.min_normal, fmt.min_exponent, exponents).int()
    # Scaling by powers of two is exact, so whole steps are all that rounding is about.
    steps = bounded * power_of_two(fmt.mantissa_bits - exponents)
    if rounding == "stochastic":
        draws = torch.rand(steps.shape, generator=generator, device=steps.device)
        steps = (steps + draws).floor()
    else:
        steps = steps.round()
    # A number rounded up to the next power of two carries into the exponent by itself.
    codes = ((exponents - fmt.min_exponent) << fmt.mantissa_bits) + steps.int()
    beyond = codes > fmt.max_code
    if saturate:
        codes = codes.clamp(max=fmt.max_code)
    else:
        codes = torch.where(beyond, _special(fmt, fmt.overflow_code, beyond), codes)
    codes = torch.where(is_nan, _special(fmt, fmt.nan_code, is_nan), codes)
    return _signed(codes, torch.signbit(wide), fmt).to(torch.uint8)


def decode(codes: Tensor, fmt: FloatFormat, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the numbers of codes.

    Args:
        codes: uint8, any shape.
        fmt: the format.
        dtype: type of the result; bfloat16, float16 and float32 hold every number.

    Returns:
        Numbers of the same shape.
    """
    table = decode_table(fmt).to(device=codes.device, dtype=dtype)
    return table[codes.int()]


def cast(
    x: Tensor,
    fmt: FloatFormat,
    *,
    rounding: Rounding = "nearest",
    saturate: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Round numbers to those that a format has.

    Args:
        x: floating point, any shape.
        fmt: the format.
        rounding: rounding that `encode` takes.
        saturate: switch that `encode` takes.
        generator: generator that `encode` takes.

    Returns:
        Numbers of the shape and type of `x`.

    Raises:
        ConfigError: as that of `encode`.

    Example:
        >>> from steelyard.nn.numerics.floats import E4M3
        >>> cast(torch.tensor([0.3, 17.0, 500.0]), E4M3)
        tensor([  0.3125,  16.0000, 448.0000])
    """
    codes = encode(x, fmt, rounding=rounding, saturate=saturate, generator=generator)
    return decode(codes, fmt, x.dtype)


def scale_bias(amax: Tensor, fmt: FloatFormat, *, margin: int = 0) -> Tensor:
    """Return the largest b for which amax 2^b does not pass a format's largest number.

    Args:
        amax: largest absolute values, at least 0 and finite, any shape.
        fmt: the format.
        margin: powers of two kept free above.

    Returns:
        int32 of the same shape, in [-126, 126]: floor(log2(MAX / amax)) - margin; 0 where amax is
        0.

    Source: Perez et al. 2023 (arXiv 2309.17224) (FP8-AMAX).
    """
    # Mantissas and exponents compare exactly, where a logarithm errs near powers of two.
    mantissas, exponents = torch.frexp(amax.float())
    top_mantissa, top_exponent = math.frexp(fmt.max)
    biases = top_exponent - exponents - (mantissas > top_mantissa).int() - margin
    biases = torch.where(mantissas == 0, 0, biases)
    return biases.clamp(-MAX_SCALE_BIAS, MAX_SCALE_BIAS).int()


def power_of_two(exponents: Tensor) -> Tensor:
    """Return 2^exponent, exactly.

    Args:
        exponents: int32 in [-126, 127].

    Returns:
        float32 of the same shape.
    """
    # Made from bits: vector code of `exp2` and `pow` may miss by one unit.
    return ((exponents + 127) << 23).view(torch.float32)


def _special(fmt: FloatFormat, code: int | None, wanted: Tensor) -> Tensor:
    """Return a special code as a tensor, or refuse where it is wanted and there is none."""
    if code is None:
        if wanted.any():
            raise ConfigError(
                f"{fmt.name} has no code for NaN or for what is beyond {fmt.max:g}",
                hint="saturate, and cast no NaN",
            )
        code = 0
    return torch.full((), code, dtype=torch.int32, device=wanted.device)


def _signed(codes: Tensor, negative: Tensor, fmt: FloatFormat) -> Tensor:
    """Put signs into codes."""
    signed = codes | (negative.int() << fmt.size_bits)
    if fmt.specials != "fnuz":
        return signed
    # The code of a negative 0 is NaN here.
    return torch.where(codes == 0, 0, signed)

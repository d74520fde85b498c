"""The compiled kernels of FP8, where they are right; PyTorch's operators do without them."""

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from steelyard.errors import BackendError
from steelyard.native import FLAGS, NativeCode, load, switched_off, typed, verdict
from steelyard.nn.numerics.floats import E4M3, FloatFormat, decode_table

__all__ = ["compiled", "native_decode", "native_gemv", "native_round"]

_CODE = NativeCode(
    name="fp8", sources=(Path(__file__).parent / "kernels.cpp",), flags=(*FLAGS, "-fopenmp")
)
_SIZE, _PLACE, _FLOAT = ctypes.c_int64, ctypes.c_void_p, ctypes.c_float
_SIGNATURES = {
    "steelyard_fp8_round": (
        *(_PLACE, _SIZE, _SIZE, _SIZE, _SIZE, _PLACE, _SIZE, _SIZE, _SIZE, _FLOAT, _SIZE, _SIZE),
        *(_PLACE, _PLACE, _SIZE),
    ),
    "steelyard_fp8_decode": (_PLACE, *[_SIZE] * 4, *[_PLACE] * 3, _SIZE),
    "steelyard_fp8_gemv": (_PLACE, _PLACE, _SIZE, _SIZE, _FLOAT, _PLACE, _PLACE, _SIZE),
}
_HALF_BIAS = 15


@cache
def compiled() -> ctypes.CDLL | None:
    """Load the kernels, compiling them if this machine has not done so yet (about two seconds).

    Returns:
        The library; None without a compiler, with `STEELYARD_NATIVE=0`, or where its results differ
        from PyTorch's.
    """
    if switched_off():
        return None
    try:
        library = typed(load(_CODE), _SIGNATURES)
    except BackendError:
        return None
    return library if not verdict(library, "casts", lambda: _difference(library), 0.5) else None


def native_round(
    library: ctypes.CDLL,
    x: Tensor,
    fmt: FloatFormat,
    factors: Tensor,
    group: int,
    *,
    unscaled: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Round numbers times their factors to a format of eight bits, saturating.

    Args:
        library: library that `compiled` returned.
        x: float32 or bfloat16 [N, K], contiguous, on the CPU.
        fmt: a format of eight bits that has NaN.
        factors: float32 [N, G], or [1, 1] for one of all.
        group: numbers of a row that share a factor.
        unscaled: whether the numbers returned are divided by their factors again.
        dtype: their type, float32 or bfloat16.

    Returns:
        Codes uint8 [N, K] and the numbers they stand for.
    """
    codes = torch.empty(x.shape, dtype=torch.uint8)
    numbers = torch.empty(x.shape, dtype=dtype)
    kinds = (x.dtype == torch.bfloat16) + 2 * (dtype == torch.bfloat16)
    # One factor of all: the matrix is a row.
    is_flat = factors.numel() == 1
    rows, columns = (1, x.numel()) if is_flat else x.shape
    library.steelyard_fp8_round(
        *(x.data_ptr(), kinds, rows, columns, max(1, columns if is_flat else group)),
        *(factors.data_ptr(), unscaled, fmt.mantissa_bits, fmt.min_exponent, fmt.max, fmt.nan_code),
        *(fmt.specials != "fnuz", codes.data_ptr(), numbers.data_ptr(), torch.get_num_threads()),
    )
    return codes, numbers


def native_decode(
    library: ctypes.CDLL,
    codes: Tensor,
    fmt: FloatFormat,
    factors: Tensor | None,
    group: int,
    dtype: torch.dtype,
) -> Tensor:
    """Return the numbers of codes, times factors.

    Args:
        library: library that `compiled` returned.
        codes: uint8 [N, K], contiguous, on the CPU.
        fmt: their format.
        factors: float32 [N, G], or None.
        group: numbers of a row that share a factor.
        dtype: float32 or bfloat16.

    Returns:
        Numbers [N, K].
    """
    numbers = torch.empty(codes.shape, dtype=dtype)
    library.steelyard_fp8_decode(
        *(codes.data_ptr(), dtype == torch.bfloat16, *codes.shape, max(1, group)),
        *(None if factors is None else factors.data_ptr(), decode_table(fmt).data_ptr()),
        *(numbers.data_ptr(), torch.get_num_threads()),
    )
    return numbers


def native_gemv(library: ctypes.CDLL, codes: Tensor, fmt: FloatFormat, x: Tensor) -> Tensor:
    """Multiply a matrix of codes with a vector, reading one byte a weight.

    Args:
        library: library that `compiled` returned.
        codes: uint8 [O, K], contiguous, no NaN among them.
        fmt: a format of four exponent bits.
        x: float32 [K], contiguous.

    Returns:
        float32 [O]: products of the codes' numbers, not yet unscaled.
    """
    y = torch.empty(codes.shape[0])
    library.steelyard_fp8_gemv(
        *(codes.data_ptr(), decode_table(fmt).data_ptr(), *codes.shape),
        *(2.0 ** (_HALF_BIAS - fmt.bias), x.data_ptr(), y.data_ptr(), torch.get_num_threads()),
    )
    return y


def _difference(library: ctypes.CDLL) -> float:
    """Return the largest difference of a code from PyTorch's, over all bfloat16 but NaN."""
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    every = every[~every.isnan()][None].contiguous()
    found, _ = native_round(
        library, every, E4M3, torch.ones(1, 1), 0, unscaled=False, dtype=torch.bfloat16
    )
    wanted = every.float().clamp(-E4M3.max, E4M3.max).to(torch.float8_e4m3fn).view(torch.uint8)
    return float((found.int() - wanted.int()).abs().max())

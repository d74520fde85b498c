"""Linear maps that keep one byte per weight and read no more: for decoding, which memory bounds."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steelyard.errors import ConfigError
from steelyard.nn.fp8.convert import is_hidden, linear_maps, replace
from steelyard.nn.fp8.native import compiled, native_gemv
from steelyard.nn.fp8.scaled import ScaledCodes, quantize
from steelyard.nn.numerics.floats import E4M3, E4M3FNUZ, FloatFormat
from steelyard.nn.numerics.fp8 import power_of_two, scale_bias
from steelyard.nn.numerics.groups import refuse_unquantizable

__all__ = ["Float8Weights", "compress_weights", "quantize_weights"]

_FORMATS = (E4M3, E4M3FNUZ)
_NATIVE_ROWS = 4
"""Rows of inputs up to which reading the matrix once per row beats decoding it."""


def quantize_weights(weights: Tensor, fmt: FloatFormat = E4M3) -> ScaledCodes:
    """Round a matrix to eight-bit floats with one power of two.

    Args:
        weights: floating point [O, K], finite.
        fmt: E4M3 or E4M3FNUZ.

    Returns:
        The codes, O K + 1 bytes.

    Raises:
        ConfigError: the format, the shape, the type or a number cannot be taken.

    Source: Perez et al. 2023 (arXiv 2309.17224) (weights in inference).
    """
    if fmt not in _FORMATS:
        raise ConfigError(
            f"weights in {fmt.name} are not supported",
            hint=f"allowed: {', '.join(item.name for item in _FORMATS)}",
        )
    wide = refuse_unquantizable(weights, "weights of FP8")
    bias = scale_bias(wide.abs().amax() if wide.numel() else wide.new_zeros(()), fmt)
    return quantize(wide, fmt, bias.view(1, 1), wide.shape[1], torch.float32)[0]


class Float8Weights(nn.Module):
    """A linear map for inference whose weights are eight-bit floats; inputs keep their type.

    Attributes:
        codes: uint8 [O, K], a buffer.
        biases: int32 [1, 1], a buffer.
        bias: float [O], a parameter of the map, or None.
        fmt: format of the codes.
    """

    codes: Tensor
    biases: Tensor

    def __init__(self, inner: nn.Linear, fmt: FloatFormat = E4M3) -> None:
        """Round the weights of a linear map.

        Args:
            inner: the map; its bias is taken over.
            fmt: E4M3 or E4M3FNUZ.

        Raises:
            ConfigError: a weight cannot be rounded.
        """
        super().__init__()
        record = quantize_weights(inner.weight, fmt)
        self.register_buffer("codes", record.codes)
        self.register_buffer("biases", record.biases)
        self.bias, self.fmt = inner.bias, fmt

    @property
    def record(self) -> ScaledCodes:
        """The weights as codes and their power of two."""
        return ScaledCodes(self.codes, self.biases, self.fmt, self.codes.shape[1])

    def forward(self, x: Tensor) -> Tensor:
        """Apply the map.

        Up to four rows on a CPU multiply with the codes as they lie in memory; more rows, and other
        devices, decode the matrix first.

        Args:
            x: floating point [..., K].

        Returns:
            [..., O] in the type of `x`.
        """
        rows = x.reshape(-1, x.shape[-1])
        library = compiled() if x.device.type == "cpu" else None
        # The kernel reads codes once per row and has no gradient: from some rows on decoding wins.
        if library is not None and len(rows) <= _NATIVE_ROWS and not torch.is_grad_enabled():
            wide = rows.float().contiguous()
            found = [native_gemv(library, self.codes, self.fmt, row) for row in wide]
            y = torch.stack(found) if found else wide.new_zeros(0, len(self.codes))
            scaled = y * power_of_two(-self.biases)
        else:
            scaled = F.linear(rows, self.record.numbers(x.dtype)) * power_of_two(-self.biases)
        y = scaled.to(x.dtype)
        if self.bias is not None:
            y = y + self.bias.to(x.dtype)
        return y.view(*x.shape[:-1], len(self.codes))


def compress_weights(
    model: nn.Module,
    *,
    wanted: Callable[[str, nn.Linear], bool] = is_hidden,
    fmt: FloatFormat = E4M3,
) -> tuple[int, int]:
    """Replace linear maps of a model by ones that keep a byte per weight, for inference.

    Args:
        model: any module; it is changed and trains no more.
        wanted: whether a layer is replaced, by name and module.
        fmt: E4M3 or E4M3FNUZ.

    Returns:
        Bytes of the replaced weights in bfloat16, and in codes and biases.

    Raises:
        ConfigError: no layer is replaced, or a weight cannot be rounded.
    """
    before = after = 0
    for name, module in linear_maps(model, wanted):
        layer = Float8Weights(module, fmt)
        replace(model, name, layer)
        before += 2 * module.weight.numel()
        after += layer.record.num_bytes
    return before, after

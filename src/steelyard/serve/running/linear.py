"""Linear layers through PyTorch's own packed products: the path without a compiler."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steelyard.errors import BackendError
from steelyard.nn.numerics.blocks import BlockCodes
from steelyard.nn.numerics.int4 import Int4Groups
from steelyard.nn.numerics.int8 import Int8Rows, quantize_int8
from steelyard.nn.stored import Codes
from steelyard.serve.running.sources import Source, as_codes, as_numbers
from steelyard.serve.running.weights import ComputedIn

__all__ = ["PackedLinear", "can_pack"]

_ROWS = 64
"""Rows the layout of oneDNN is chosen for; a decoding batch."""
_FEW = 16
"""Rows up to which PyTorch's products of bytes and nibbles are faster than widening the weights."""
_OUTPUTS = 64
"""Columns that they take at once."""
_INPUTS = 32
"""Places of a row that they take at once."""

Product = Callable[[Tensor], Tensor]


@cache
def can_pack(kind: ComputedIn) -> bool:
    """Whether this PyTorch has products of a type; a small one is tried.

    Args:
        kind: type of the weights.

    Returns:
        True where it ran.
    """
    if kind in ("fp32", "bf16") and not torch.backends.mkldnn.is_available():
        return False
    try:
        _product(torch.zeros(64, 64), None, kind)[0](torch.zeros(1, 64))
    except (AttributeError, RuntimeError):
        return False
    return True


class PackedLinear(nn.Module):
    """A linear map over packed weights, of float32 rows.

    In float32, on two cores 1.5 to 3 times faster than `F.linear` for 8 to 64 rows, and equal
    beyond 512. With "bf16" rows are rounded too, with "int8" and "int4" likewise.

    Attributes:
        num_bytes: bytes of the copy.
    """

    def __init__(self, weight: Source, bias: Tensor | None = None, kind: ComputedIn = "fp32"):
        """Copy a weight.

        Args:
            weight: [N, K] on the CPU, K a multiple of 8: numbers, or codes, whose own type counts.
            bias: [N], or None.
            kind: type of the product, one that `can_pack`.
        """
        super().__init__()
        # Kept out of the module's own parameters: they are never trained, moved or saved.
        wide = None if bias is None else bias.detach().float()
        self._product, self.num_bytes = _product(weight, wide, kind)

    def forward(self, rows: Tensor) -> Tensor:
        """Return [..., N] of rows [..., K], float32."""
        return self._product(rows.float())


def _product(weight: Source, bias: Tensor | None, kind: ComputedIn) -> tuple[Product, int]:
    """Return a product with a weight, and the bytes that it holds."""
    if not isinstance(weight, Codes) and kind in ("fp32", "bf16"):
        dtype = torch.float32 if kind == "fp32" else torch.bfloat16
        return _onednn(as_numbers(weight, dtype), bias)
    record = as_codes(weight, kind)
    if isinstance(record, BlockCodes):
        # PyTorch has no products of groups of bytes.
        record = quantize_int8(record.dequantize())
    return _bytes(record, bias) if isinstance(record, Int8Rows) else _nibbles(record, bias)


def _onednn(weight: Tensor, bias: Tensor | None) -> tuple[Product, int]:
    """Lay a weight out for oneDNN; the operators are PyTorch's own and may go."""
    dtype = weight.dtype
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
    narrow = None if bias is None else bias.to(dtype)

    def product(rows: Tensor) -> Tensor:
        found = torch.ops.mkldnn._linear_pointwise(rows.to(dtype), packed, narrow, "none", [], "")
        return found.float()

    return product, weight.numel() * dtype.itemsize


def _bytes(given: Int8Rows, bias: Tensor | None) -> tuple[Product, int]:
    """Keep a weight in bytes."""
    outputs, inputs = given.codes.shape
    more = -outputs % _OUTPUTS
    codes = F.pad(given.codes, (0, -inputs % _INPUTS, 0, more)).contiguous()
    record = Int8Rows(codes, F.pad(given.scales, (0, more)))
    scales = record.scales.to(torch.bfloat16)

    def few(rows: Tensor) -> Tensor:
        return torch.ops.aten._weight_int8pack_mm(rows, codes, scales)

    return _narrow(few, record.dequantize, (outputs, codes.shape[1]), bias), record.num_bytes


def _nibbles(given: Int4Groups, bias: Tensor | None) -> tuple[Product, int]:
    """Keep a weight in nibbles."""
    outputs, group = len(given.packed), given.group
    more, width = -outputs % _OUTPUTS, given.scales.shape[1] * group
    record = Int4Groups(
        F.pad(given.packed, (0, (width - given.width + 1) // 2, 0, more)),
        F.pad(given.scales, (0, 0, 0, more)),
        None if given.zeros is None else F.pad(given.zeros, (0, 0, 0, more)),
        group,
        width,
    )
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(record.codes().int(), 1)
    # Scale and what is added to a group: (code - 8) * scale + (8 - zero) * scale.
    scales = record.scales.float().T
    zeros = torch.full_like(scales, 8.0) if record.zeros is None else record.zeros.float().T
    pairs = torch.stack((scales, (8.0 - zeros) * scales), dim=-1).to(torch.bfloat16).contiguous()

    def few(rows: Tensor) -> Tensor:
        return torch.ops.aten._weight_int4pack_mm_for_cpu(rows, packed, group, pairs)

    product = _narrow(few, record.dequantize, (outputs, width), bias)
    return product, record.num_bytes + pairs.nbytes


def _narrow(
    few: Product, widened: Callable[[], Tensor], shape: tuple[int, int], bias: Tensor | None
) -> Product:
    """Run few rows in an operator for bfloat16 rows, and many over widened weights.

    The operators read beyond sizes that they do not take, so weights and rows are filled up.
    """
    outputs, inputs = shape

    def product(rows: Tensor) -> Tensor:
        flat = rows.flatten(0, -2).to(torch.bfloat16)
        flat = F.pad(flat, (0, inputs - flat.shape[1]))
        found = few(flat) if len(flat) <= _FEW else F.linear(flat, widened().to(torch.bfloat16))
        whole = found[:, :outputs].float().unflatten(0, rows.shape[:-1])
        return whole if bias is None else whole + bias

    return product


def require_packing(kind: ComputedIn) -> None:
    """Refuse a type that this PyTorch has no products of.

    Args:
        kind: type of the weights.

    Raises:
        BackendError: there is none.
    """
    if not can_pack(kind):
        raise BackendError(
            f"this PyTorch has no products with {kind} weights on this processor",
            hint="install g++ for the native kernels, or serve with --weights fp32",
        )

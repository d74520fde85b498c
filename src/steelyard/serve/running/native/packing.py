"""Weights of a linear layer as the native products read them."""

import ctypes
from ctypes import Structure, c_int64, c_void_p

import torch
from torch import Tensor
from torch.nn import functional as F

from steelyard.nn.numerics.int4 import quantize_int4
from steelyard.nn.numerics.int8 import quantize_int8
from steelyard.serve.running.weights import INT4_GROUP, ComputedIn

__all__ = ["PANEL", "LinearMap", "PackedWeight", "padded"]

PANEL = 16
"""Columns of a packed panel, as in lanes.h; rows of buffers are padded to it."""
_KINDS: dict[ComputedIn, int] = {"fp32": 0, "bf16": 1, "int8": 2, "int4": 3}
_LINE_BYTES = 64
# What follows the last line: the products fetch ahead, and never read it.


def padded(width: int) -> int:
    """Round up to whole panels."""
    return -(-width // PANEL) * PANEL


class LinearMap(Structure):
    """`Linear` of linear.h."""

    _fields_ = (
        *((name, c_void_p) for name in ("packed", "scales", "zeros", "bias")),
        *((name, c_int64) for name in ("outputs", "inputs", "kind", "group")),
    )


class PackedWeight:
    """A weight matrix laid out for the native products.

    Attributes:
        map: what the kernels are given; valid as long as this object.
        num_bytes: bytes of codes, scales and zero points.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        weight: Tensor,
        bias: Tensor | None,
        kind: ComputedIn,
        *,
        group: int = INT4_GROUP,
        zero_points: bool = False,
    ) -> None:
        """Round a weight to a type and lay it out.

        Args:
            library: the kernels.
            weight: float32 or bfloat16 [N, K] on the CPU, K a multiple of 8.
            bias: [N], or None.
            kind: type of the product.
            group: weights that share a scale with "int4".
            zero_points: whether groups have zero points with "int4".

        Raises:
            ConfigError: a weight cannot be rounded to the type.
        """
        outputs, inputs = weight.shape
        codes, scales, zeros = _codes(weight.detach(), kind, group, zero_points)
        size = library.steelyard_packed_bytes(_KINDS[kind], outputs, inputs)
        # A line in one line of the cache: PyTorch aligns to as much, but does not promise it.
        self._memory = torch.empty(size + _LINE_BYTES, dtype=torch.uint8)
        first = -self._memory.data_ptr() % _LINE_BYTES
        packed = self._memory[first : first + size]
        library.steelyard_pack(
            _KINDS[kind], codes.data_ptr(), outputs, inputs, packed.data_ptr()
        )
        wide = None if bias is None else F.pad(bias.detach().float(), (0, -outputs % PANEL))
        self._kept = (scales, zeros, wide)
        self.num_bytes = size + sum(item.nbytes for item in (scales, zeros) if item is not None)
        places = [None if item is None else item.data_ptr() for item in self._kept]
        span = group if kind == "int4" else inputs
        self.map = LinearMap(packed.data_ptr(), *places, outputs, inputs, _KINDS[kind], span)


def _codes(
    weight: Tensor, kind: ComputedIn, group: int, zero_points: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return a weight as `steelyard_pack` takes it, with scales and zero points laid out."""
    if kind == "fp32":
        return weight.float().contiguous(), None, None
    if kind == "bf16":
        return weight.to(torch.bfloat16).contiguous(), None, None
    if kind == "int8":
        rows = quantize_int8(weight)
        return rows.codes.contiguous(), F.pad(rows.scales, (0, -len(weight) % PANEL)), None
    record = quantize_int4(weight, group=group, zero_points=zero_points)
    zeros = None if record.zeros is None else _by_panel(record.zeros)
    return record.packed.contiguous(), _by_panel(record.scales), zeros


def _by_panel(values: Tensor) -> Tensor:
    """Lay [N, G] out as [panels, G, 16]."""
    filled = F.pad(values, (0, 0, 0, -len(values) % PANEL))
    return filled.unflatten(0, (-1, PANEL)).transpose(1, 2).contiguous()

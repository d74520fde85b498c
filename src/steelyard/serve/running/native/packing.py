"""Weights of a linear layer as the native products read them."""

import ctypes
from ctypes import Structure, c_int64, c_void_p

import torch
from torch import Tensor
from torch.nn import functional as F

from steelyard.errors import CapacityError
from steelyard.nn.numerics.bf16 import to_bf16
from steelyard.nn.numerics.int4 import quantize_int4
from steelyard.nn.numerics.int8 import quantize_int8
from steelyard.serve.running.pool import lazy_zeros
from steelyard.serve.running.weights import INT4_GROUP, ComputedIn

__all__ = ["PANEL", "Arena", "LinearMap", "PackedWeight", "arena_bytes", "padded"]

PANEL = 16
"""Columns of a packed panel, as in lanes.h; rows of buffers are padded to it."""
_KINDS: dict[ComputedIn, int] = {"fp32": 0, "bf16": 1, "int8": 2, "int4": 3}
_LINE_BYTES = 64
_ROWS = 1024


def padded(width: int) -> int:
    """Round up to whole panels."""
    return -(-width // PANEL) * PANEL


class LinearMap(Structure):
    """`Linear` of linear.h."""

    _fields_ = (
        *((name, c_void_p) for name in ("packed", "scales", "zeros", "bias")),
        *((name, c_int64) for name in ("outputs", "inputs", "kind", "group")),
    )


class Arena:
    """One piece of memory for many packed weights, in huge pages where the system has them.

    Weights stream once per step, and walks of the page table for small pages would cost a third of
    the time.
    """

    def __init__(self, num_bytes: int) -> None:
        """Take memory, which is used when it is first written.

        Args:
            num_bytes: bytes of all that will be kept, as `arena_bytes` counts them.

        Raises:
            CapacityError: there is no memory.
        """
        try:
            self._memory = lazy_zeros((num_bytes,), torch.uint8, torch.device("cpu"))
        except (OSError, OverflowError, RuntimeError) as error:
            raise CapacityError(
                f"no memory for {num_bytes} bytes of packed weights",
                hint="serve a smaller model, or --weights int4",
            ) from error
        self._used = 0

    def take(self, num_bytes: int) -> Tensor:
        """Return uint8 [num_bytes] that begin with a line of the cache."""
        first = self._used + -(self._memory.data_ptr() + self._used) % _LINE_BYTES
        self._used = first + num_bytes
        return self._memory[first : self._used]

    def keep(self, values: Tensor) -> Tensor:
        """Return a copy of some values that lies here."""
        taken = self.take(values.nbytes).view(values.dtype).view(values.shape)
        return taken.copy_(values)


def arena_bytes(library: ctypes.CDLL, outputs: int, inputs: int, kind: ComputedIn) -> int:
    """Return the bytes that a weight takes in an arena, at most.

    Args:
        library: the kernels.
        outputs: N.
        inputs: K.
        kind: type of the product.

    Returns:
        Bytes of lines, scales and zero points, each on a line of its own.
    """
    lines = library.steelyard_packed_bytes(_KINDS[kind], outputs, inputs)
    groups = -(-inputs // INT4_GROUP) if kind == "int4" else 1
    return lines + padded(outputs) * 4 * groups + 3 * _LINE_BYTES


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
        arena: Arena | None = None,
    ) -> None:
        """Round a weight to a type and lay it out.

        Args:
            library: the kernels.
            weight: float32 or bfloat16 [N, K] on the CPU, K a multiple of 8.
            bias: [N], or None.
            kind: type of the product.
            group: weights that share a scale with "int4".
            zero_points: whether groups have zero points with "int4".
            arena: where it is laid, with `arena_bytes` left; one of its own by default.

        Raises:
            ConfigError: a weight cannot be rounded to the type.
            CapacityError: there is no memory.
        """
        outputs, inputs = weight.shape
        codes, scales, zeros = _codes(weight.detach(), kind, group, zero_points)
        arena = arena or Arena(arena_bytes(library, outputs, inputs, kind))
        size = library.steelyard_packed_bytes(_KINDS[kind], outputs, inputs)
        packed = arena.take(size)
        library.steelyard_pack(_KINDS[kind], codes.data_ptr(), outputs, inputs, packed.data_ptr())
        wide = None if bias is None else F.pad(bias.detach().float(), (0, -outputs % PANEL))
        beside = [None if item is None else arena.keep(item) for item in (scales, zeros)]
        self.num_bytes = size + sum(item.nbytes for item in beside if item is not None)
        self._kept = (*beside, wide)
        self._packed = packed  # the structure holds addresses only
        places = [None if item is None else item.data_ptr() for item in self._kept]
        span = group if kind == "int4" else inputs
        self.map = LinearMap(packed.data_ptr(), *places, outputs, inputs, _KINDS[kind], span)


def _codes(
    weight: Tensor, kind: ComputedIn, group: int, zero_points: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return a weight as `steelyard_pack` takes it, with scales and zero points laid out."""
    if kind == "fp32":
        return weight.float().contiguous(), None, None
    # A few rows at a time: the codecs hold several float32 copies of what they are given.
    parts = weight.split(_ROWS)
    if kind == "bf16":
        is_rounded = weight.dtype == torch.bfloat16
        rounded = weight if is_rounded else torch.cat([to_bf16(part) for part in parts])
        return rounded.contiguous(), None, None
    if kind == "int8":
        rows = [quantize_int8(part) for part in parts]
        scales = torch.cat([item.scales for item in rows])
        return (
            torch.cat([item.codes for item in rows]),
            F.pad(scales, (0, -len(weight) % PANEL)),
            None,
        )
    records = [quantize_int4(part, group=group, zero_points=zero_points) for part in parts]
    found = [item.zeros for item in records if item.zeros is not None]
    zeros = _by_panel(torch.cat(found)) if found else None
    scales = _by_panel(torch.cat([item.scales for item in records]))
    return torch.cat([item.packed for item in records]), scales, zeros


def _by_panel(values: Tensor) -> Tensor:
    """Lay [N, G] out as [panels, G, 16]."""
    filled = F.pad(values, (0, 0, 0, -len(values) % PANEL))
    return filled.unflatten(0, (-1, PANEL)).transpose(1, 2).contiguous()

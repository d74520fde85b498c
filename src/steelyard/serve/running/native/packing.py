"""Weights of a linear layer as the native products read them."""

import ctypes
import threading
from ctypes import Structure, c_int64, c_void_p
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from steelyard.cost.weights import StoredWidth
from steelyard.errors import CapacityError
from steelyard.nn.numerics.blocks import BlockCodes
from steelyard.nn.numerics.int8 import Int8Rows
from steelyard.nn.stored import Codes, StoredLinear
from steelyard.serve.running.pool import lazy_zeros
from steelyard.serve.running.sources import Source, as_codes, as_numbers, shape_of
from steelyard.serve.running.weights import INT4_GROUP, ComputedIn

__all__ = [
    "MAP_SIZES",
    "PANEL",
    "Arena",
    "LinearMap",
    "PackedWeight",
    "arena_bytes",
    "padded",
    "padded_bias",
    "stored_width",
]

PANEL = 16
"""Columns of a packed panel, as in lanes.h; rows of buffers are padded to it."""
_KINDS: dict[ComputedIn, int] = {"fp32": 0, "bf16": 1, "int8": 2, "int4": 3}
_BLOCK_KINDS: dict[ComputedIn, int] = {"int8": 4, "int4": 5}
_HALF_KIND = 6
"""Numbers of linear.h; the second ones are of `BlockCodes`, the last of float16 read as float32."""
_NUMBERS = (*_KINDS.items(), *_BLOCK_KINDS.items(), ("fp32", _HALF_KIND))
_LINE_BYTES = 64


def padded(width: int) -> int:
    """Round up to whole panels."""
    return -(-width // PANEL) * PANEL


def padded_bias(bias: Tensor | None) -> Tensor | None:
    """Return a bias in float32, filled up with zeros to whole panels.

    Args:
        bias: [N], or None.

    Returns:
        A new tensor, or None.
    """
    return None if bias is None else F.pad(bias.detach().float(), (0, -len(bias) % PANEL))


MAP_SIZES = ("outputs", "inputs", "kind", "group", "parts", "lowered")
"""Sizes of a map, in the order of linear.h."""


class LinearMap(Structure):
    """`Linear` of linear.h."""

    _fields_ = (
        *((name, c_void_p) for name in ("packed", "scales", "zeros", "bias")),
        *((name, c_int64) for name in MAP_SIZES),
    )


def stored_width(item: LinearMap) -> StoredWidth:
    """Return what multiplies a map's weights, and the bytes of one with what stands beside it."""
    products = next(kind for kind, number in _NUMBERS if number == item.kind)
    codes = (
        2.0
        if item.kind == _HALF_KIND
        else {"fp32": 4.0, "bf16": 2.0, "int8": 1.0}.get(products, 0.5)
    )
    if products in ("fp32", "bf16"):
        return StoredWidth(products, codes)
    if item.parts:  # as `side_bytes` of linear.h
        beside = (1 + item.lowered) * (2 + (item.parts if item.parts > 1 else 0))
        return StoredWidth(products, codes + beside / (item.group * item.parts))
    if products == "int8":
        return StoredWidth(products, codes + 4.0 / item.inputs)
    return StoredWidth(products, codes + (2 + (item.zeros is not None)) / item.group)


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
        self._taking = threading.Lock()

    @property
    def used(self) -> Tensor:
        """What was taken so far, uint8."""
        return self._memory[: self._used]

    def take(self, num_bytes: int) -> Tensor:
        """Return uint8 [num_bytes] that begin with a line of the cache; threads may ask at once."""
        with self._taking:
            first = self._used + -(self._memory.data_ptr() + self._used) % _LINE_BYTES
            self._used = first + num_bytes
        return self._memory[first : first + num_bytes]

    def keep(self, values: Tensor) -> Tensor:
        """Return a copy of some values that lies here."""
        taken = self.take(values.nbytes).view(values.dtype).view(values.shape)
        return taken.copy_(values)


def arena_bytes(
    library: ctypes.CDLL, outputs: int, inputs: int, kind: ComputedIn, *, is_coded: bool = False
) -> int:
    """Return the bytes that a weight takes in an arena, at most.

    Args:
        library: the kernels.
        outputs: N.
        inputs: K.
        kind: type of the product.
        is_coded: whether the weight is of codes, whose groups may be short.

    Returns:
        Bytes of lines, and of what stands beside them, each on a line of its own.
    """
    lines = library.steelyard_packed_bytes(_KINDS[kind], outputs, inputs)
    groups = -(-inputs // INT4_GROUP) if kind == "int4" or is_coded else 1
    # Beside 32 weights of a block, in groups of 16, stand two float16 and four factors.
    return lines + padded(outputs) * (8 if is_coded else 4) * groups + 3 * _LINE_BYTES


class PackedWeight:
    """A weight matrix laid out for the native products.

    Attributes:
        map: what the kernels are given; valid as long as this object.
        num_bytes: bytes of codes, scales and zero points.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        weight: Source,
        bias: Tensor | None,
        kind: ComputedIn,
        *,
        group: int = INT4_GROUP,
        zero_points: bool = False,
        arena: Arena | None = None,
    ) -> None:
        """Round a weight to a type, unless it is of codes already, and lay it out.

        Args:
            library: the kernels.
            weight: [N, K] on the CPU, K a multiple of 8: numbers, or codes, whose own type and
                groups count.
            bias: [N], or None.
            kind: type of the product.
            group: weights that share a scale with "int4", when numbers are rounded.
            zero_points: whether groups have zero points with "int4", when numbers are rounded.
            arena: where it is laid, with `arena_bytes` of `kind` left; one of its own by default,
                and for codes of another type.

        Raises:
            ConfigError: a weight cannot be rounded to the type.
            CapacityError: there is no memory.
        """
        outputs, inputs = shape_of(weight)
        laid = _laid_out(weight, kind, group, zero_points)
        if arena is None or laid.kind != kind:
            coded = isinstance(weight, Codes)
            arena = Arena(arena_bytes(library, outputs, inputs, laid.kind, is_coded=coded))
        number = laid.number
        size = library.steelyard_packed_bytes(number, outputs, inputs)
        packed = arena.take(size)
        library.steelyard_pack(number, laid.codes.data_ptr(), outputs, inputs, packed.data_ptr())
        wide = padded_bias(bias)
        beside = [None if item is None else arena.keep(item) for item in (laid.scales, laid.zeros)]
        self.num_bytes = size + sum(item.nbytes for item in beside if item is not None)
        self._kept = (*beside, wide)
        self._packed = packed  # the structure holds addresses only
        places = [None if item is None else item.data_ptr() for item in self._kept]
        sizes = outputs, inputs, number, laid.group or inputs, laid.parts, laid.lowered
        self.map = LinearMap(packed.data_ptr(), *places, *sizes)


class _Laid(NamedTuple):
    """A weight as `steelyard_pack` takes it, with scales and zero points laid out."""

    kind: ComputedIn
    codes: Tensor
    scales: Tensor | None = None
    zeros: Tensor | None = None
    group: int = 0
    parts: int = 0
    lowered: bool = False

    @property
    def number(self) -> int:
        """Kind of linear.h."""
        if self.codes.dtype == torch.float16:
            return _HALF_KIND
        return (_BLOCK_KINDS if self.parts else _KINDS)[self.kind]


def _laid_out(weight: Source, kind: ComputedIn, group: int, zero_points: bool) -> _Laid:
    """Bring a weight into the form that is packed."""
    if not isinstance(weight, Codes) and kind in ("fp32", "bf16"):
        is_half = isinstance(weight, StoredLinear) and weight.plain_dtype == torch.float16
        # In float32 the products widen them, to the same numbers.
        wide = torch.float16 if is_half else torch.float32
        return _Laid(kind, as_numbers(weight, wide if kind == "fp32" else torch.bfloat16))
    record = as_codes(weight, kind, group=group, zero_points=zero_points)
    if isinstance(record, BlockCodes):
        return _laid_blocks(record)
    if isinstance(record, Int8Rows):
        scales = F.pad(record.scales, (0, -len(record.scales) % PANEL))
        return _Laid("int8", record.codes.contiguous(), scales)
    zeros = None if record.zeros is None else _by_panel(record.zeros)
    scales = _by_panel(record.scales)
    return _Laid("int4", record.packed.contiguous(), scales, zeros, record.group)


def _laid_blocks(record: BlockCodes) -> _Laid:
    """Lay blocks out, what stands beside each block's codes side by side as bytes."""
    blocks = record.scales.shape[1]
    beside = []
    for values in (record.scales, record.lows, record.factors, record.ratios):
        if values is not None:
            columns = _by_panel(values).view(torch.uint8)
            beside.append(columns.flatten(1).unflatten(1, (blocks, -1)))
    return _Laid(
        "int4" if record.is_nibbles else "int8",
        record.codes.contiguous(),
        torch.cat(beside, dim=-1),
        group=record.group,
        parts=record.parts,
        lowered=record.lows is not None,
    )


def _by_panel(values: Tensor) -> Tensor:
    """Lay [N, G] out as [panels, G, 16]."""
    filled = F.pad(values, (0, 0, 0, -len(values) % PANEL))
    return filled.unflatten(0, (-1, PANEL)).transpose(1, 2).contiguous()

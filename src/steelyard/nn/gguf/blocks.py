"""Blocks of GGUF's quantized types as codes, scales and minimums."""

from typing import NamedTuple

import torch
from torch import Tensor

from steelyard.nn.gguf.kinds import TensorKind
from steelyard.nn.grouped import GroupedCodes
from steelyard.nn.numerics.blocks import BlockCodes
from steelyard.nn.numerics.int4 import Int4Groups, pack_nibbles

__all__ = ["block_codes", "int4_groups", "is_nibbles", "unpack"]

_NIBBLES = ("Q4_0", "Q4_1", "Q4_K")
"""Types of four bits."""


def is_nibbles(kind: TensorKind) -> bool:
    """Whether codes of a type take four bits."""
    return kind.name in _NIBBLES


def unpack(raw: Tensor, kind: TensorKind) -> GroupedCodes:
    """Split rows of blocks into codes, scales and minimums; nothing is rounded.

    Args:
        raw: uint8 [rows, bytes], whole blocks of a row one after another.
        kind: a quantized type.

    Returns:
        The rows; groups hold 32 weights, 16 for Q6_K.

    Source: `dequantize_row_*` of ggml (github.com/ggml-org/ggml, src/ggml-quants.c).
    """
    parts = _UNPACKERS[kind.name](raw.reshape(-1, kind.block_bytes))
    scales, lows = parts.scales.float(), parts.lows
    if parts.factors is not None:
        scales = scales * parts.factors.float()
    if lows is not None:
        lows = lows.float() if parts.ratios is None else lows.float() * parts.ratios.float()
    rows = raw.shape[0]
    return GroupedCodes(
        parts.codes.reshape(rows, -1),
        scales.reshape(rows, -1),
        None if lows is None else -lows.reshape(rows, -1),
    )


def block_codes(raw: Tensor, kind: TensorKind) -> BlockCodes:
    """Return rows of blocks as products read them; nothing is rounded.

    Args:
        raw: uint8 [rows, bytes], whole blocks of a row one after another.
        kind: a quantized type.

    Returns:
        Nibbles of Q4_1 and Q4_K, bytes of the others.
    """
    parts = _UNPACKERS[kind.name](raw.reshape(-1, kind.block_bytes))
    rows = raw.shape[0]
    scales, lows, factors, ratios = (
        None if item is None else item.reshape(rows, -1) for item in parts[1:]
    )
    codes = parts.codes.reshape(rows, -1)
    width = codes.shape[1]
    assert scales is not None
    groups = scales if factors is None else factors
    return BlockCodes(
        # Codes of Q4_0 are signed, see `int4_groups`.
        codes if lows is None or not is_nibbles(kind) else pack_nibbles(codes.view(torch.uint8)),
        scales,
        lows,
        factors,
        ratios,
        width // groups.shape[1],
        width,
    )


def int4_groups(raw: Tensor) -> Int4Groups:
    """Return rows of Q4_0 as products read them; nothing is rounded.

    Args:
        raw: uint8 [rows, bytes], whole blocks of a row one after another.

    Returns:
        Groups of 32 weights, their zero points in the middle.

    Source: `dequantize_row_q4_0` of ggml (github.com/ggml-org/ggml, src/ggml-quants.c).
    """
    blocks = raw.unflatten(1, (-1, 18))
    scales = blocks[..., :2].contiguous().view(torch.float16).squeeze(-1)
    # A block's first half stands in its low nibbles: two bytes at a time give two codes that
    # follow each other.
    pairs = blocks[..., 2:].contiguous().view(torch.int16)
    halves = torch.stack((pairs & 0x0F0F, (pairs >> 4) & 0x0F0F), dim=-2)
    packed = (halves | (halves >> 4)).to(torch.uint8)
    width = scales.shape[1] * 32
    return Int4Groups(packed.flatten(1), scales, None, 32, width)


class Parts(NamedTuple):
    """What blocks hold: int8 codes, and for each block, or for each of its groups, the rest."""

    codes: Tensor
    scales: Tensor
    lows: Tensor | None = None
    factors: Tensor | None = None
    ratios: Tensor | None = None


def _halves(blocks: Tensor, start: int) -> Tensor:
    """Return the float16 that stands at a byte of each block, [blocks, 1]."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16)


def _nibbles(packed: Tensor) -> Tensor:
    """Return low nibbles and, after them, high nibbles of each run: [..., n] to [..., 2, n]."""
    return torch.stack((packed & 0x0F, packed >> 4), dim=-2)


def _bits(packed: Tensor) -> Tensor:
    """Return the bits of bytes, lowest first: [blocks, bytes] to [blocks, bytes, 8]."""
    return (packed.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8)) & 1


def _signed(codes: Tensor, offset: int) -> Tensor:
    """Return codes without their offset, int8."""
    return codes.view(torch.int8) - offset


def _q4_0(blocks: Tensor) -> Parts:
    """Scale, 16 bytes of nibbles."""
    return Parts(_signed(_nibbles(blocks[:, 2:18]), 8), _halves(blocks, 0))


def _q4_1(blocks: Tensor) -> Parts:
    """Scale, the value of code 0, 16 bytes of nibbles."""
    codes = _nibbles(blocks[:, 4:20]).view(torch.int8)
    return Parts(codes, _halves(blocks, 0), _halves(blocks, 2))


def _q5_0(blocks: Tensor) -> Parts:
    """Scale, 4 bytes of fifth bits, 16 bytes of nibbles."""
    high = _bits(blocks[:, 2:6]).reshape(-1, 2, 16) << 4
    return Parts(_signed(_nibbles(blocks[:, 6:22]) | high, 16), _halves(blocks, 0))


def _q5_1(blocks: Tensor) -> Parts:
    """Scale, the value of code 0, 4 bytes of fifth bits, 16 bytes of nibbles."""
    high = _bits(blocks[:, 4:8]).reshape(-1, 2, 16) << 4
    codes = (_nibbles(blocks[:, 8:24]) | high).view(torch.int8)
    return Parts(codes, _halves(blocks, 0), _halves(blocks, 2))


def _q8_0(blocks: Tensor) -> Parts:
    """Scale, 32 signed bytes."""
    return Parts(blocks[:, 2:34].view(torch.int8), _halves(blocks, 0))


def _k_parts(codes: Tensor, blocks: Tensor) -> Parts:
    """Add scales and minimums of the eight groups: twelve bytes hold eight pairs of six bits."""
    first, second, last = blocks[:, 4:16].split(4, dim=1)
    scales = torch.cat((first & 0x3F, (last & 0x0F) | ((first >> 2) & 0x30)), dim=1)
    minimums = torch.cat((second & 0x3F, (last >> 4) | ((second >> 2) & 0x30)), dim=1)
    # The file subtracts its minimums.
    lows = -_halves(blocks, 2)
    return Parts(
        codes.view(torch.int8), _halves(blocks, 0), lows, scales.view(torch.int8), minimums
    )


def _q4_k(blocks: Tensor) -> Parts:
    """Scales of 8 groups, 128 bytes of nibbles in four runs of two groups each."""
    return _k_parts(_nibbles(blocks[:, 16:144].reshape(-1, 4, 32)), blocks)


def _q5_k(blocks: Tensor) -> Parts:
    """Scales of 8 groups, 32 bytes whose bit g is the fifth of group g, nibbles as in Q4_K."""
    high = _bits(blocks[:, 16:48]).transpose(1, 2).reshape(-1, 4, 2, 32) << 4
    codes = _nibbles(blocks[:, 48:176].reshape(-1, 4, 32)) | high
    return _k_parts(codes, blocks)


def _q6_k(blocks: Tensor) -> Parts:
    """Nibbles in two runs of 64 bytes, upper pairs of bits in two of 32, 16 scales, their scale."""
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(4, 1)
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3
    factors = blocks[:, 192:208].view(torch.int8)
    return Parts(_signed(low | (high << 4), 32), _halves(blocks, 208), factors=factors)


_UNPACKERS = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}

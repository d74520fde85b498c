"""Whole numbers in groups, with scales that are themselves coded by blocks of groups."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from steelyard.nn.numerics.int4 import MIDDLE, Int4Groups, unpack_nibbles

__all__ = ["BlockCodes", "joined_blocks"]


@dataclass(frozen=True, slots=True)
class BlockCodes:
    """Rows of codes; a weight is `scale * factor * code + low * ratio` of its block and group.

    Groups of a row are equally long and follow each other, and so do blocks.

    Attributes:
        codes: int8 [N, K]; or uint8 [N, K / 2], codes from 0 to 15, the first of each pair in the
            lower nibble.
        scales: float16 [N, B].
        lows: float16 [N, B], or None where a code of 0 stands for 0.
        factors: int8 [N, G]; None where blocks are groups and all are 1.
        ratios: uint8 [N, G] beside lows and factors, else None.
        group: weights of a group, 16 or a multiple of 32.
        width: K, a multiple of a block.
    """

    codes: Tensor
    scales: Tensor
    lows: Tensor | None
    factors: Tensor | None
    ratios: Tensor | None
    group: int
    width: int

    @property
    def is_nibbles(self) -> bool:
        """Whether two codes share a byte."""
        return self.codes.dtype == torch.uint8

    @property
    def parts(self) -> int:
        """Groups of a block."""
        return self.width // self.group // self.scales.shape[1]

    @property
    def num_bytes(self) -> int:
        """Bytes of codes and of what stands beside them."""
        kept = (self.codes, self.scales, self.lows, self.factors, self.ratios)
        return sum(item.nbytes for item in kept if item is not None)

    def bytes(self) -> Tensor:
        """Return int8 [N, K], each code in a byte."""
        return (
            unpack_nibbles(self.codes, self.width).view(torch.int8)
            if self.is_nibbles
            else self.codes
        )

    def dequantize(self) -> Tensor:
        """Return float32 [N, K]; of each product and sum float32's rounding."""
        wide = self.bytes().unflatten(1, (-1, self.group)).float()
        wide *= _beside(self.scales, self.factors, self.parts)
        if self.lows is not None:
            wide += _beside(self.lows, self.ratios, self.parts)
        return wide.flatten(1)


def joined_blocks(records: Sequence[BlockCodes | Int4Groups]) -> BlockCodes:
    """Stack codes row after row; no weight changes.

    Args:
        records: codes, equally wide; groups of nibbles have scales in float16.

    Returns:
        All rows: bytes unless all are nibbles of the first kind, groups and blocks as short as the
        shortest, factors and lows where some have them.
    """
    blocks = [item if isinstance(item, BlockCodes) else _as_blocks(item) for item in records]
    group = min(item.group for item in blocks)
    span = min(item.group * item.parts for item in blocks)
    is_nibbles = all(item.is_nibbles for item in blocks)
    has_lows = any(item.lows is not None for item in blocks)
    has_factors = span > group or any(item.factors is not None for item in blocks)
    cut = [_cut(item, group, span, has_lows, has_factors) for item in blocks]

    def stacked(name: str) -> Tensor | None:
        values = [getattr(item, name) for item in cut]
        return None if values[0] is None else torch.cat(values)

    return BlockCodes(
        torch.cat([item.codes if is_nibbles else item.bytes() for item in blocks]),
        torch.cat([item.scales for item in cut]),
        stacked("lows"),
        stacked("factors"),
        stacked("ratios"),
        group,
        blocks[0].width,
    )


def _beside(values: Tensor, factors: Tensor | None, parts: int) -> Tensor:
    """Return what groups have of their blocks' values, float32 [N, G, 1]."""
    wide = values.float()
    if factors is not None:
        wide = _repeated(wide, parts) * factors.float()
    return wide.unsqueeze(-1)


def _cut(item: BlockCodes, group: int, span: int, has_lows: bool, has_factors: bool) -> BlockCodes:
    """Write out what stands beside codes for shorter groups and blocks."""
    times, blocks = item.group // group, item.group * item.parts // span
    shape = (len(item.scales), item.width // item.group)
    factors, ratios, lows = item.factors, item.ratios, item.lows
    # Matrices stacked with others share one layout: what another's blocks have and these have
    # not becomes the value that changes nothing.
    if has_lows and lows is None:
        lows = torch.zeros_like(item.scales)
    if has_factors and factors is None:
        factors = torch.ones(shape, dtype=torch.int8)
    if has_factors and lows is not None and ratios is None:
        ratios = torch.ones(shape, dtype=torch.uint8)
    return BlockCodes(
        item.codes,
        _repeated(item.scales, blocks),
        None if lows is None else _repeated(lows, blocks),
        None if factors is None else _repeated(factors, times),
        None if ratios is None else _repeated(ratios, times),
        group,
        item.width,
    )


def _repeated(values: Tensor, times: int) -> Tensor:
    """Return columns so many times each."""
    return values if times == 1 else values.repeat_interleave(times, 1)


def _as_blocks(item: Int4Groups) -> BlockCodes:
    """Return groups of nibbles as bytes less their zero points."""
    codes = item.codes().view(torch.int8)
    if item.zeros is None:
        codes = codes - MIDDLE
    else:
        codes = codes - item.zeros.view(torch.int8).repeat_interleave(item.group, 1)
    return BlockCodes(codes, item.scales, None, None, None, item.group, item.width)

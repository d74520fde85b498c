"""Codes of 4 or 8 bits in words of 32, and what they are made into."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from steelyard.nn.grouped import GroupedCodes
from steelyard.nn.numerics.blocks import BlockCodes
from steelyard.nn.numerics.int4 import GROUPS, Int4Groups, pack_nibbles, unpack_nibbles
from steelyard.nn.numerics.int8 import Int8Rows
from steelyard.nn.stored import Codes

__all__ = ["BITS", "Read", "WholeNumbers", "join_nibbles", "spread_words", "takes_groups"]

BITS = (4, 8)
"""Widths of codes that are read."""

Read = Callable[[str], Tensor | None]
"""Returns a tensor of one module by the end of its name, None where there is none."""

_SCALE_ERROR = 2.0**-11
"""Share of a scale that float16 may round off: half its last place, a twentieth of what activations
lose to bytes."""


@dataclass(frozen=True, slots=True)
class WholeNumbers:
    """A matrix as it is stored; a weight is `scale * (code - zero)`.

    Attributes:
        codes: uint8 [rows, columns] of 8 bits; of 4 bits [rows, columns / 2], the first of each
            pair in the lower half.
        bits: 4 or 8.
        scales: floating point [rows, groups].
        zeros: whole numbers [rows, groups]; None where all are the middle, 8 or 128.
        group_of: group of each column, int [columns]; None where equal groups follow each other.
    """

    codes: Tensor
    bits: int
    scales: Tensor
    zeros: Tensor | None = None
    group_of: Tensor | None = None

    @property
    def columns(self) -> int:
        """Weights of a row."""
        return self.codes.shape[1] * 8 // self.bits

    def checked(self) -> "WholeNumbers":
        """Return the same, with equal groups that follow each other.

        Columns whose groups do not follow each other become groups of one.

        Returns:
            The matrix, its `group_of` None.

        Raises:
            ValueError: shapes or groups do not fit each other.
        """
        scales, zeros, columns = self.scales, self.zeros, self.columns
        groups = scales.shape[1]
        if self.group_of is not None:
            order = self.group_of.long()
            if len(order) != columns or not bool(((order >= 0) & (order < groups)).all()):
                raise ValueError(f"groups of {len(order)} columns, beyond {columns} or {groups}")
            if not _follow(order, groups):
                scales = scales[:, order]
                zeros = None if zeros is None else zeros[:, order]
        if columns % scales.shape[1] or scales.shape[0] != self.codes.shape[0]:
            raise ValueError(f"scales {list(scales.shape)} of codes {list(self.codes.shape)}")
        if zeros is not None and zeros.shape != scales.shape:
            raise ValueError(f"zero points {list(zeros.shape)} of scales {list(scales.shape)}")
        return WholeNumbers(self.codes, self.bits, scales, zeros)

    def grouped(self) -> GroupedCodes:
        """Return codes, scales and minimums, from which weights are made exactly.

        Returns:
            The rows.

        Raises:
            ValueError: shapes or groups do not fit each other.
        """
        whole, middle = self.checked(), 1 << (self.bits - 1)
        scales = whole.scales.float().contiguous()
        codes = self.codes if self.bits == 8 else unpack_nibbles(self.codes, self.columns)
        if whole.zeros is None:
            return GroupedCodes((codes.to(torch.int16) - middle).to(torch.int8), scales)
        length = self.columns // scales.shape[1]
        wide = whole.zeros.to(torch.int16).repeat_interleave(length, dim=1)
        signed = codes.to(torch.int16) - wide
        if int(signed.min()) >= -128 and int(signed.max()) < 128:
            return GroupedCodes(signed.to(torch.int8), scales)
        # 8-bit codes and zero points differ by up to 255: the middle is taken off both.
        minimums = scales * (whole.zeros.float() - middle)
        return GroupedCodes((codes.to(torch.int16) - middle).to(torch.int8), scales, minimums)

    def straight(self) -> Codes | None:
        """Return the codes as products read them.

        Returns:
            The record; None where groups do not follow each other or are of lengths that products
            do not take, bytes less their zero points are none, or scales lie beyond float16.

        Raises:
            ValueError: shapes or groups do not fit each other.
        """
        whole = self.checked()
        return _bytes(whole) if self.bits == 8 else _nibbles(whole)


def _bytes(whole: WholeNumbers) -> Int8Rows | BlockCodes | None:
    """Return rows or groups of bytes."""
    length = whole.columns // whole.scales.shape[1]
    if whole.scales.shape[1] == 1 and _are_middle(whole.zeros, 128):
        return Int8Rows((whole.codes ^ 0x80).view(torch.int8), whole.scales[:, 0].float())
    scales, grouped = _narrowed(whole.scales), whole.grouped()
    if scales is None or grouped.minimums is not None or (length != 16 and length % 32):
        return None
    return BlockCodes(grouped.codes, scales, None, None, None, length, whole.columns)


def _nibbles(whole: WholeNumbers) -> Int4Groups | None:
    """Return groups of nibbles; long groups are cut into such as products take."""
    length = whole.columns // whole.scales.shape[1]
    group, scales = _taken(length), _narrowed(whole.scales)
    if not group or scales is None:
        return None
    zeros = None
    if whole.zeros is not None and not _are_middle(whole.zeros, 8):
        zeros = whole.zeros.to(torch.uint8).repeat_interleave(length // group, 1)
    scales = scales.repeat_interleave(length // group, 1)
    return Int4Groups(whole.codes, scales, zeros, group, whole.columns)


def _narrowed(scales: Tensor) -> Tensor | None:
    """Return scales in float16, None where that changes one by more than its rounding."""
    narrow, wide = scales.half(), scales.float()
    near = (narrow.float() - wide).abs() <= wide.abs() * _SCALE_ERROR
    return narrow if bool(near.all()) else None


def takes_groups(columns: int, groups: int, group_of: Tensor | None) -> bool:
    """Whether products take the groups of a matrix of nibbles.

    Args:
        columns: weights of a row.
        groups: groups of a row.
        group_of: group of each column, or None where they follow each other.

    Returns:
        True where groups follow each other and are cut into lengths of `numerics.int4.GROUPS`.
    """
    in_order = group_of is None or _follow(group_of.long(), groups)
    return in_order and columns % groups == 0 and _taken(columns // groups) > 0


def _follow(group_of: Tensor, groups: int) -> bool:
    """Whether equal groups follow each other."""
    columns = len(group_of)
    return torch.equal(group_of, torch.arange(columns) // max(1, columns // groups))


def _taken(length: int) -> int:
    """Return the longest groups that products take into which groups are cut, or 0."""
    return next((size for size in reversed(GROUPS) if length % size == 0), 0)


def _are_middle(zeros: Tensor | None, middle: int) -> bool:
    """Whether all zero points are the middle."""
    return zeros is None or bool((zeros == middle).all())


def spread_words(words: Tensor, bits: int) -> Tensor:
    """Return the codes of words, those in the lowest bits first.

    Args:
        words: int32 [rows, words].
        bits: 4 or 8.

    Returns:
        uint8 [rows, words * 32 / bits].
    """
    octets = words.contiguous().view(torch.uint8)
    return octets if bits == 8 else unpack_nibbles(octets, octets.shape[1] * 2)


def join_nibbles(codes: Tensor) -> Tensor:
    """Return codes below 16 two to a byte, the first of each pair in the lower half.

    Args:
        codes: uint8 [rows, columns], columns even.

    Returns:
        uint8 [rows, columns / 2].

    Raises:
        ValueError: the number of columns is odd.
    """
    if codes.shape[1] % 2:
        raise ValueError(f"codes of {codes.shape[1]} columns")
    return pack_nibbles(codes)

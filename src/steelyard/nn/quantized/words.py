"""Codes of 4 or 8 bits in words of 32, and the groups they are made into."""

from collections.abc import Callable

import torch
from torch import Tensor

from steelyard.nn.grouped import GroupedCodes

__all__ = ["BITS", "Read", "assemble", "spread_words"]

BITS = (4, 8)
"""Widths of codes that are read."""

Read = Callable[[str], Tensor | None]
"""Returns a tensor of one module by the end of its name, None where there is none."""


def spread_words(words: Tensor, bits: int) -> Tensor:
    """Return the codes of words, those in the lowest bits first.

    Args:
        words: int32 [rows, words].
        bits: 4 or 8.

    Returns:
        uint8 [rows, words * 32 / bits].
    """
    octets = words.contiguous().view(torch.uint8)
    if bits == 8:
        return octets
    return torch.stack((octets & 0x0F, octets >> 4), dim=-1).flatten(1)


def assemble(
    codes: Tensor, scales: Tensor, zeros: Tensor | None, group_of: Tensor | None = None
) -> GroupedCodes:
    """Join codes, scales and zero points; a weight is `scale * (code - zero)`.

    Args:
        codes: uint8 from 0, or int8 around it, [rows, columns].
        scales: [rows, groups].
        zeros: whole numbers of the same range [rows, groups], or None where all are 0.
        group_of: group of each column, int [columns]; None where equal groups follow each other.

    Returns:
        The rows. Columns whose groups do not follow each other become groups of one.

    Raises:
        ValueError: shapes or groups do not fit each other.
    """
    columns, groups = codes.shape[1], scales.shape[1]
    if group_of is not None:
        if len(group_of) != columns or not bool(((group_of >= 0) & (group_of < groups)).all()):
            raise ValueError(f"groups of {len(group_of)} columns, beyond {columns} or {groups}")
        even = torch.arange(columns) // max(1, columns // groups)
        if not torch.equal(group_of.long(), even):
            scales = scales[:, group_of.long()]
            zeros = None if zeros is None else zeros[:, group_of.long()]
    if columns % scales.shape[1] or scales.shape[0] != codes.shape[0]:
        raise ValueError(f"scales {list(scales.shape)} of codes {list(codes.shape)}")
    if zeros is not None and zeros.shape != scales.shape:
        raise ValueError(f"zero points {list(zeros.shape)} of scales {list(scales.shape)}")
    scales = scales.float().contiguous()
    if zeros is None:
        return GroupedCodes(codes.to(torch.int8), scales)
    wide = zeros.to(torch.int16).repeat_interleave(columns // scales.shape[1], dim=1)
    signed = codes.to(torch.int16) - wide
    if int(signed.min()) >= -128 and int(signed.max()) < 128:
        return GroupedCodes(signed.to(torch.int8), scales)
    # 8-bit codes and zero points differ by up to 255: where they begin at 0, the middle of their
    # range is taken off both.
    middle = 128 if codes.dtype == torch.uint8 else 0
    minimums = scales * (zeros.float() - middle)
    return GroupedCodes((codes.to(torch.int16) - middle).to(torch.int8), scales, minimums)

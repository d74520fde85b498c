"""Sixteen levels per weight, with a scale and at wish a zero point per group of a row."""

from dataclasses import dataclass

import torch
from torch import Tensor

from steelyard.errors import ConfigError
from steelyard.nn.numerics.groups import (
    join_groups,
    refuse_unquantizable,
    rounded_up,
    split_groups,
)

__all__ = ["GROUPS", "Int4Groups", "pack_nibbles", "quantize_int4", "round_int4", "unpack_nibbles"]

GROUPS = (32, 64, 128)
"""Weights that may share a scale."""
MIDDLE = 8
"""Code of 0 without zero points."""


@dataclass(frozen=True, slots=True)
class Int4Groups:
    """Rows of nibbles.

    Attributes:
        packed: uint8 [N, ceil(K / 2)], the first code of each pair in the lower nibble.
        scales: float16 or bfloat16 [N, G]; a negative one turns its group's levels around, so that
            the largest weight may take the code 0, which lies farther from the middle than 15.
        zeros: uint8 [N, G], the codes that stand for 0; None where all are 8.
        group: weights that share a scale.
        width: K.
    """

    packed: Tensor
    scales: Tensor
    zeros: Tensor | None
    group: int
    width: int

    @property
    def num_bytes(self) -> int:
        """Bytes of codes, scales and zero points."""
        kept = self.packed.nbytes + self.scales.nbytes
        return kept + (0 if self.zeros is None else self.zeros.nbytes)

    def codes(self) -> Tensor:
        """Return uint8 [N, K], each code in a byte."""
        return unpack_nibbles(self.packed, self.width)

    def dequantize(self) -> Tensor:
        """Return float32 [N, K]: codes less zero points, times scales."""
        codes = split_groups(self.codes().float(), self.group)
        zeros = MIDDLE if self.zeros is None else self.zeros[..., None].float()
        return join_groups((codes - zeros) * self.scales[..., None].float(), self.width)

    def error_bound(self) -> Tensor:
        """Return float32 [N, K]: no weight was farther from what `dequantize` gives.

        Half a step, and float32's rounding of at most 15 steps. It holds for what `quantize_int4`
        made: other scales may cut weights off.
        """
        steps = self.scales.float().abs()[..., None].expand(-1, -1, self.group)
        return join_groups(steps * (0.5 + 64 * 2.0**-23), self.width)


def quantize_int4(weights: Tensor, *, group: int = 32, zero_points: bool = False) -> Int4Groups:
    """Round groups of a row to at most 16 evenly spaced levels.

    Scales are rounded up to float16, so that no code is cut off: the error stays below half a step.

    Args:
        weights: floating point [N, K], finite, K even.
        group: weights that share a scale, one of `GROUPS`; the last group of a row may be shorter.
        zero_points: whether the levels of a group reach from its smallest to its largest weight
            (and to 0); else they are symmetric around 0.

    Returns:
        The record; 0 comes back exactly.

    Raises:
        ConfigError: the group, the shape, the type or a number cannot be taken.

    Source: Frantar et al. 2022 (arXiv 2210.17323), section 4 (grouped round to nearest as the
        base line); Jacob et al. 2017 (arXiv 1712.05877), equation 1 (zero points).
    """
    if group not in GROUPS:
        raise ConfigError(f"group is {group}", hint=f"allowed: {', '.join(map(str, GROUPS))}")
    wide = refuse_unquantizable(weights, "weights of int4 groups")
    width = wide.shape[1]
    if width % 2:
        raise ConfigError(f"rows have {width} weights", hint="give rows of an even width")
    groups = split_groups(wide, group)
    if not zero_points:
        # Codes 1 to 15 lie evenly around 0.
        return round_int4(
            wide, rounded_up(groups.abs().amax(-1) / 7, torch.float16), None, group=group
        )
    # Both ends reach to 0, so that a weight of 0 stays 0.
    low = groups.amin(-1).clamp(max=0.0)
    scales = rounded_up((groups.amax(-1).clamp(min=0.0) - low) / 15, torch.float16)
    zeros = divided(-low, scales.float()).round().clamp(0, 15)
    return round_int4(wide, scales, zeros.to(torch.uint8), group=group)


def round_int4(weights: Tensor, scales: Tensor, zeros: Tensor | None, *, group: int) -> Int4Groups:
    """Round weights to the nearest level of scales that are given; what lies beyond is cut off.

    Args:
        weights: float32 [N, K], K even.
        scales: float16 or bfloat16 [N, G], of either sign; 0 for a group of zeros.
        zeros: uint8 [N, G] below 16, or None where all are 8.
        group: weights that share a scale.

    Returns:
        The record.
    """
    middle = MIDDLE if zeros is None else zeros[..., None].float()
    shares = divided(split_groups(weights, group), scales.float()[..., None])
    codes = (shares + middle).round().clamp(0, 15)
    packed = pack_nibbles(join_groups(codes, weights.shape[1]).to(torch.uint8))
    return Int4Groups(packed, scales, zeros, group, weights.shape[1])


def pack_nibbles(codes: Tensor) -> Tensor:
    """Put two codes into each byte.

    Args:
        codes: uint8 [N, K] below 16, K even.

    Returns:
        uint8 [N, K / 2], the first of each pair in the lower nibble.
    """
    return codes[:, ::2] | (codes[:, 1::2] << 4)


def unpack_nibbles(packed: Tensor, width: int) -> Tensor:
    """Undo `pack_nibbles`.

    Args:
        packed: uint8 [N, ceil(K / 2)].
        width: K.

    Returns:
        uint8 [N, K].
    """
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)[:, :width]


def divided(values: Tensor, scales: Tensor) -> Tensor:
    """Divide by scales, 0 where a scale is 0: all values of such a group are.

    Args:
        values: float32.
        scales: float32 that broadcast to them, of either sign.

    Returns:
        The quotients.
    """
    return torch.where(scales != 0, values / torch.where(scales != 0, scales, 1.0), 0.0)

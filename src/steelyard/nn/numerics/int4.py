"""Sixteen levels per weight, with a scale and at wish a zero point per group of a row."""

from dataclasses import dataclass

import torch
from torch import Tensor

from steelyard.errors import ConfigError
from steelyard.nn.numerics.groups import (
    join_groups,
    refuse_unquantizable,
    split_groups,
)

__all__ = ["GROUPS", "Int4Groups", "pack_nibbles", "quantize_int4", "unpack_nibbles"]

GROUPS = (32, 64, 128)
"""Weights that may share a scale."""
_MIDDLE = 8
"""Code of 0 without zero points; codes 1 to 15 lie around it."""
_LARGEST_SCALE = 65504.0


@dataclass(frozen=True, slots=True)
class Int4Groups:
    """Rows of nibbles.

    Attributes:
        packed: uint8 [N, ceil(K / 2)], the first code of each pair in the lower nibble.
        scales: float16 [N, G].
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
        zeros = _MIDDLE if self.zeros is None else self.zeros[..., None].float()
        return join_groups((codes - zeros) * self.scales[..., None].float(), self.width)

    def error_bound(self) -> Tensor:
        """Return float32 [N, K]: no weight was farther from what `dequantize` gives.

        Half a step, and float32's rounding of at most 15 steps.
        """
        steps = self.scales.float()[..., None].expand(-1, -1, self.group)
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
    if zero_points:
        # Both ends reach to 0, so that a weight of 0 stays 0.
        low = groups.amin(-1).clamp(max=0.0)
        scales = _rounded_up((groups.amax(-1).clamp(min=0.0) - low) / 15)
        zeros = _divided(-low, scales).round().clamp(0, 15)
    else:
        scales = _rounded_up(groups.abs().amax(-1) / 7)
        zeros = torch.full_like(scales, _MIDDLE, dtype=torch.float32)
    codes = (_divided(groups, scales[..., None]) + zeros[..., None]).round().clamp(0, 15)
    return Int4Groups(
        pack_nibbles(join_groups(codes, width).to(torch.uint8)),
        scales,
        zeros.to(torch.uint8) if zero_points else None,
        group,
        width,
    )


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


def _rounded_up(scales: Tensor) -> Tensor:
    """Return the smallest float16 that are not below some numbers of at least 0."""
    if float(scales.max() if scales.numel() else 0.0) > _LARGEST_SCALE:
        raise ConfigError(
            "weights are beyond what float16 scales can hold",
            hint="keep them in bf16, or divide them",
        )
    near = scales.half()
    # A scale rounded down would cut off the code of the largest weight.
    above = torch.nextafter(near, torch.full_like(near, float("inf")))
    return torch.where(near.float() < scales, above, near)


def _divided(values: Tensor, scales: Tensor) -> Tensor:
    """Divide by float16 scales, 0 where a scale is 0: all values of such a group are."""
    wide = scales.float()
    return torch.where(wide > 0, values / wide.clamp(min=2.0**-24), 0.0)

"""NF4: sixteen levels at the quantiles of the normal distribution, scaled by block."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from steelyard.errors import ConfigError
from steelyard.nn.numerics.groups import join_groups, refuse_unquantizable, split_groups
from steelyard.nn.numerics.int4 import pack_nibbles, unpack_nibbles

__all__ = ["LEVELS", "NF4Blocks", "quantize_nf4"]

LEVELS = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
"""The levels. Source: Dettmers et al. 2023 (arXiv 2305.14314), appendix E."""
_WIDEST_GAP = max(high - low for low, high in pairwise(LEVELS))


@dataclass(frozen=True, slots=True)
class NF4Blocks:
    """Rows of NF4 codes.

    Attributes:
        packed: uint8 [N, ceil(K / 2)], the first code of each pair in the lower nibble.
        scales: float32 [N, G], the largest size in each block.
        block: weights that share a scale.
        width: K.
    """

    packed: Tensor
    scales: Tensor
    block: int
    width: int

    @property
    def num_bytes(self) -> int:
        """Bytes of codes and scales."""
        return self.packed.nbytes + self.scales.nbytes

    def dequantize(self) -> Tensor:
        """Return float32 [N, K]: levels times scales."""
        codes = unpack_nibbles(self.packed, self.width).long()
        levels = split_groups(torch.tensor(LEVELS)[codes], self.block)
        return join_groups(levels * self.scales[..., None], self.width)

    def error_bound(self) -> Tensor:
        """Return float32 [N, K]: no weight was farther from what `dequantize` gives.

        Half of the widest gap between two levels, and float32's rounding.
        """
        steps = self.scales[..., None].expand(-1, -1, self.block)
        return join_groups(steps * (_WIDEST_GAP / 2 + 4 * 2.0**-23), self.width)


def quantize_nf4(weights: Tensor, *, block: int = 64) -> NF4Blocks:
    """Round blocks of a row to the nearest NF4 levels.

    Args:
        weights: floating point [N, K], finite, K even.
        block: weights that share a scale, at least 1; the last block of a row may be shorter.

    Returns:
        The record; 0 and the largest size of each block come back exactly.

    Raises:
        ConfigError: the block, the shape, the type or a number cannot be taken.

    Source: Dettmers et al. 2023 (arXiv 2305.14314), section 3 (4-bit NormalFloat).
    """
    wide = refuse_unquantizable(weights, "weights of NF4 blocks")
    if block < 1 or wide.shape[1] % 2:
        raise ConfigError(
            f"block is {block} and rows have {wide.shape[1]} weights",
            hint="give a block of at least 1 and rows of an even width",
        )
    groups = split_groups(wide, block)
    scales = groups.abs().amax(-1)
    shares = torch.where(scales[..., None] > 0, groups / scales[..., None], 0.0)
    levels = torch.tensor(LEVELS)
    codes = torch.bucketize(shares, (levels[1:] + levels[:-1]) / 2)
    packed = pack_nibbles(join_groups(codes, wide.shape[1]).to(torch.uint8))
    return NF4Blocks(packed, scales, block, wide.shape[1])

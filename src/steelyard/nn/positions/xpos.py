"""Rotary positions whose scores fall with the distance of the tokens."""

import torch
from torch import Tensor

__all__ = ["decay_scales", "spread_decayed"]

_BASE = 512.0
_GAMMA = 0.4


def decay_scales(num_positions: int, width: int) -> Tensor:
    """Return by how much the queries of each position are scaled; keys are by the inverse.

    Positions count from the middle of the table: scores depend on distances alone, and the scales
    stay far from overflow for twice as long a table.

    Args:
        num_positions: rows of the table.
        width: columns R of a head that are turned; even.

    Returns:
        float32 [P, R / 2]: zeta_i to the power of (position - P // 2) / 512, with zeta_i =
        (2 i / R + 0.4) / 1.4.

    Source: Sun et al. 2022 (arXiv 2212.10554), section 2.2 and algorithm 1 (xPos); scale base and
        gamma as in the code of Ma et al. (arXiv 2211.13184).
    """
    pairs = torch.arange(0, width, 2, dtype=torch.float64) / width
    zeta = (pairs + _GAMMA) / (1 + _GAMMA)
    centred = torch.arange(num_positions, dtype=torch.float64) - num_positions // 2
    return (zeta ** (centred[:, None] / _BASE)).float()


def spread_decayed(
    rotation: tuple[Tensor, Tensor], scales: Tensor, heads: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Return the scaled rotation of each query head and each key head.

    Args:
        rotation: what `rotary.spread` returned, each [..., 1, R].
        scales: table rows [..., R / 2].
        heads: how many query heads and key heads lie side by side.

    Returns:
        Cosines and sines [..., H + KV, R], those of the queries first.
    """
    wide = torch.cat((scales, scales), dim=-1).unsqueeze(-2)
    repeated = [wide.expand(*wide.shape[:-2], count, -1) for count in heads]
    factors = torch.cat((repeated[0], 1 / repeated[1]), dim=-2)
    cosines, sines = rotation
    return (cosines * factors).to(cosines.dtype), (sines * factors).to(sines.dtype)

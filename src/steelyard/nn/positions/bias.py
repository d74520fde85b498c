"""Positions that enter as a bias on the scores of queries and keys."""

import math

import torch
from torch import Tensor

from steelyard.catalog.parameters import RELATIVE_BUCKETS

__all__ = ["alibi_bias", "alibi_slopes", "relative_buckets"]

_MAX_DISTANCE = 128


def relative_buckets(distances: Tensor, *, both_ways: bool) -> Tensor:
    """Number the bucket of each distance: one each for near ones, wider ones with the distance.

    Args:
        distances: int64, position of the key minus that of the query.
        both_ways: half of the buckets are for keys behind the query; otherwise those count as
            distance 0.

    Returns:
        int64 of the same shape, below `RELATIVE_BUCKETS`; all distances from 128 share the last.

    Source: Raffel et al. 2020 (arXiv 1910.10683), section 2.1, in the form of the authors' code.
    """
    count = RELATIVE_BUCKETS // 2 if both_ways else RELATIVE_BUCKETS
    ahead = (distances > 0).long() * count if both_ways else torch.zeros_like(distances)
    far = distances.abs() if both_ways else (-distances).clamp(min=0)
    exact = count // 2
    # The far half of the buckets grows with the logarithm of the distance.
    growth = torch.log(far.clamp(min=1).float() / exact) / math.log(_MAX_DISTANCE / exact)
    wide = (exact + (growth * (count - exact)).long()).clamp(max=count - 1)
    return ahead + torch.where(far < exact, far, wide)


def alibi_slopes(num_heads: int) -> Tensor:
    """Return by how much each head's scores fall per position.

    Args:
        num_heads: H; beyond a power of two, every other slope of the next one is added.

    Returns:
        float32 [H]; for a power of two the series 2^(-8 / H), 2^(-16 / H), ...

    Source: Press et al. 2021 (arXiv 2108.12409), section 3, in the form of the authors' code.
    """
    whole = 2 ** int(math.log2(num_heads))
    slopes = [2 ** (-8 * (head + 1) / whole) for head in range(whole)]
    between = [2 ** (-4 * (2 * head + 1) / whole) for head in range(num_heads - whole)]
    return torch.tensor(slopes + between)


def alibi_bias(distances: Tensor, num_heads: int) -> Tensor:
    """Return the bias of each head.

    Args:
        distances: int64 [T, S], position of the key minus that of the query.
        num_heads: H.

    Returns:
        float32 [H, T, S]: the slope times the distance, at most 0.
    """
    return -alibi_slopes(num_heads).to(distances.device)[:, None, None] * distances.abs()

"""Norms of sums of outer products, by the shorter of two routes."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Factors", "squared_norms"]

_MOST_ELEMENTS = 1 << 24
"""Elements of the products that are held at once."""


@dataclass(frozen=True, slots=True)
class Factors:
    """A gradient by example as a sum over tokens of outer products.

    Attributes:
        left: what came back from the output [B * groups, T, O]; or int64 [B, T], rows of the
            identity, for a look-up.
        right: what went in [B * groups, T, I].
        groups: blocks of the matrix that have nothing in common, as grouped convolutions have.
    """

    left: Tensor
    right: Tensor
    groups: int = 1


def squared_norms(uses: Sequence[Factors]) -> Tensor:
    """Return the squared norm of the sum of several uses of one matrix, by example.

    Args:
        uses: factors of equal B, O and I.

    Returns:
        [B].

    Source: Goodfellow 2015 (arXiv 1510.01799), section 4, for one token; Rochette et al. 2019
        (arXiv 1912.06015), section 3, and Li et al. 2022 (arXiv 2110.05679), section 4, for the
        products over tokens.
    """
    if len(uses) == 1:
        found = _of_one(uses[0])
    else:
        # |A + B|^2 = |A|^2 + |B|^2 + 2 A.B
        found = torch.stack([_of_one(use) for use in uses]).sum(0)
        for one, other in itertools.combinations(uses, 2):
            found = found + 2 * _inner(one, other)
    return found.unflatten(0, (-1, uses[0].groups)).sum(1)


def _of_one(use: Factors) -> Tensor:
    """Return the squared norm of one use, [B * groups]."""
    left, right = use.left, use.right
    tokens, inputs = right.shape[1:]
    if left.dtype == torch.int64:
        return _inner(use, use)
    if tokens == 1:
        return left.square().sum((1, 2)) * right.square().sum((1, 2))
    outputs = left.shape[2]
    # tokens^2 (inputs + outputs) operations against tokens * inputs * outputs.
    if tokens * (inputs + outputs) <= inputs * outputs:
        return _inner(use, use)
    size = max(1, _MOST_ELEMENTS // (inputs * outputs))
    pairs = zip(left.split(size), right.split(size), strict=True)
    return torch.cat([torch.bmm(one.mT, two).square().sum((1, 2)) for one, two in pairs])


def _inner(one: Factors, other: Factors) -> Tensor:
    """Return the inner product of two uses by example: sum over pairs of tokens."""
    size = max(1, _MOST_ELEMENTS // (one.right.shape[1] * other.right.shape[1]))
    parts = zip(
        *(item.split(size) for item in (one.left, one.right, other.left, other.right)), strict=True
    )
    return torch.cat(
        [(_left_products(a, c) * torch.bmm(b, d.mT)).sum((1, 2)) for a, b, c, d in parts]
    )


def _left_products(one: Tensor, other: Tensor) -> Tensor:
    """Return the inner products of left factors of all pairs of tokens, [B, T, S]."""
    if one.dtype != torch.int64:
        if other.dtype != torch.int64:
            return torch.bmm(one, other.mT)
        # A row of the identity picks one element.
        return one.gather(2, other[:, None].expand(-1, one.shape[1], -1))
    if other.dtype != torch.int64:
        return _left_products(other, one).mT
    return one[:, :, None] == other[:, None]

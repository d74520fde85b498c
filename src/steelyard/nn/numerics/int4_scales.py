"""Scales of int4 groups that lose least, found by search."""

import torch
from torch import Tensor

from steelyard.nn.numerics.groups import split_groups
from steelyard.nn.numerics.int4 import MIDDLE, divided

__all__ = ["best_scales"]

_SHARES = (1.2, 1.1, 1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
"""Tried shares of the scale at which no weight is cut off; each is then refined."""
_ROWS = 2**22
"""Weights that are searched at once, which bounds memory."""


def best_scales(
    weights: Tensor,
    *,
    group: int,
    zero_points: bool = False,
    importance: Tensor | None = None,
    dtype: torch.dtype = torch.float16,
) -> tuple[Tensor, Tensor | None]:
    """Find scales that minimize the squared error of rounding to nearest, group by group.

    Several shares of the full range are tried: cutting off the largest weight makes all others
    finer. Each is refined by the least-squares scale of its own codes. Without zero points the
    largest weight of a group takes the code 0, with a scale of the sign that this needs: the
    sixteen levels then reach one step farther.

    Args:
        weights: float32 [N, K].
        group: weights that share a scale; the last group of a row may be shorter.
        zero_points: whether the code of 0 is searched for, too.
        importance: float32 [K], at least 0: weight of each column's error, such as the mean square
            of what is multiplied with it; all alike by default.
        dtype: type of the scales.

    Returns:
        Scales [N, G] of that type, and zero points uint8 [N, G] or None.

    Source: Lin et al. 2023 (arXiv 2306.00978), section 4 (weight clipping by mean squared error);
        the refinement and the sign as in ggml's `make_qx_quants` (src/ggml-quants.c).
    """
    columns = torch.ones(weights.shape[1]) if importance is None else importance
    cost = split_groups(columns[None], group)
    parts = [
        _searched(split_groups(rows, group), cost, zero_points, dtype)
        for rows in weights.split(max(1, _ROWS // max(1, weights.shape[1])))
    ]
    scales = torch.cat([scales for scales, _ in parts])
    return scales, torch.cat([zeros for _, zeros in parts]) if zero_points else None


def _searched(
    groups: Tensor, cost: Tensor, zero_points: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the best scales [N, G] and zero points of groups [N, G, group]."""
    if zero_points:
        low = groups.amin(-1, keepdim=True).clamp(max=0.0)
        full = (groups.amax(-1, keepdim=True).clamp(min=0.0) - low) / 15
        zeros = divided(-low, full).round().clamp(0, 15)
    else:
        extreme = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
        full = -extreme / MIDDLE
        zeros = torch.full_like(full, MIDDLE)
    best = torch.full_like(full, torch.inf)
    kept = torch.zeros_like(full, dtype=dtype)
    for share in _SHARES:
        scales = (full * share).to(dtype)
        codes = _codes(groups, scales, zeros)
        below = (cost * codes * codes).sum(-1, keepdim=True)
        scales = divided((cost * codes * groups).sum(-1, keepdim=True), below).to(dtype)
        wide = scales.float()
        off = _codes(groups, scales, zeros).mul_(wide).sub_(groups)
        error = (cost * off.square_()).sum(-1, keepdim=True)
        # What the type of the scales cannot hold is never better.
        is_better = (error < best) & torch.isfinite(wide)
        best, kept = torch.where(is_better, error, best), torch.where(is_better, scales, kept)
    return kept.squeeze(-1), zeros.squeeze(-1).to(torch.uint8)


def _codes(groups: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """Return codes less zero points, float32 of the shape of the groups."""
    return (divided(groups, scales.float()) + zeros).round().clamp(0, 15).sub_(zeros)

"""Dilated attention: near tokens densely, far ones with gaps, in linear time."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["attend_dilated"]


def attend_dilated(
    queries: Tensor, keys: Tensor, values: Tensor, segments: Sequence[int], rates: Sequence[int]
) -> Tensor:
    """Attend causally within segments of several lengths, the longer ones with gaps.

    In the pattern of segment w and rate r, a sequence is cut into segments of w tokens, and every
    r-th token of a segment attends every r-th one up to itself; head h begins at token h mod r. The
    patterns' results are mixed by their shares of the common softmax denominator.

    Args:
        queries: [B, T, H, D].
        keys: [B, T, KV, D]; query head h reads key head h // (H / KV).
        values: [B, T, KV, D].
        segments: w of each pattern.
        rates: r of each pattern; divides w.

    Returns:
        [B, T, H, D]; 0 for a token that is in no pattern of its head.

    Source: Ding et al. 2023 (arXiv 2307.02486), section 2.3, equations 8 to 11.
    """
    group = queries.shape[-2] // keys.shape[-2]
    if group > 1:
        keys, values = (part.repeat_interleave(group, dim=-2) for part in (keys, values))
    found = [
        _pattern(queries, keys, values, segment, rate)
        for segment, rate in zip(segments, rates, strict=True)
    ]
    # [pattern, B, T, H]: the share of each pattern's denominator in their sum.
    shares = torch.stack([logarithms for _, logarithms in found]).softmax(0)
    parts = (share.unsqueeze(-1) * result for share, (result, _) in zip(shares, found, strict=True))
    return sum(parts, start=torch.zeros_like(queries)).to(queries.dtype)


def _pattern(
    queries: Tensor, keys: Tensor, values: Tensor, segment: int, rate: int
) -> tuple[Tensor, Tensor]:
    """Return one pattern's results [B, T, H, D] and logarithms of its denominators [B, T, H]."""
    batch, length, heads, width = queries.shape
    padded = -(-length // segment) * segment
    # [H, S, w / r]: the tokens of each head, segment by segment.
    places = torch.arange(padded, device=queries.device).view(-1, segment)
    offsets = torch.arange(heads, device=queries.device) % rate
    kept = torch.stack([places[:, int(offset) :: rate] for offset in offsets])
    flat = kept.flatten(1)
    q, k, v = (
        F.pad(part, (0, 0, 0, 0, 0, padded - length))
        .transpose(1, 2)
        .gather(2, flat[None, :, :, None].expand(batch, -1, -1, width))
        .unflatten(2, (-1, segment // rate))
        for part in (queries, keys, values)
    )
    size = segment // rate
    hidden = torch.ones(size, size, dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.transpose(-2, -1) * width**-0.5).float().masked_fill(hidden, -torch.inf)
    logarithms = scores.logsumexp(-1)
    results = (scores - logarithms.unsqueeze(-1)).exp().to(v.dtype) @ v
    index = flat[None].expand(batch, -1, -1)
    spread = queries.new_zeros(batch, heads, padded, width).scatter(
        2, index[..., None].expand(-1, -1, -1, width), results.flatten(2, 3)
    )
    # Not -inf: a token in no pattern at all would have no share, and a gradient of NaN.
    least = torch.finfo(scores.dtype).min
    denominators = scores.new_full((batch, heads, padded), least).scatter(
        2, index, logarithms.flatten(2)
    )
    return spread.transpose(1, 2)[:, :length], denominators.transpose(1, 2)[:, :length]

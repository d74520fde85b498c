"""Attention over whole sequences: with a bias on its scores, both ways, in blocks or segments."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Bias", "attend_blocks", "attend_sequence", "same_segment", "segment_positions"]

Bias = Callable[[Tensor], Tensor]
"""From distances [T, S] (position of the key minus that of the query) to a bias [H, T, S]."""


def attend_sequence(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    causal: bool,
    bias: Bias | None = None,
    seen: Tensor | None = None,
) -> Tensor:
    """Attend from each token of a sequence to all of it, or to itself and all before.

    Args:
        queries: [B, T, H, D].
        keys: [B, S, KV, D]; S = T where it is causal.
        values: [B, S, KV, D].
        causal: whether tokens after a query are hidden from it.
        bias: added to the scores, None for none.
        seen: bool [B, 1, T, S] of keys that a query may attend, such as `same_segment` returns;
            None for all.

    Returns:
        [B, T, H, D].
    """
    places = (torch.arange(part.shape[1], device=part.device) for part in (queries, keys))
    return _attend_part(queries, keys, values, tuple(places), causal, bias, seen)


def same_segment(queries: Tensor, keys: Tensor) -> Tensor:
    """Say which keys lie in the segment of a query.

    Args:
        queries: segment of each query, integers [B, T]; 0 is padding.
        keys: segment of each key [B, S].

    Returns:
        Bool [B, 1, T, S]; a query without a key of its segment sees every key, so that its softmax
        has something to sum over.
    """
    same = queries[:, :, None] == keys[:, None, :]
    return (same | ~same.any(-1, keepdim=True)).unsqueeze(1)


def segment_positions(segments: Tensor) -> Tensor:
    """Count the places of each segment from 0.

    Args:
        segments: integers [B, T]; equal neighbours are of one segment.

    Returns:
        int64 [B, T].
    """
    places = torch.arange(segments.shape[1], device=segments.device).expand(segments.shape)
    begins = torch.ones_like(segments, dtype=torch.bool)
    begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return places - torch.where(begins, places, 0).cummax(1).values


def attend_blocks(
    queries: Tensor, keys: Tensor, values: Tensor, *, block: int, bias: Bias | None = None
) -> Tensor:
    """Attend causally from each token to its own block of the sequence and to the one before.

    No distance is then as long as two blocks, however long the sequence.

    Args:
        queries: [B, T, H, D].
        keys: [B, T, KV, D].
        values: [B, T, KV, D].
        block: tokens of a block, at least 1.
        bias: added to the scores, None for none.

    Returns:
        [B, T, H, D].

    Source: Sun et al. 2022 (arXiv 2212.10554), section 3 (blockwise causal attention).
    """
    length = queries.shape[1]
    parts = []
    for start in range(0, length, block):
        stop, first = min(start + block, length), max(start - block, 0)
        places = (
            torch.arange(start, stop, device=queries.device),
            torch.arange(first, stop, device=queries.device),
        )
        seen = keys[:, first:stop], values[:, first:stop]
        parts.append(_attend_part(queries[:, start:stop], *seen, places, True, bias))
    return torch.cat(parts, dim=1)


def _attend_part(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    places: tuple[Tensor, ...],
    causal: bool,
    bias: Bias | None,
    seen: Tensor | None = None,
) -> Tensor:
    """Attend between tokens at stated places of a sequence."""
    grouped = keys.shape[-2] != queries.shape[-2]
    heads = (part.transpose(-3, -2) for part in (queries, keys, values))
    # No mask where nothing is hidden: attention then reads no [T, S] numbers besides.
    mask = seen
    if bias is not None or causal:
        distances = places[1] - places[0][:, None]
        if bias is not None:
            mask = bias(distances).to(queries.dtype)
            mask = mask.masked_fill(distances > 0, -torch.inf) if causal else mask
            mask = mask if seen is None else mask.masked_fill(~seen, -torch.inf)
        else:
            mask = distances <= 0 if seen is None else seen & (distances <= 0)
    attended = F.scaled_dot_product_attention(*heads, attn_mask=mask, enable_gqa=grouped)
    return attended.transpose(-3, -2)

"""Retention: what a token keeps of the ones before decays with their distance.

Three forms compute the same: all pairs at once for training, one token after the other with a state
of constant size for generation, and chunks of tokens for long sequences.
"""

import torch
from torch import Tensor

__all__ = [
    "retain_chunks",
    "retain_parallel",
    "retain_step",
    "retention_decays",
]


def retention_decays(num_heads: int) -> Tensor:
    """Return what each head keeps of its state from one token to the next.

    Args:
        num_heads: H.

    Returns:
        float64 [H]: 1 - 2^(-5 - h).

    Source: Sun et al. 2023 (arXiv 2307.08621), equation 8.
    """
    return 1 - 2.0 ** (-5 - torch.arange(num_heads, dtype=torch.float64))


def retain_parallel(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Compute retention from the products of all pairs.

    Args:
        queries: [B, T, H, D].
        keys: [B, T, KV, D]; query head h reads key head h // (H / KV).
        values: [B, T, KV, D].

    Returns:
        [B, T, H, D]: sums over tokens n up to m of g^(m - n) (q_m k_n) v_n / sqrt(D).

    Source: Sun et al. 2023 (arXiv 2307.08621), equation 5.
    """
    q, k, v, decays = _heads(queries, keys, values)
    places = torch.arange(q.shape[-2], device=q.device)
    distances = places[:, None] - places
    weights = (decays[:, None, None] ** distances.clamp(min=0)).masked_fill(distances < 0, 0.0)
    return ((q @ k.transpose(-2, -1)) * weights.to(q.dtype) @ v).transpose(1, 2)


def retain_step(
    queries: Tensor, keys: Tensor, values: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Take one more token of each sequence in.

    Args:
        queries: [B, H, D].
        keys: [B, KV, D].
        values: [B, KV, D].
        state: [B, H, D, D] of the tokens before, None at the first.

    Returns:
        [B, H, D], and the new state.

    Source: Sun et al. 2023 (arXiv 2307.08621), equation 6.
    """
    parts = (part.unsqueeze(1) for part in (queries, keys, values))
    q, k, v, decays = _heads(*parts)
    added = k.transpose(-2, -1) @ v
    if state is not None:
        added = added + decays.to(q.dtype)[:, None, None] * state
    return (q @ added).squeeze(-2), added


def retain_chunks(queries: Tensor, keys: Tensor, values: Tensor, chunk: int) -> Tensor:
    """Compute all pairs within chunks of tokens, and pass a state on from chunk to chunk.

    Args:
        queries: [B, T, H, D].
        keys: [B, T, KV, D].
        values: [B, T, KV, D].
        chunk: tokens of a chunk, at least 1; the last may be shorter.

    Returns:
        [B, T, H, D]; time and memory grow linearly with T.

    Source: Sun et al. 2023 (arXiv 2307.08621), equation 7.
    """
    _, _, _, decays = _heads(queries, keys, values)
    state: Tensor | None = None
    parts = []
    for start in range(0, queries.shape[1], chunk):
        part = [item[:, start : start + chunk] for item in (queries, keys, values)]
        q, k, v, _ = _heads(*part)
        result = retain_parallel(*part)
        places = torch.arange(q.shape[-2], device=q.device)
        if state is not None:
            before = (decays[:, None] ** (places + 1)).to(q.dtype)[..., None]
            result = result + (before * (q @ state)).transpose(1, 2)
        after = (decays[:, None] ** (len(places) - 1 - places)).to(q.dtype)[..., None]
        added = (after * k).transpose(-2, -1) @ v
        faded = (decays ** len(places)).to(q.dtype)[:, None, None]
        state = added if state is None else added + faded * state
        parts.append(result)
    return torch.cat(parts, dim=1)


def _heads(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return scaled queries, keys and values by head, [B, H, T, D], and the decays [H]."""
    count, group = queries.shape[-2], queries.shape[-2] // keys.shape[-2]
    q = queries.transpose(-3, -2) * queries.shape[-1] ** -0.5
    k, v = (part.transpose(-3, -2) for part in (keys, values))
    if group > 1:
        k, v = (part.repeat_interleave(group, dim=-3) for part in (k, v))
    return q, k, v, retention_decays(count).to(q.device)

"""Latent attention of one step: the pool keeps one short vector per token, whatever the heads.

A decoding row multiplies its queries into the space of latents and attends there, so that nothing
is expanded. A prompt chunk expands what it attends, as in training: its many rows share that, and
heads are narrower than latents.
"""

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steelyard.nn.layer import DecoderLayer
from steelyard.nn.mixers.latent import LatentAttention
from steelyard.nn.transformer import Transformer
from steelyard.serve.running.attention import StepAttention
from steelyard.serve.running.shallow import shallow

__all__ = ["CachedLatent", "LatentStepAttention", "with_cached_latents"]


class CachedLatent(nn.Module):
    """Latent attention that hands out latents in place of keys and values.

    Attributes:
        maps: what makes queries and latents.
    """

    def __init__(self, latent: LatentAttention, dtype: torch.dtype) -> None:
        """Share everything; the expansion is kept as numbers, as it is used in two ways.

        Args:
            latent: latent attention of a layer.
            dtype: type of the expansion: that of the activations.
        """
        super().__init__()
        self.maps = cast(LatentAttention, shallow(latent))
        matrix = cast(Tensor, latent.expansion.weight).detach().to(dtype)
        # No linear map of its own, which would be packed once more.
        self.maps._modules["expansion"] = _Expansion(matrix)
        # [H, N + V, C]: of each head first what makes keys, then what makes values.
        heads = matrix.unflatten(0, (latent.num_heads, -1))
        self._of_keys, self._of_values = heads.split((latent.sizes[0], latent.value_dim), dim=1)
        # Attention divides by the root of what it is given, which is wider than a head.
        self._scale = math.sqrt((latent.rank + latent.sizes[1]) / sum(latent.sizes))

    def forward(self, normed: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """Return queries [T, H, N + P], and latents [T, 1, C + P] as keys and as values."""
        latents = self.maps.reduce(normed, rotation).unsqueeze(-2)
        return self.maps.make_queries(normed, rotation), latents, latents

    def absorb(self, queries: Tensor) -> Tensor:
        """Return queries [S, H, C + P] that attend latents as `queries` [S, H, N + P] do keys.

        Source: DeepSeek-AI 2024 (arXiv 2405.04434), section 2.1.2 (absorption).
        """
        plain, turned = queries.split(self.maps.sizes, dim=-1)
        absorbed = (plain.transpose(0, 1) @ self._of_keys).transpose(0, 1)
        return torch.cat((absorbed, turned), dim=-1) * self._scale

    def make_values(self, mixed: Tensor) -> Tensor:
        """Return mixed values [S, H, V] of mixed latents [S, H, C + P]."""
        latents = mixed[..., : self.maps.rank].transpose(0, 1)
        return (latents @ self._of_values.transpose(1, 2)).transpose(0, 1)


class _Expansion(nn.Module):
    """A linear map whose matrix is nobody's parameter."""

    def __init__(self, matrix: Tensor) -> None:
        """Keep the matrix [R, C]."""
        super().__init__()
        self._matrix = matrix

    def forward(self, rows: Tensor) -> Tensor:
        """Return [..., R] of rows [..., C]."""
        return F.linear(rows, self._matrix)


def with_cached_latents(model: Transformer, dtype: torch.dtype) -> Transformer:
    """Return a model that shares everything with another but what its attention is given.

    Args:
        model: model with latent attention.
        dtype: type of its activations when it runs.

    Returns:
        A model for `LatentStepAttention`.
    """
    twin = cast(Transformer, shallow(model))
    twin.layers = nn.ModuleList(_layer(layer, dtype) for layer in model.layers)
    return twin


def _layer(layer: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Share a layer but its latent attention."""
    twin = cast(DecoderLayer, shallow(layer))
    twin._modules["latent"] = CachedLatent(cast(LatentAttention, twin.latent), dtype)
    return twin


class LatentStepAttention:
    """The `attend` of one step of a model `with_cached_latents`, called once per layer."""

    def __init__(self, steps: StepAttention, model: Transformer) -> None:
        """Keep the plan's index arrays and the layers' expansions.

        Args:
            steps: attention of the step, over a pool that keeps latents.
            model: the one that runs.
        """
        self.steps = steps
        self._latents = [cast(CachedLatent, layer.latent) for layer in model.layers]

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend in one layer: queries [T, H, N + P] and latents to [T, H, V]."""
        steps, latent = self.steps, self._latents[layer]
        steps.pool.write(layer, steps.blocks, steps.offsets, key, value)
        out = query.new_empty(*query.shape[:-1], latent.maps.value_dim)
        count = steps.num_decodes
        if count:
            absorbed = latent.absorb(query[:count])
            mixed = torch.empty_like(absorbed)
            steps.decode(layer, absorbed, mixed)
            out[:count] = latent.make_values(mixed)
        for chunk in steps.chunks:
            seen, _ = steps.seen(layer, chunk, 0, key, value)
            keys, values = (part.transpose(0, 1) for part in latent.maps.expand(seen[0]))
            found = F.scaled_dot_product_attention(
                query[chunk.rows].transpose(0, 1)[None],
                keys[None],
                values[None],
                attn_mask=chunk.mask,
                is_causal=chunk.mask is None,
            )
            out[chunk.rows] = found[0].transpose(0, 1)
        return out

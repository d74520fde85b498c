"""Multi-head latent attention: keys and values of all heads come from one short vector."""

import torch
from torch import Tensor, nn

from steelyard.catalog.architecture import Architecture
from steelyard.nn.parts.linear import linear
from steelyard.nn.rotary import rotate

__all__ = ["LatentAttention"]

_EPS = 1e-6
"""Of the norms of latent vectors, whatever that of the layer: so in all released models."""


class LatentAttention(nn.Module):
    """What makes queries, keys and values of the residual stream.

    A token's latent is the normed reduction of its hidden state (C), and one rotary key (P) that
    all heads share. A head's key is an expansion of C and that rotary key, its value another
    expansion of C: whoever keeps latents keeps C + P numbers per token.

    Attributes:
        query_reduction: map to the latent of queries, None where queries are made directly.
        query_norm: norm of that latent, or None.
        queries: makes queries [H (N + P)], those of a head side by side, rotary columns last.
        reduction: map to C numbers and the rotary key.
        norm: norm of the C numbers.
        expansion: makes of C numbers [H (N + V)] the keys and values of heads.
        num_heads: H.
        rank: C.
        sizes: N and P, columns of a query or key head without and with rotation.
        value_dim: V.

    Source: DeepSeek-AI 2024 (arXiv 2405.04434), section 2.1.2 and 2.1.3, equations 37 to 47.
    """

    def __init__(self, arch: Architecture) -> None:
        """Lay out the parameters, not yet filled.

        Args:
            arch: architecture with `kv_lora_rank`.
        """
        super().__init__()
        width, heads, turned = arch.hidden_size, arch.num_heads, arch.qk_rope_head_dim
        self.num_heads, self.rank, self.value_dim = heads, arch.kv_lora_rank, arch.v_head_dim
        plain = arch.head_dim - turned
        self.sizes = plain, turned
        reduced = arch.q_lora_rank
        self.query_reduction = linear(width, reduced, bias=False) if reduced else None
        self.query_norm = nn.RMSNorm(reduced, eps=_EPS) if reduced else None
        self.queries = linear(reduced or width, heads * arch.head_dim, bias=False)
        self.reduction = linear(width, self.rank + turned, bias=False)
        self.norm = nn.RMSNorm(self.rank, eps=_EPS)
        self.expansion = linear(self.rank, heads * (plain + self.value_dim), bias=False)

    def forward(self, normed: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """Compute what attention mixes.

        Args:
            normed: [..., hidden size].
            rotation: what `rotary.spread` returned for these positions.

        Returns:
            Queries and keys [..., H, N + P], and values [..., H, V].
        """
        return self.make_queries(normed, rotation), *self.expand(self.reduce(normed, rotation))

    def make_queries(self, normed: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Return the turned queries [..., H, N + P] of [..., hidden size]."""
        if self.query_reduction is not None and self.query_norm is not None:
            normed = self.query_norm(self.query_reduction(normed))
        heads = self.queries(normed).unflatten(-1, (self.num_heads, -1))
        plain, turned = heads.split(self.sizes, dim=-1)
        return torch.cat((plain, rotate(_halves(turned), *rotation)), dim=-1)

    def reduce(self, normed: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Return the latents [..., C + P] of [..., hidden size], rotary keys turned."""
        latent, turned = self.reduction(normed).split((self.rank, self.sizes[1]), dim=-1)
        turned = rotate(_halves(turned).unsqueeze(-2), *rotation).squeeze(-2)
        return torch.cat((self.norm(latent), turned), dim=-1)

    def expand(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys [..., H, N + P] and values [..., H, V] of latents [..., C + P]."""
        latent, turned = latents.split((self.rank, self.sizes[1]), dim=-1)
        heads = self.expansion(latent).unflatten(-1, (self.num_heads, -1))
        plain, values = heads.split((self.sizes[0], self.value_dim), dim=-1)
        shared = turned.unsqueeze(-2).expand(*plain.shape[:-1], -1)
        return torch.cat((plain, shared), dim=-1), values


def _halves(heads: Tensor) -> Tensor:
    """Move the second coordinates of neighbouring pairs behind all first ones, as `rotate` wants.

    Queries and keys are moved alike, so that their products stay.
    """
    return heads.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)

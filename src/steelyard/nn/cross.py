"""Attention of a decoder over what an encoder computed."""

from torch import Tensor, nn

from steelyard.catalog.architecture import Architecture
from steelyard.nn.mixers.sequences import attend_sequence
from steelyard.nn.parts.linear import linear
from steelyard.nn.parts.norm import make_norm

__all__ = ["CrossAttention"]


class CrossAttention(nn.Module):
    """Queries of a decoder's tokens, keys and values of an encoder's.

    Attributes:
        queries: projection of the decoder's stream.
        keys_values: projection of the encoder's results, all key heads and then all value heads.
        inner_norm: norm before the output projection with `subln`, or None.
        out: output projection.
    """

    def __init__(self, arch: Architecture) -> None:
        """Lay out the parameters, not yet filled.

        Args:
            arch: an encoder-decoder.
        """
        super().__init__()
        width, inner = arch.hidden_size, arch.num_heads * arch.head_dim
        self.heads, self.head_dim = (arch.num_heads, arch.num_kv_heads), arch.head_dim
        self.queries = linear(width, inner, arch.qkv_bias)
        self.keys_values = linear(width, 2 * arch.num_kv_heads * arch.head_dim, arch.qkv_bias)
        self.inner_norm = make_norm(arch, inner) if arch.subln else None
        self.out = linear(inner, width, arch.output_bias)

    def forward(
        self, normed: Tensor, memory: Tensor, query_scale: float, seen: Tensor | None = None
    ) -> Tensor:
        """Return what attention over the encoder's results adds.

        Args:
            normed: [B, T, C] of the decoder.
            memory: [B, S, C] of the encoder.
            query_scale: factor of the queries, 1 for scores over sqrt(D).
            seen: bool [B, 1, T, S] of the encoder's results that a token may attend; None for all.

        Returns:
            [B, T, C].
        """
        queries = self.queries(normed).unflatten(-1, (-1, self.head_dim)) * query_scale
        keys, values = self.keys_values(memory).unflatten(-1, (-1, self.head_dim)).chunk(2, dim=-2)
        mixed = attend_sequence(queries, keys, values, causal=False, seen=seen).flatten(-2)
        return self.out(mixed if self.inner_norm is None else self.inner_norm(mixed))

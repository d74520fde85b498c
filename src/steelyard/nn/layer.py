"""One decoder layer: attention and MLP, each behind a norm and added to the residual stream."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steelyard.catalog.architecture import Architecture
from steelyard.nn.rotary import rotate

__all__ = ["Attend", "DecoderLayer", "causal_attention", "linear", "make_norm"]

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Attention as the caller wants it: layer index, queries [..., H, D], keys [..., KV, D], values
[..., KV, D] to [..., H, D]."""


def causal_attention(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attend from each token to itself and all before it.

    Args:
        layer: not used; part of the `Attend` shape.
        queries: [B, T, H, D].
        keys: [B, T, KV, D]; query head h reads key head h // (H / KV).
        values: [B, T, KV, D].

    Returns:
        [B, T, H, D].
    """
    del layer
    grouped = keys.shape[-2] != queries.shape[-2]
    out = F.scaled_dot_product_attention(
        queries.transpose(-3, -2),
        keys.transpose(-3, -2),
        values.transpose(-3, -2),
        is_causal=True,
        enable_gqa=grouped,
    )
    return out.transpose(-3, -2)


class _Unfilled(nn.Linear):
    """A linear map that draws nothing from the global generator when it is made.

    `skip_init` reaches the same over the meta device, for which torch imports its compiler: five
    seconds at the start of every process.
    """

    def reset_parameters(self) -> None:
        """Leave the memory as it is."""


def linear(inputs: int, outputs: int, bias: bool) -> nn.Linear:
    """Make a linear map whose memory is not yet filled."""
    # torch's own constructor would draw weights from the global generator and change its state.
    return _Unfilled(inputs, outputs, bias=bias)


def make_norm(arch: Architecture, width: int) -> nn.Module:
    """Make the architecture's norm over `width` values."""
    kind = nn.RMSNorm if arch.norm == "rmsnorm" else nn.LayerNorm
    return kind(width, eps=arch.norm_eps)


class DecoderLayer(nn.Module):
    """A pre-norm decoder layer with fused projections.

    Attributes:
        attention_norm: norm before attention.
        qkv: input projection of attention; its rows are all query heads, then all key heads, then
            all value heads.
        query_norm: norm of each query head, None without `qk_norm`.
        key_norm: norm of each key head, None without `qk_norm`.
        out: output projection of attention.
        mlp_norm: norm before the MLP.
        up: input projection of the MLP; with a gated MLP the gate's rows come first, then the
            linear ones.
        down: output projection of the MLP.
    """

    def __init__(self, arch: Architecture, index: int) -> None:
        """Lay out the parameters, not yet filled.

        Args:
            arch: a dense decoder.
            index: place in the stack, from 0.
        """
        super().__init__()
        self.index = index
        self.heads = (arch.num_heads, arch.num_kv_heads, arch.num_kv_heads)
        self.head_dim = arch.head_dim
        self.gated = arch.mlp == "swiglu"
        self.rectified = arch.mlp == "relu"
        attention_width = arch.num_heads * arch.head_dim
        self.attention_norm = make_norm(arch, arch.hidden_size)
        self.qkv = linear(arch.hidden_size, sum(self.heads) * arch.head_dim, arch.qkv_bias)
        self.query_norm = nn.RMSNorm(arch.head_dim, eps=arch.norm_eps) if arch.qk_norm else None
        self.key_norm = nn.RMSNorm(arch.head_dim, eps=arch.norm_eps) if arch.qk_norm else None
        self.out = linear(attention_width, arch.hidden_size, arch.output_bias)
        self.mlp_norm = make_norm(arch, arch.hidden_size)
        self.up = linear(
            arch.hidden_size, arch.intermediate_size * (2 if self.gated else 1), arch.mlp_bias
        )
        self.down = linear(arch.intermediate_size, arch.hidden_size, arch.mlp_bias)

    def forward(
        self,
        hidden: Tensor,
        rotation: tuple[Tensor, Tensor] | None,
        attend: Attend,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """Apply the layer.

        Args:
            hidden: residual stream [..., C].
            rotation: what `rotary.spread` returned for these positions, or None without rotary
                positions.
            attend: attention over this layer's queries, keys and values.
            wanted: int64 [N] rows of the first axis whose results are needed; the others only leave
                their keys and values.

        Returns:
            The new residual stream [..., C], or [N, ..., C] of the rows wanted.
        """
        queries, keys, values = self._project(self.attention_norm(hidden), rotation)
        attended = attend(self.index, queries, keys, values)
        if wanted is not None:
            hidden, attended = hidden[wanted], attended[wanted]
        hidden = hidden + self.out(attended.flatten(-2))
        return hidden + self.down(self._activate(self.up(self.mlp_norm(hidden))))

    def _project(
        self, normed: Tensor, rotation: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return normed and turned queries [..., H, D] and keys, and values [..., KV, D]."""
        num_heads, num_kv_heads, _ = self.heads
        fused = self.qkv(normed).unflatten(-1, (-1, self.head_dim))
        if rotation is None or self.query_norm is not None or self.key_norm is not None:
            queries, keys, values = fused.split(self.heads, dim=-2)
            queries = queries if self.query_norm is None else self.query_norm(queries)
            keys = keys if self.key_norm is None else self.key_norm(keys)
            if rotation is not None:
                queries = rotate(queries, *rotation)
                keys = rotate(keys, *rotation)
            return queries, keys, values
        # Query and key heads lie side by side, so one call turns both.
        turning, values = fused.split((num_heads + num_kv_heads, num_kv_heads), dim=-2)
        queries, keys = rotate(turning, *rotation).split((num_heads, num_kv_heads), dim=-2)
        return queries, keys, values

    def _activate(self, inner: Tensor) -> Tensor:
        """Apply SwiGLU, GELU (its tanh form, as in GPT-2), or ReLU."""
        if self.gated:
            gate, value = inner.chunk(2, dim=-1)
            return F.silu(gate) * value
        return torch.relu(inner) if self.rectified else F.gelu(inner, approximate="tanh")

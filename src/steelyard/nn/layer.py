"""One decoder layer: attention and MLP with their norms, each added to the residual stream."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steelyard.catalog.architecture import Architecture
from steelyard.nn.attention import Attend
from steelyard.nn.rotary import rotate

__all__ = ["DecoderLayer", "UnitOffsetNorm", "linear", "make_norm"]


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


class UnitOffsetNorm(nn.RMSNorm):
    """An RMSNorm whose stored gain is less by 1, computed in float32 as the models that have it."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the normed rows in the type of `x`."""
        # 1 plus a small gain in bfloat16 would round the gain away.
        gain = 1.0 + self.weight.float()
        return F.rms_norm(x.float(), self.normalized_shape, gain, self.eps).type_as(x)


def make_norm(arch: Architecture, width: int) -> nn.Module:
    """Make the architecture's norm over `width` values."""
    if arch.norm == "layernorm":
        return nn.LayerNorm(width, eps=arch.norm_eps)
    return _rms_norm(arch, width)


def _rms_norm(arch: Architecture, width: int) -> nn.RMSNorm:
    """Make an RMSNorm; queries and keys have one whatever the norm of the layer."""
    kind = UnitOffsetNorm if arch.unit_offset_norm else nn.RMSNorm
    return kind(width, eps=arch.norm_eps)


class DecoderLayer(nn.Module):
    """A decoder layer with fused projections.

    Attributes:
        attention_norm: norm before attention, None with `post_norm`.
        qkv: input projection of attention; its rows are all query heads, then all key heads, then
            all value heads.
        query_norm: norm of each query head, or of all together with `qk_norm_across_heads`; None
            without `qk_norm`.
        key_norm: the same of keys.
        out: output projection of attention.
        attention_post_norm: norm of what attention adds to the residual stream, or None.
        mlp_norm: norm before the MLP, None with `post_norm`.
        up: input projection of the MLP; with a gated MLP the gate's rows come first, then the
            linear ones.
        down: output projection of the MLP.
        mlp_post_norm: norm of what the MLP adds to the residual stream, or None.
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
        self.mlp_form = arch.mlp
        self.norm_across_heads = arch.qk_norm_across_heads
        self.residual_scale = arch.residual_scale
        # Every attention divides by sqrt(head_dim); another scale is brought in by the queries.
        self.query_scale = arch.attention_scale * math.sqrt(arch.head_dim) or 1.0
        width, has_post = arch.hidden_size, arch.post_norm or arch.sandwich_norm
        self.attention_norm = None if arch.post_norm else make_norm(arch, width)
        self.qkv = linear(width, sum(self.heads) * arch.head_dim, arch.qkv_bias)
        normed = self.heads if arch.qk_norm_across_heads else (1, 1)
        query_width, key_width = normed[0] * arch.head_dim, normed[1] * arch.head_dim
        self.query_norm = _rms_norm(arch, query_width) if arch.qk_norm else None
        self.key_norm = _rms_norm(arch, key_width) if arch.qk_norm else None
        self.out = linear(arch.num_heads * arch.head_dim, width, arch.output_bias)
        self.attention_post_norm = make_norm(arch, width) if has_post else None
        self.mlp_norm = None if arch.post_norm else make_norm(arch, width)
        self.up = linear(width, arch.intermediate_size * (2 if arch.is_gated else 1), arch.mlp_bias)
        self.down = linear(arch.intermediate_size, width, arch.mlp_bias)
        self.mlp_post_norm = make_norm(arch, width) if has_post else None

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
        normed = hidden if self.attention_norm is None else self.attention_norm(hidden)
        attended = attend(self.index, *self._project(normed, rotation))
        if wanted is not None:
            hidden, attended = hidden[wanted], attended[wanted]
        hidden = self._add(hidden, self.out(attended.flatten(-2)), self.attention_post_norm)
        normed = hidden if self.mlp_norm is None else self.mlp_norm(hidden)
        return self._add(hidden, self.down(self._activate(self.up(normed))), self.mlp_post_norm)

    def _add(self, hidden: Tensor, update: Tensor, norm: nn.Module | None) -> Tensor:
        """Add to the residual stream what attention or MLP computed."""
        if norm is not None:
            update = norm(update)
        return hidden + (update if self.residual_scale == 1.0 else update * self.residual_scale)

    def _project(
        self, normed: Tensor, rotation: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return normed and turned queries [..., H, D] and keys, and values [..., KV, D]."""
        num_heads, num_kv_heads, _ = self.heads
        fused = self.qkv(normed).unflatten(-1, (-1, self.head_dim))
        if rotation is None or self.query_norm is not None or self.key_norm is not None:
            queries, keys, values = fused.split(self.heads, dim=-2)
            queries = self._normed_heads(queries, self.query_norm)
            keys = self._normed_heads(keys, self.key_norm)
            if rotation is not None:
                queries = rotate(queries, *rotation)
                keys = rotate(keys, *rotation)
        else:
            # Query and key heads lie side by side, so one call turns both.
            turning, values = fused.split((num_heads + num_kv_heads, num_kv_heads), dim=-2)
            queries, keys = rotate(turning, *rotation).split((num_heads, num_kv_heads), dim=-2)
        return (queries if self.query_scale == 1.0 else queries * self.query_scale), keys, values

    def _normed_heads(self, heads: Tensor, norm: nn.Module | None) -> Tensor:
        """Return heads [..., H, D] normed one by one, or all of a token together."""
        if norm is None:
            return heads
        if self.norm_across_heads:
            return norm(heads.flatten(-2)).view_as(heads)
        return norm(heads)

    def _activate(self, inner: Tensor) -> Tensor:
        """Apply SwiGLU, GeGLU, GELU (both in its tanh form, as in GPT-2 and Gemma), or ReLU."""
        if self.mlp_form == "swiglu":
            gate, value = inner.chunk(2, dim=-1)
            return F.silu(gate) * value
        if self.mlp_form == "geglu":
            gate, value = inner.chunk(2, dim=-1)
            return F.gelu(gate, approximate="tanh") * value
        return torch.relu(inner) if self.mlp_form == "relu" else F.gelu(inner, approximate="tanh")

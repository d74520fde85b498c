"""One layer: attention and MLP with their norms, each added to the residual stream."""

import math
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from steelyard.catalog.architecture import Architecture
from steelyard.nn.attention import Attend
from steelyard.nn.cross import CrossAttention
from steelyard.nn.initial.schemes import residual_weight
from steelyard.nn.mixers.latent import LatentAttention
from steelyard.nn.moe.experts import MixtureOfExperts
from steelyard.nn.parts.activation import activate
from steelyard.nn.parts.linear import linear
from steelyard.nn.parts.noise import Noise, drop_path
from steelyard.nn.parts.norm import make_norm, rms_norm
from steelyard.nn.rotary import rotate

__all__ = ["DecoderLayer", "Rotation", "SideInputs"]

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines of `rotary.spread`, for all heads or for each head of queries and keys."""


@dataclass(frozen=True, slots=True)
class SideInputs:
    """What some layers read besides the residual stream.

    Attributes:
        tokens: int64 of the residual stream's leading shape, for hash routers.
        memory: [B, S, C] that an encoder computed, for cross-attention.
        split: tokens of each sequence that the first branch of multiway layers computes.
        memory_seen: bool [B, 1, T, S] of the memory that a token may attend; None for all.
    """

    tokens: Tensor | None = None
    memory: Tensor | None = None
    split: int = 0
    memory_seen: Tensor | None = None

    def rows(self, wanted: Tensor) -> "SideInputs":
        """Return what belongs to some rows of the first axis."""
        tokens, memory, seen = (
            None if part is None else part[wanted]
            for part in (self.tokens, self.memory, self.memory_seen)
        )
        return SideInputs(tokens, memory, self.split, seen)


_NONE = SideInputs()


class DecoderLayer(nn.Module):
    """A layer with fused projections; attention is the caller's.

    Attributes:
        attention_norm: norm before attention, None with norms after it alone.
        latent: what makes queries, keys and values of latent attention; None where `qkv` does.
        qkv: input projection of attention; its rows are all query heads, then all key heads, then
            all value heads.
        query_norm: norm of each query head, or of all together with `qk_norm_across_heads`; None
            without `qk_norm`.
        key_norm: the same of keys.
        gate: projection whose SiLU multiplies what retention computed, else None.
        attention_inner_norm: norm before the output projection with `subln`, or None.
        out: output projection of attention.
        attention_post_norm: norm of what attention adds to the residual stream, or None.
        attention_sum_norm: norm after it was added, or None.
        cross: attention over an encoder's results, or None.
        cross_norm: norm before it; the two after it are `cross_post_norm` and `cross_sum_norm`.
        mlp_norm: norm before the MLP, None with norms after it alone.
        experts: mixture of experts, None where `up` and `down` are there.
        up: input projection of the MLP; with a gated MLP the gate's rows come first, then the
            linear ones.
        mlp_inner_norm: norm before the MLP's output projection with `subln`, or None.
        down: output projection of the MLP.
        mlp_post_norm: norm of what the MLP adds to the residual stream, or None.
        mlp_sum_norm: norm after it was added, or None.
    """

    qkv: nn.Linear
    up: nn.Linear
    down: nn.Linear

    def __init__(self, arch: Architecture, index: int, part: str = "decoder") -> None:
        """Lay out the parameters, not yet filled.

        Args:
            arch: what `nn.transformer` can build.
            index: place in the stack, from 0.
            part: "encoder" or "decoder".
        """
        super().__init__()
        self.index = index
        self.heads = (arch.num_heads, arch.num_kv_heads, arch.num_kv_heads)
        self.head_dim = arch.head_dim
        self.mlp_form = arch.mlp
        self.norm_across_heads = arch.qk_norm_across_heads
        self.residual_scale = arch.residual_scale
        self.residual_weight = residual_weight(arch, part)
        self.drop_path = arch.drop_path * index / max(arch.num_layers - 1, 1)
        self.noise = Noise() if self.drop_path else None
        self.norm_eps = arch.norm_eps
        # Every attention divides by sqrt(head_dim); another scale is brought in by the queries.
        self.query_scale = arch.attention_scale * math.sqrt(arch.head_dim) or 1.0
        width = arch.hidden_size
        has_post, has_sum = arch.post_norm or arch.sandwich_norm, arch.norms_sums
        has_pre = not (arch.post_norm or has_sum)
        self.attention_norm = make_norm(arch, width) if has_pre else None
        self._add_attention(arch)
        self.attention_post_norm = make_norm(arch, width) if has_post else None
        self.attention_sum_norm = make_norm(arch, width) if has_sum else None
        has_cross = arch.kind == "encoder-decoder" and part == "decoder"
        self.cross = CrossAttention(arch) if has_cross else None
        self.cross_norm = make_norm(arch, width) if has_cross and has_pre else None
        self.cross_post_norm = make_norm(arch, width) if has_cross and has_post else None
        self.cross_sum_norm = make_norm(arch, width) if has_cross and has_sum else None
        self.mlp_norm = make_norm(arch, width) if has_pre else None
        self.experts = MixtureOfExperts(arch) if arch.has_experts(index) else None
        self.mlp_inner_norm = None
        if self.experts is None:
            self._add_mlp(arch)
        self.mlp_post_norm = make_norm(arch, width) if has_post else None
        self.mlp_sum_norm = make_norm(arch, width) if has_sum else None

    def _add_attention(self, arch: Architecture) -> None:
        """Lay out what stands around the mixing of tokens."""
        width, inner = arch.hidden_size, arch.num_heads * arch.value_dim
        self.latent = LatentAttention(arch) if arch.kv_lora_rank else None
        if self.latent is None:
            self.qkv = linear(width, sum(self.heads) * arch.head_dim, arch.qkv_bias)
        normed = self.heads if arch.qk_norm_across_heads else (1, 1)
        query_width, key_width = normed[0] * arch.head_dim, normed[1] * arch.head_dim
        self.query_norm = rms_norm(arch, query_width) if arch.qk_norm else None
        self.key_norm = rms_norm(arch, key_width) if arch.qk_norm else None
        self.gate = linear(width, inner, bias=False) if arch.mixer == "retention" else None
        self.attention_inner_norm = make_norm(arch, inner) if arch.subln else None
        self.out = linear(inner, width, arch.output_bias)

    def _add_mlp(self, arch: Architecture) -> None:
        """Lay out a dense MLP."""
        width, inner = arch.hidden_size, arch.intermediate_size
        self.up = linear(width, inner * (2 if arch.is_gated else 1), arch.mlp_bias)
        self.mlp_inner_norm = make_norm(arch, inner) if arch.subln else None
        self.down = linear(inner, width, arch.mlp_bias)

    def forward(
        self,
        hidden: Tensor,
        rotation: Rotation | None,
        attend: Attend,
        wanted: Tensor | None = None,
        sides: SideInputs = _NONE,
    ) -> Tensor:
        """Apply the layer.

        Args:
            hidden: residual stream [..., C].
            rotation: what `rotary.spread` returned for these positions, or None without rotary
                positions.
            attend: attention over this layer's queries, keys and values.
            wanted: int64 [N] rows of the first axis whose results are needed; the others only leave
                their keys and values.
            sides: what some layers read besides.

        Returns:
            The new residual stream [..., C], or [N, ..., C] of the rows wanted.
        """
        normed = self.before_attention(hidden)
        attended = attend(self.index, *self.project(normed, rotation))
        if wanted is not None:
            hidden, attended, normed = hidden[wanted], attended[wanted], normed[wanted]
            sides = sides.rows(wanted)
        return self.after_attention(hidden, normed, attended, sides)

    def before_attention(self, hidden: Tensor) -> Tensor:
        """Return what attention's projections read of the residual stream [..., C]."""
        return hidden if self.attention_norm is None else self.attention_norm(hidden)

    def after_attention(
        self, hidden: Tensor, normed: Tensor, attended: Tensor, sides: SideInputs
    ) -> Tensor:
        """Add what attention found to the residual stream, and then what the MLP computes.

        Args:
            hidden: residual stream [..., C].
            normed: what `before_attention` returned for it.
            attended: results of attention [..., H, D].
            sides: what some layers read besides.

        Returns:
            The new residual stream [..., C].
        """
        if self.gate is not None:
            # Retention has no softmax that would keep heads to one scale: each is normed alone.
            attended = F.rms_norm(attended, (self.head_dim,), eps=self.norm_eps)
            attended = attended * F.silu(self.gate(normed)).unflatten(-1, (-1, self.head_dim))
        mixed = attended.flatten(-2)
        if self.attention_inner_norm is not None:
            mixed = self.attention_inner_norm(mixed)
        norms = self.attention_post_norm, self.attention_sum_norm
        hidden = self._add(hidden, self.out(mixed), *norms)
        if self.cross is not None and sides.memory is not None:
            hidden = self._attend_memory(self.cross, hidden, sides.memory, sides.memory_seen)
        normed = hidden if self.mlp_norm is None else self.mlp_norm(hidden)
        update = self._feed_forward(normed, sides.tokens)
        return self._add(hidden, update, self.mlp_post_norm, self.mlp_sum_norm)

    def _attend_memory(
        self, cross: CrossAttention, hidden: Tensor, memory: Tensor, seen: Tensor | None
    ) -> Tensor:
        """Add what attention over an encoder's results finds."""
        normed = hidden if self.cross_norm is None else self.cross_norm(hidden)
        update = cross(normed, memory, self.query_scale, seen)
        return self._add(hidden, update, self.cross_post_norm, self.cross_sum_norm)

    def _feed_forward(self, normed: Tensor, tokens: Tensor | None) -> Tensor:
        """Return what the MLP or the experts add."""
        if self.experts is not None:
            return self.experts(normed, tokens)
        inner = activate(self.mlp_form, self.up(normed))
        return self.down(inner if self.mlp_inner_norm is None else self.mlp_inner_norm(inner))

    def _add(
        self,
        hidden: Tensor,
        update: Tensor,
        norm: nn.Module | None,
        sum_norm: nn.Module | None,
    ) -> Tensor:
        """Add to the residual stream what attention or MLP computed."""
        if norm is not None:
            update = norm(update)
        if self.noise is not None and self.training:
            update = drop_path(update, self.drop_path, self.noise)
        if self.residual_scale != 1.0:
            update = update * self.residual_scale
        if self.residual_weight != 1.0:
            hidden = hidden * self.residual_weight
        total = hidden + update
        return total if sum_norm is None else sum_norm(total)

    def project(self, normed: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """Compute what attention mixes.

        Args:
            normed: what `before_attention` returned [..., C].
            rotation: rotation that `forward` takes.

        Returns:
            Normed and turned queries [..., H, D] and keys, and values [..., KV, D].
        """
        if self.latent is not None and rotation is not None:
            queries, keys, values = self.latent(normed, rotation)
            return (
                (queries if self.query_scale == 1.0 else queries * self.query_scale),
                keys,
                values,
            )
        num_heads, num_kv_heads, _ = self.heads
        fused = self.qkv(normed).unflatten(-1, (-1, self.head_dim))
        if rotation is None or self.query_norm is not None or self.key_norm is not None:
            queries, keys, values = fused.split(self.heads, dim=-2)
            queries = self._normed_heads(queries, self.query_norm)
            keys = self._normed_heads(keys, self.key_norm)
            if rotation is not None:
                queries = rotate(queries, *_of_heads(rotation, 0, num_heads))
                keys = rotate(keys, *_of_heads(rotation, num_heads, num_heads + num_kv_heads))
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


def _of_heads(rotation: Rotation, first: int, stop: int) -> Rotation:
    """Return the rotation of some heads; the same for all where it is one."""
    cosines, sines = rotation
    if cosines.shape[-2] == 1:
        return rotation
    return cosines[..., first:stop, :], sines[..., first:stop, :]

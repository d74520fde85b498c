"""One transformer stack, built from the same architecture record that the catalog holds."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.parameters import RELATIVE_BUCKETS
from steelyard.catalog.validate import validate_architecture
from steelyard.errors import ConfigError
from steelyard.nn.attention import Attend, causal_attention
from steelyard.nn.initial.fill import fill
from steelyard.nn.layer import DecoderLayer, Rotation, SideInputs
from steelyard.nn.mixers.dilated import attend_dilated
from steelyard.nn.mixers.retention import retain_parallel
from steelyard.nn.mixers.sequences import (
    Bias,
    attend_blocks,
    attend_sequence,
    same_segment,
    segment_positions,
)
from steelyard.nn.multiway import MultiwayLayer
from steelyard.nn.parts.linear import linear
from steelyard.nn.parts.norm import make_norm
from steelyard.nn.parts.token_loss import token_losses
from steelyard.nn.parts.token_table import TokenTable
from steelyard.nn.positions.bias import alibi_bias, relative_buckets
from steelyard.nn.positions.xpos import decay_scales, spread_decayed
from steelyard.nn.rotary import RotaryScaling, rotary_tables, spread
from steelyard.nn.traits import unsupported_traits

__all__ = ["Transformer", "build"]


def build(
    arch: Architecture,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> "Transformer":
    """Build a decoder or an encoder with freshly drawn weights.

    Weights are normal with standard deviation sqrt(2 / (5 width)), 0.02 at usual widths and more
    for narrow models, which would otherwise start on a plateau; projections that write into the
    residual stream are narrower by sqrt(2 layers), so that its variance does not grow with depth.
    Norm schemes have draws of their own (`nn.initial.fill.fill`). Draws are made on the CPU in
    float32, so a seed gives the same weights on every device.

    Args:
        arch: a decoder or an encoder; `nn.encoder_decoder.build` makes both in one.
        dtype: type of all parameters.
        device: device of all parameters.
        seed: seed of the draws.

    Returns:
        The model, in training mode.

    Raises:
        ConfigError: the architecture has a trait this model does not have; all such traits are
            named.
        CatalogError: its traits contradict each other.
    """
    model = Transformer(arch)
    fill(model, arch, torch.Generator().manual_seed(seed))
    return model.to(device=device, dtype=dtype)


class Transformer(nn.Module):
    """A decoder or an encoder whose attention the caller may replace.

    Attributes:
        architecture: the record it was built from.
        scaling: scaling of the rotary wavelengths, or None.
        part: "decoder" or "encoder".
        embedding: token table [V, C]; also the output head when it is tied.
        position_embedding: learned positions [P, C], or None.
        embedding_norm: norm before the first layer, or None.
        relative_bias: bias [32, H] of scores by the bucket of the distance, or None.
        layers: the layers.
        norm: norm before the head; nothing where the last layer ends in one.
        output: head of its own [V, C], or None when tied.
        rotary_cosines: table [P, R / 2] of positions and turned columns; no rows without rotary
            positions.
        rotary_sines: table of the same shape.
        xpos_scales: table of the same shape by which queries are scaled, and keys by its inverse;
            None without "xpos".
        local_cosines: table of layers with a window, None where it is the same.
        local_sines: table of the same shape, or None.
        identity: what the files hold that its weights stand in; empty where they may differ.
    """

    rotary_cosines: Tensor
    rotary_sines: Tensor
    local_cosines: Tensor | None
    local_sines: Tensor | None
    xpos_scales: Tensor | None

    def __init__(
        self, arch: Architecture, scaling: RotaryScaling | None = None, part: str = ""
    ) -> None:
        """Lay out the parameters in float32 on the CPU, not yet filled.

        `build` or `checkpoint.load` fills them.

        Args:
            arch: a decoder or an encoder.
            scaling: scaling of the rotary wavelengths, or None.
            part: "encoder" or "decoder", which half of an encoder-decoder it is.

        Raises:
            ConfigError: the architecture has a trait this model does not have.
            CatalogError: its traits contradict each other.
        """
        super().__init__()
        refuse_unsupported(arch)
        self.architecture = arch
        self.part = part or arch.kind
        if self.part == "encoder-decoder":
            raise ConfigError(
                f"{arch.name} is of kind 'encoder-decoder', which is two stacks",
                hint="build it with nn.encoder_decoder.build",
            )
        self.scaling = scaling
        self.identity = ""
        self.embedding = TokenTable(arch.vocab_size, arch.hidden_size)
        learned = arch.position == "learned"
        self.position_embedding = (
            _table(arch.max_positions + arch.position_offset, arch.hidden_size) if learned else None
        )
        width = arch.hidden_size
        self.embedding_norm = make_norm(arch, width) if arch.embedding_norm else None
        relative = arch.position == "relative"
        self.relative_bias = _table(RELATIVE_BUCKETS, arch.num_heads) if relative else None
        layer = MultiwayLayer if arch.multiway else DecoderLayer
        self.layers = nn.ModuleList(
            layer(arch, index, self.part) for index in range(arch.num_layers)
        )
        self.norm = nn.Identity() if arch.norms_sums else make_norm(arch, width)
        has_head = not arch.tied_embeddings and self.part == "decoder"
        self.output = linear(width, arch.vocab_size, bias=False) if has_head else None
        is_turned = arch.position in ("rope", "xpos")
        rows, width = arch.max_positions if is_turned else 0, arch.turned_dim
        tables = rotary_tables(rows, width, arch.rope_theta, scaling)
        # The scaling is for contexts longer than a window.
        local = (
            rotary_tables(rows, width, arch.local_rope_theta)
            if arch.local_rope_theta
            else (None, None)
        )
        scales = decay_scales(rows, width) if arch.position == "xpos" else None
        self.register_buffer("xpos_scales", scales, persistent=False)
        if scaling is not None:
            for item in self.layers:
                item.query_scale *= scaling.score_factor  # pyright: ignore[reportOperatorIssue]
        # Not stored with the weights: they follow from the architecture.
        for name, pair in (("rotary", tables), ("local", local)):
            self.register_buffer(f"{name}_cosines", pair[0], persistent=False)
            self.register_buffer(f"{name}_sines", pair[1], persistent=False)

    def run(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: Attend,
        wanted: Tensor | None = None,
        sides: SideInputs | None = None,
    ) -> Tensor:
        """Compute the last hidden states with attention of the caller's choice.

        Args:
            tokens: int64 [...], any shape: [B, T], or [N] tokens of many requests side by side.
            positions: int64 of the same shape, or one that broadcasts to it; below
                `architecture.max_positions`.
            attend: attention; its queries and keys are normed and turned already.
            wanted: int64 [N] rows of the first axis to return; the last layer then computes no
                more than keys and values of the others.
            sides: what some layers read besides; by default the tokens.

        Returns:
            Hidden states after the last norm, [..., C] or [N, ..., C].
        """
        hidden, rotations = self.enter(tokens, positions)
        sides = sides or SideInputs(tokens)
        for layer, rotation in zip(self.layers[:-1], rotations[:-1], strict=True):
            hidden = layer(hidden, rotation, attend, None, sides)
        return self.norm(self.layers[-1](hidden, rotations[-1], attend, wanted, sides))

    def enter(
        self, tokens: Tensor, positions: Tensor, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, list[Rotation | None]]:
        """Compute what the first layer reads.

        Args:
            tokens: int64 [...].
            positions: int64 of the same shape, or one that broadcasts to it.
            dtype: type of the residual stream; that of the weights by default.

        Returns:
            The residual stream [..., C], and the rotation of each layer, None where queries and
            keys are not turned.
        """
        arch = self.architecture
        hidden = self.embedding(tokens).to(dtype)
        if arch.embedding_scale != 1.0:
            # Rounded to the type of the weights first, as the models that have it do.
            hidden = hidden * hidden.new_tensor(arch.embedding_scale)
        if self.position_embedding is not None:
            hidden = hidden + self.position_embedding(positions + arch.position_offset).to(dtype)
        if self.embedding_norm is not None:
            hidden = self.embedding_norm(hidden)
        return hidden, self._rotations(positions, hidden.dtype)

    def _rotations(self, positions: Tensor, dtype: torch.dtype) -> list[Rotation | None]:
        """Return the rotation of each layer, None where queries and keys are not turned."""
        arch = self.architecture
        count = arch.num_layers
        if arch.position not in ("rope", "xpos"):
            return [None] * count
        far = spread(self.rotary_cosines[positions], self.rotary_sines[positions], dtype)
        if self.xpos_scales is not None:
            heads = (arch.num_heads, arch.num_kv_heads)
            far = spread_decayed(far, self.xpos_scales[positions], heads)
        near = far
        if self.local_cosines is not None and self.local_sines is not None:
            near = spread(self.local_cosines[positions], self.local_sines[positions], dtype)
        kinds = [near if arch.window_of(layer) else far for layer in range(count)]
        return [kind if arch.is_turned(layer) else None for layer, kind in enumerate(kinds)]

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Mix tokens as the architecture wants it: an `Attend` over whole sequences.

        Args:
            layer: its index.
            queries: [B, T, H, D].
            keys: [B, T, KV, D].
            values: [B, T, KV, D].

        Returns:
            [B, T, H, D].
        """
        arch, parts = self.architecture, (queries, keys, values)
        if arch.mixer == "retention":
            return retain_parallel(*parts)
        if arch.mixer == "dilated":
            return attend_dilated(*parts, arch.dilated_segments, arch.dilated_rates)
        causal, bias = self.part == "decoder", self.bias
        if bias is not None or not causal:
            return attend_sequence(*parts, causal=causal, bias=bias)
        window, softcap = arch.window_of(layer), arch.attention_softcap
        return causal_attention(layer, *parts, window=window, softcap=softcap)

    @property
    def bias(self) -> Bias | None:
        """What positions add to the scores, by the distance of key and query."""
        arch, table = self.architecture, self.relative_bias
        if table is not None:
            both_ways = self.part == "encoder"
            return lambda d: table(relative_buckets(d, both_ways=both_ways)).permute(2, 0, 1)
        if arch.position == "alibi":
            return lambda d: alibi_bias(d, arch.num_heads)
        return None

    def head(self, hidden: Tensor) -> Tensor:
        """Return logits [..., V] of hidden states [..., C]."""
        return self.finish(F.linear(hidden, self.head_weight))

    @property
    def has_plain_head(self) -> bool:
        """Whether losses need no logits: none are divided or capped, and the head is not cut."""
        arch = self.architecture
        plain = arch.logit_divisor == 1.0 and not arch.logit_softcap and self.part == "decoder"
        # A weight that is cut over processes is no parameter but a tensor of another type.
        return plain and type(self.head_weight) is nn.Parameter

    @property
    def head_weight(self) -> Tensor:
        """Weight of the head [V, C]: the token table where it is tied."""
        return self.embedding.weight if self.output is None else self.output.weight

    def finish(self, logits: Tensor) -> Tensor:
        """Return products [..., V] of hidden states and the head as logits: divided and capped."""
        divisor, softcap = self.architecture.logit_divisor, self.architecture.logit_softcap
        logits = logits if divisor == 1.0 else logits / divisor
        return softcap * torch.tanh(logits / softcap) if softcap else logits

    def forward(
        self,
        tokens: Tensor,
        *,
        block: int = 0,
        split: int = 0,
        segments: Tensor | None = None,
        memory: Tensor | None = None,
        memory_seen: Tensor | None = None,
        targets: Tensor | None = None,
    ) -> Tensor:
        """Return next-token logits, of an encoder its last hidden states.

        Args:
            tokens: int64 [B, T]; T at most `architecture.max_positions`.
            block: of decoders whose positions are distances: tokens attend their own block of this
                many tokens and the one before, so that half the length of training carries a model
                over longer sequences; 0 for all tokens before.
            split: tokens of each sequence that the first branch of multiway layers computes.
            segments: integers [B, T] of packed rows, such as `data.convert.batch` makes: tokens
                attend their own segment alone, and positions begin anew in each.
            memory: [B, S, C] of an encoder, for the decoder of an encoder-decoder.
            memory_seen: bool [B, 1, T, S] of the memory that a token may attend; None for all.
            targets: int64 [B, T]; with them a decoder of `has_plain_head` returns losses.

        Returns:
            Logits [B, T, V], of an encoder hidden states [B, T, C], or losses [B, T].

        Raises:
            ConfigError: the sequence is longer than the positions the model knows, it cannot
                attend in blocks or segments, or has no plain head for targets.
        """
        arch, length = self.architecture, tokens.shape[-1]
        if length > arch.max_positions:
            message = (
                f"a sequence of {length} tokens is longer than max_positions = "
                f"{arch.max_positions} of {arch.name}"
            )
            raise ConfigError(
                message,
                hint="cut the sequence, or build with a larger max_positions; beyond the length of "
                "training, attend in blocks of half of it",
            )
        positions = torch.arange(length, device=tokens.device)
        attend = self._attend_blocks(block) if block else self.attend
        if segments is not None:
            positions, attend = segment_positions(segments), self._attend_segments(segments)
        sides = SideInputs(tokens, memory, split, memory_seen)
        if targets is not None and not self.has_plain_head:
            raise ConfigError(
                f"the logits of {arch.name} are divided, capped or cut over processes, or there "
                "are none, so that losses need them",
                hint="call without targets, and take the cross-entropy of the logits",
            )
        if targets is not None and self.output is None and tokens.device.type == "cpu":
            with self.embedding.lending() as lent:
                hidden = self.run(tokens, positions, attend, sides=sides)
            return token_losses(hidden, lent[0], targets)
        hidden = self.run(tokens, positions, attend, sides=sides)
        if targets is not None:
            return token_losses(hidden, self.head_weight, targets)
        return hidden if self.part == "encoder" else self.head(hidden)

    def _attend_blocks(self, block: int) -> Attend:
        """Return attention in blocks."""
        arch, bias = self.architecture, self.bias
        if (
            block < 0
            or self.part != "decoder"
            or arch.mixer != "attention"
            or (arch.position == "learned" or arch.sliding_window or arch.attention_softcap)
        ):
            raise ConfigError(
                f"{arch.name} cannot attend in blocks of {block} tokens",
                hint="blocks are for plain attention of decoders with rope, xpos, relative or "
                "alibi positions",
            )
        return lambda _, *parts: attend_blocks(*parts, block=block, bias=bias)

    def _attend_segments(self, segments: Tensor) -> Attend:
        """Return attention inside segments."""
        arch, bias, causal = self.architecture, self.bias, self.part == "decoder"
        if arch.mixer != "attention" or arch.sliding_window or arch.attention_softcap:
            raise ConfigError(
                f"{arch.name} cannot attend in segments",
                hint="packed rows are for plain attention; train others on rows of one example",
            )
        seen = same_segment(segments, segments)
        return lambda _, *parts: attend_sequence(*parts, causal=causal, bias=bias, seen=seen)


def refuse_unsupported(arch: Architecture) -> None:
    """Refuse what this model does not have.

    Args:
        arch: architecture to check.

    Raises:
        ConfigError: names every such trait.
        CatalogError: its traits contradict each other.
    """
    wrong = unsupported_traits(arch)
    if wrong:
        hint = "it builds decoders and encoders, dense or with experts; see docs/rooms/nn.md"
        raise ConfigError(f"nn.transformer cannot build {arch.name}: {', '.join(wrong)}", hint=hint)
    validate_architecture(arch, where=arch.name)


def _table(rows: int, width: int) -> nn.Embedding:
    """Make an embedding table that is not yet filled."""
    # A table with a weight of its own draws nothing when it is made.
    return nn.Embedding(rows, width, _weight=torch.empty(rows, width))

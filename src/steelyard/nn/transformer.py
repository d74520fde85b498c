"""One decoder-only transformer, built from the same architecture record that the catalog holds."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steelyard.catalog.architecture import Architecture
from steelyard.errors import ConfigError
from steelyard.nn.attention import Attend, causal_attention
from steelyard.nn.layer import DecoderLayer, linear, make_norm
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
    """Build a decoder with freshly drawn weights.

    Weights are normal with standard deviation sqrt(2 / (5 width)), 0.02 at usual widths and more
    for narrow models, which would otherwise start on a plateau; projections that write into the
    residual stream are narrower by sqrt(2 layers), so that its variance does not grow with depth.
    Biases are 0 and gains 1 (stored as 0 with `unit_offset_norm`). Draws are made on the CPU in
    float32, so a seed gives the same weights on every device.

    Args:
        arch: a dense decoder with rotary or learned positions.
        dtype: type of all parameters.
        device: device of all parameters.
        seed: seed of the draws.

    Returns:
        The model, in training mode.

    Raises:
        ConfigError: the architecture has a trait this model does not have; all such traits are
            named.

    Source: Nguyen and Salazar 2019 (arXiv 1910.05895), section 2.2 (small initialization); Radford
        et al. 2019 (GPT-2), section 2.3 (scaling of residual layers).
    """
    model = Transformer(arch)
    _initialize(model, torch.Generator().manual_seed(seed))
    return model.to(device=device, dtype=dtype)


class Transformer(nn.Module):
    """A decoder whose attention the caller may replace.

    Attributes:
        architecture: the record it was built from.
        scaling: scaling of the rotary wavelengths, or None.
        embedding: token table [V, C]; also the output head when it is tied.
        position_embedding: learned positions [P, C], or None.
        layers: the decoder layers.
        norm: norm before the head.
        output: head of its own [V, C], or None when tied.
        rotary_cosines: table [P, R / 2] of positions and turned columns; no rows without rotary
            positions.
        rotary_sines: table of the same shape.
        local_cosines: table of layers with a window, None where it is the same.
        local_sines: table of the same shape, or None.
        identity: what the files hold that its weights stand in; empty where they may differ.
    """

    rotary_cosines: Tensor
    rotary_sines: Tensor
    local_cosines: Tensor | None
    local_sines: Tensor | None

    def __init__(self, arch: Architecture, scaling: RotaryScaling | None = None) -> None:
        """Lay out the parameters in float32 on the CPU, not yet filled.

        `build` or `checkpoint.load` fills them.

        Args:
            arch: a dense decoder with rotary or learned positions.
            scaling: scaling of the rotary wavelengths, or None.

        Raises:
            ConfigError: the architecture has a trait this model does not have.
        """
        super().__init__()
        refuse_unsupported(arch)
        self.architecture = arch
        self.scaling = scaling
        self.identity = ""
        self.embedding = _table(arch.vocab_size, arch.hidden_size)
        learned = arch.position == "learned"
        self.position_embedding = (
            _table(arch.max_positions + arch.position_offset, arch.hidden_size) if learned else None
        )
        self.layers = nn.ModuleList(DecoderLayer(arch, index) for index in range(arch.num_layers))
        self.norm = make_norm(arch, arch.hidden_size)
        self.output = (
            None if arch.tied_embeddings else linear(arch.hidden_size, arch.vocab_size, bias=False)
        )
        rows, width = 0 if learned else arch.max_positions, arch.rotary_dim or arch.head_dim
        tables = rotary_tables(rows, width, arch.rope_theta, scaling)
        # The scaling is for contexts longer than a window.
        local = (
            rotary_tables(rows, width, arch.local_rope_theta)
            if arch.local_rope_theta
            else (None, None)
        )
        # Not stored with the weights: they follow from the architecture.
        for name, pair in (("rotary", tables), ("local", local)):
            self.register_buffer(f"{name}_cosines", pair[0], persistent=False)
            self.register_buffer(f"{name}_sines", pair[1], persistent=False)

    def run(
        self, tokens: Tensor, positions: Tensor, attend: Attend, wanted: Tensor | None = None
    ) -> Tensor:
        """Compute the last hidden states with attention of the caller's choice.

        Args:
            tokens: int64 [...], any shape: [B, T], or [N] tokens of many requests side by side.
            positions: int64 of the same shape, or one that broadcasts to it; below
                `architecture.max_positions`.
            attend: attention; its queries and keys are normed and turned already.
            wanted: int64 [N] rows of the first axis to return; the last layer then computes no
                more than keys and values of the others.

        Returns:
            Hidden states after the last norm, [..., C] or [N, ..., C].
        """
        hidden, rotations = self.enter(tokens, positions)
        for layer, rotation in zip(self.layers[:-1], rotations[:-1], strict=True):
            hidden = layer(hidden, rotation, attend)
        return self.norm(self.layers[-1](hidden, rotations[-1], attend, wanted))

    def enter(
        self, tokens: Tensor, positions: Tensor, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor] | None]]:
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
        return hidden, self._rotations(positions, hidden.dtype)

    def _rotations(
        self, positions: Tensor, dtype: torch.dtype
    ) -> list[tuple[Tensor, Tensor] | None]:
        """Return the rotation of each layer, None where queries and keys are not turned."""
        arch = self.architecture
        count = arch.num_layers
        if arch.position != "rope":
            return [None] * count
        far = spread(self.rotary_cosines[positions], self.rotary_sines[positions], dtype)
        near = far
        if self.local_cosines is not None and self.local_sines is not None:
            near = spread(self.local_cosines[positions], self.local_sines[positions], dtype)
        kinds = [near if arch.window_of(layer) else far for layer in range(count)]
        return [kind if arch.is_turned(layer) else None for layer, kind in enumerate(kinds)]

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attend causally as the architecture wants it: an `Attend` over whole sequences.

        Args:
            layer: its index.
            queries: [B, T, H, D].
            keys: [B, T, KV, D].
            values: [B, T, KV, D].

        Returns:
            [B, T, H, D].
        """
        arch = self.architecture
        window, softcap = arch.window_of(layer), arch.attention_softcap
        return causal_attention(layer, queries, keys, values, window=window, softcap=softcap)

    def head(self, hidden: Tensor) -> Tensor:
        """Return logits [..., V] of hidden states [..., C]."""
        return self.finish(
            F.linear(hidden, self.embedding.weight if self.output is None else self.output.weight)
        )

    def finish(self, logits: Tensor) -> Tensor:
        """Return products [..., V] of hidden states and the head as logits: divided and capped."""
        divisor, softcap = self.architecture.logit_divisor, self.architecture.logit_softcap
        logits = logits if divisor == 1.0 else logits / divisor
        return softcap * torch.tanh(logits / softcap) if softcap else logits

    def forward(self, tokens: Tensor) -> Tensor:
        """Return next-token logits with plain causal attention.

        Args:
            tokens: int64 [B, T]; T at most `architecture.max_positions`.

        Returns:
            Logits [B, T, V].

        Raises:
            ConfigError: the sequence is longer than the positions the model knows.
        """
        length, limit = tokens.shape[-1], self.architecture.max_positions
        if length > limit:
            message = (
                f"a sequence of {length} tokens is longer than max_positions = {limit} of "
                f"{self.architecture.name}"
            )
            raise ConfigError(
                message, hint="cut the sequence, or build with a larger max_positions"
            )
        positions = torch.arange(length, device=tokens.device)
        return self.head(self.run(tokens, positions, self.attend))


def refuse_unsupported(arch: Architecture) -> None:
    """Refuse what this decoder does not have.

    Args:
        arch: architecture to check.

    Raises:
        ConfigError: names every such trait.
    """
    wrong = unsupported_traits(arch)
    if wrong:
        hint = (
            "it builds dense decoders with rotary or learned positions and a swiglu, geglu, gelu "
            "or relu MLP"
        )
        raise ConfigError(f"nn.transformer cannot build {arch.name}: {', '.join(wrong)}", hint=hint)


def _table(rows: int, width: int) -> nn.Embedding:
    """Make an embedding table that is not yet filled."""
    # A table with a weight of its own draws nothing when it is made.
    return nn.Embedding(rows, width, _weight=torch.empty(rows, width))


@torch.no_grad()
def _initialize(model: Transformer, generator: torch.Generator) -> None:
    """Fill all parameters, in the order in which the model lists them."""
    spread = math.sqrt(2 / (5 * model.architecture.hidden_size))
    residual_spread = spread / math.sqrt(2 * model.architecture.num_layers)
    gain = 0.0 if model.architecture.unit_offset_norm else 1.0
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            parameter.fill_(gain if "norm" in name and name.endswith("weight") else 0.0)
        else:
            # One generator and one order of draws: the seed then fixes every weight.
            is_residual = name.endswith(("out.weight", "down.weight"))
            parameter.normal_(0.0, residual_spread if is_residual else spread, generator=generator)

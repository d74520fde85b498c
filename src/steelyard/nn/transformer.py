"""One decoder-only transformer, built from the same architecture record that the catalog holds."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steelyard.catalog.architecture import Architecture
from steelyard.errors import ConfigError
from steelyard.nn.layer import Attend, DecoderLayer, causal_attention, linear, make_norm
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
    Biases are 0 and gains 1. Draws are made on the CPU in float32, so a seed gives the same weights
    on every device.

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
    """

    rotary_cosines: Tensor
    rotary_sines: Tensor

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
        cosines, sines = rotary_tables(
            0 if learned else arch.max_positions, arch.head_dim, arch.rope_theta, scaling
        )
        # Not stored with the weights: they follow from the architecture.
        self.register_buffer("rotary_cosines", cosines, persistent=False)
        self.register_buffer("rotary_sines", sines, persistent=False)

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
        hidden = self.embedding(tokens)
        rotation = None
        if self.position_embedding is not None:
            hidden = hidden + self.position_embedding(positions + self.architecture.position_offset)
        else:
            rotation = spread(
                self.rotary_cosines[positions], self.rotary_sines[positions], hidden.dtype
            )
        for layer in self.layers[:-1]:
            hidden = layer(hidden, rotation, attend)
        return self.norm(self.layers[-1](hidden, rotation, attend, wanted))

    def head(self, hidden: Tensor) -> Tensor:
        """Return logits [..., V] of hidden states [..., C]."""
        return F.linear(
            hidden, self.embedding.weight if self.output is None else self.output.weight
        )

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
        return self.head(self.run(tokens, positions, causal_attention))


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
            "it builds dense decoders with rotary or learned positions and a swiglu, gelu or "
            "relu MLP"
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
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
        else:
            # One generator and one order of draws: the seed then fixes every weight.
            is_residual = name.endswith(("out.weight", "down.weight"))
            parameter.normal_(0.0, residual_spread if is_residual else spread, generator=generator)

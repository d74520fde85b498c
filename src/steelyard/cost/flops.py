"""Count parameters that multiply, and the FLOPs of a token, in stated conventions."""

from typing import Literal, NamedTuple

from steelyard.catalog.architecture import Architecture
from steelyard.errors import ConfigError

__all__ = [
    "AttentionConvention",
    "MatrixParameters",
    "active_matrix_parameters",
    "attention_flops",
    "forward_flops",
    "matrix_parameters",
    "model_flops_per_token",
]

AttentionConvention = Literal["full", "causal", "paper"]
"""How attention is counted: every pair, the causal half, or a quarter (arXiv 2405.08944's times
match that one)."""

_SHARE = {"full": 1.0, "causal": 0.5, "paper": 0.25}


class MatrixParameters(NamedTuple):
    """Parameters by the matrix they stand in, per layer where it says so.

    Attributes:
        attention: query, key, value and output projections of one layer.
        mlp: one dense MLP.
        expert: one routed or shared expert, 0 for a dense model.
        router: one router, 0 for a dense model.
        head: output head, 0 for an encoder.
    """

    attention: int
    mlp: int
    expert: int
    router: int
    head: int


def matrix_parameters(arch: Architecture) -> MatrixParameters:
    """Count the parameters of each matrix; biases, norms and embedding tables are left out, for they do not multiply."""
    matrices = 3 if arch.mlp in ("swiglu", "geglu") else 2
    return MatrixParameters(
        attention=_attention_parameters(arch),
        mlp=matrices * arch.hidden_size * arch.intermediate_size,
        expert=matrices * arch.hidden_size * arch.moe_intermediate_size if arch.num_experts else 0,
        router=arch.hidden_size * arch.num_experts,
        head=0 if arch.kind == "encoder" else arch.hidden_size * arch.vocab_size,
    )


def _attention_parameters(arch: Architecture) -> int:
    """Count the projections of one attention, multi-head latent ones included."""
    hidden, heads = arch.hidden_size, arch.num_heads
    if not arch.kv_lora_rank:
        return hidden * arch.head_dim * (2 * heads + 2 * arch.num_kv_heads)
    query_width, value_dim = heads * arch.head_dim, arch.v_head_dim or arch.head_dim
    plain_dim = arch.head_dim - arch.qk_rope_head_dim
    queries = (
        arch.q_lora_rank * (hidden + query_width) if arch.q_lora_rank else hidden * query_width
    )
    latent = hidden * (arch.kv_lora_rank + arch.qk_rope_head_dim) + arch.kv_lora_rank * heads * (
        plain_dim + value_dim
    )
    return queries + latent + heads * value_dim * hidden


def active_matrix_parameters(arch: Architecture) -> int:
    """Count matrix parameters that one token meets: all layers, the experts it visits, and the head."""
    count = matrix_parameters(arch)
    dense = arch.num_dense_layers if arch.num_experts else arch.num_layers
    sparse = arch.num_layers - dense
    visited = count.router + count.expert * (arch.experts_per_token + arch.num_shared_experts)
    stack = arch.num_layers * count.attention + dense * count.mlp + sparse * visited
    if arch.kind == "encoder-decoder":
        stack = 2 * stack + arch.num_layers * count.attention
    return stack + count.head


def attention_flops(
    arch: Architecture, tokens: float, *, convention: AttentionConvention = "full"
) -> float:
    """Count the FLOPs of scores and weighted values of one sequence in one forward pass.

    Args:
        arch: the architecture; an encoder-decoder has two stacks and cross-attention on equally
            long sides.
        tokens: length of the sequence.
        convention: "full" counts 4 L d n^2, "causal" half of it, "paper" a quarter.

    Returns:
        FLOPs, a multiply-add counting two.

    Raises:
        ConfigError: the convention is unknown.
    """
    if convention not in _SHARE:
        raise ConfigError(f"attention convention {convention!r} is not one of {', '.join(_SHARE)}")
    value_dim = (arch.v_head_dim or arch.head_dim) if arch.kv_lora_rank else arch.head_dim
    layers = arch.num_layers * (3 if arch.kind == "encoder-decoder" else 1)
    return (
        _SHARE[convention] * 2.0 * layers * arch.num_heads * (arch.head_dim + value_dim) * tokens**2
    )


def forward_flops(
    arch: Architecture, tokens: float, *, convention: AttentionConvention = "full"
) -> float:
    """Count the FLOPs of one forward pass over one sequence: 2 per matrix parameter and token, plus attention.

    Source: Kaplan et al. 2020, table 1; GPT-3 at 2,048 tokens gives 740,000 GFLOPs (Gholami et al.
    2024).
    """
    return 2.0 * active_matrix_parameters(arch) * tokens + attention_flops(
        arch, tokens, convention=convention
    )


def model_flops_per_token(
    arch: Architecture, sequence_length: int, *, convention: AttentionConvention = "full"
) -> float:
    """Count the model FLOPs of training on one token, the numerator of MFU.

    Six per matrix parameter (two forward, four backward) plus three forward attentions;
    recomputation is not counted.

    Args:
        arch: the architecture; of an MoE model only visited experts count.
        sequence_length: tokens attended, at least 1.
        convention: how attention is counted; "full" is the usual MFU.

    Returns:
        FLOPs per token.

    Source: Chowdhery et al. 2022 (PaLM), appendix B.
    """
    return 3.0 * forward_flops(arch, sequence_length, convention=convention) / sequence_length

"""Count parameters that multiply, and the FLOPs of a token, in stated conventions."""

from typing import Literal

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.parameters import attention_matrices, router_matrices
from steelyard.cost.windows import attended_pairs
from steelyard.errors import ConfigError

__all__ = [
    "AttentionConvention",
    "active_matrix_parameters",
    "attention_flops",
    "forward_flops",
    "model_flops_per_token",
]

AttentionConvention = Literal["full", "causal", "paper"]
"""How attention is counted: every pair, the causal half, or a quarter (arXiv 2405.08944's times
match that one)."""

_SHARE = {"full": 1.0, "causal": 0.5, "paper": 0.25}


def active_matrix_parameters(arch: Architecture) -> int:
    """Count the matrix parameters one token meets: layers, experts it visits, and the head.

    Biases, norms and embedding tables are left out, because they do not multiply.

    Args:
        arch: architecture of any kind.

    Returns:
        Exact count.
    """
    matrix = (3 if arch.is_gated else 2) * arch.hidden_size
    dense = arch.num_layers - arch.num_expert_layers
    visited = arch.experts_per_token + arch.num_shared_experts
    sparse = router_matrices(arch) + matrix * arch.moe_intermediate_size * visited
    attention = arch.num_layers * attention_matrices(arch)
    stack = attention + dense * matrix * arch.intermediate_size + (arch.num_layers - dense) * sparse
    if arch.kind == "encoder-decoder":
        # Both stacks, and one cross-attention per layer of the decoder.
        stack = 2 * stack + attention
    return stack + (0 if arch.kind == "encoder" else arch.hidden_size * arch.vocab_size)


def attention_flops(
    arch: Architecture,
    tokens: float,
    *,
    convention: AttentionConvention = "full",
    windows: bool = False,
) -> float:
    """Count the FLOPs of scores and weighted values of one sequence in one forward pass.

    Args:
        arch: architecture that is run; an encoder-decoder has two stacks and cross-attention on
            equally long sides.
        tokens: length of the sequence.
        convention: "full" counts 4 L d n^2, "causal" half of it, "paper" a quarter.
        windows: whether the share of pairs that sliding windows skip is taken off; without it the
            count is an upper bound beyond a window.

    Returns:
        FLOPs, a multiply-add counting two.

    Raises:
        ConfigError: the convention is unknown.
    """
    if convention not in _SHARE:
        raise ConfigError(f"attention convention {convention!r} is not one of {', '.join(_SHARE)}")
    layers = arch.num_layers * (3 if arch.kind == "encoder-decoder" else 1)
    width = arch.num_heads * (arch.head_dim + arch.value_dim)
    whole = _SHARE[convention] * 2.0 * layers * width * tokens**2
    if not windows:
        return whole
    return whole * float(attended_pairs(arch, tokens, tokens)) / (tokens * (tokens + 1) / 2)


def forward_flops(
    arch: Architecture,
    tokens: float,
    *,
    convention: AttentionConvention = "full",
    windows: bool = False,
) -> float:
    """Count the FLOPs of one forward pass over one sequence.

    A matrix parameter costs 2 per token; attention is added.

    Args:
        arch: architecture that is run.
        tokens: length of the sequence.
        convention: how attention is counted, as in `attention_flops`.
        windows: whether what sliding windows skip is taken off.

    Returns:
        FLOPs, a multiply-add counting two.

    Source: Kaplan et al. 2020, table 1; GPT-3 at 2,048 tokens takes 740,000 GFLOPs (Gholami et al.
    2024).
    """
    return 2.0 * active_matrix_parameters(arch) * tokens + attention_flops(
        arch, tokens, convention=convention, windows=windows
    )


def model_flops_per_token(
    arch: Architecture,
    sequence_length: int,
    *,
    convention: AttentionConvention = "full",
    windows: bool = False,
) -> float:
    """Count the model FLOPs of training on one token, the numerator of MFU.

    Six per matrix parameter (two forward, four backward) plus three forward attentions;
    recomputation is not counted.

    Args:
        arch: architecture that is trained; of an MoE model only visited experts count.
        sequence_length: tokens attended, at least 1.
        convention: how attention is counted; "full" is the usual MFU.
        windows: whether what sliding windows skip is taken off.

    Returns:
        FLOPs per token.

    Source: Chowdhery et al. 2022 (PaLM), appendix B.
    """
    once = forward_flops(arch, sequence_length, convention=convention, windows=windows)
    return 3.0 * once / sequence_length

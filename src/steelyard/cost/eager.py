"""Peak memory of the trainer on eager PyTorch: what autograd really saves, tensor by tensor."""

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from steelyard.catalog.architecture import Architecture
from steelyard.cost.held import parameter_count
from steelyard.cost.memory import MemoryBreakdown, plain_floats

__all__ = ["eager_training_memory", "matrix_elements", "saved_bytes_per_token"]

_FULL, _HALF = 4.0, 2.0
"""Bytes of a float32 and of a bfloat16."""
TURNED_LOGITS = 1 << 19
"""Logits that `nn.parts.token_loss` turns at once on a CPU; fewer are not turned."""


def matrix_elements(arch: Architecture) -> float:
    """Count the elements of all matrices that tokens are multiplied with, the head's included.

    Args:
        arch: dense decoder; a tied head counts, as it is multiplied with like any other.

    Returns:
        Elements of all layers and the head.
    """
    query, key = arch.num_heads * arch.head_dim, arch.num_kv_heads * arch.head_dim
    attention = arch.hidden_size * (2 * query + 2 * key)
    mlp = (3 if arch.is_gated else 2) * arch.hidden_size * arch.intermediate_size
    return float(arch.num_layers * (attention + mlp) + arch.vocab_size * arch.hidden_size)


def saved_bytes_per_token(
    arch: Architecture, dtype: Literal["fp32", "bf16"] = "fp32"
) -> tuple[float, float]:
    """Count the bytes that autograd keeps per token in one layer, and outside the layers.

    These are norm inputs (RMSNorm keeps its normalized value as well) and the projections' inputs;
    the fused query-key-value projection, which the values keep whole; normalized and rotated copies
    of queries and keys; attention output and statistics; and every input of the MLP's elementwise
    steps. A tensor that several operators use is kept once. Under bfloat16 autocast the residual
    stream and the norms stay in float32, and what projections and attention take is a copy in
    bfloat16.

    Args:
        arch: architecture that is trained.
        dtype: "fp32", or "bf16" for autocast over float32 weights.

    Returns:
        Bytes per token and layer, and bytes per token of the last norm and the head's input.
    """
    hidden = arch.hidden_size
    query, key = arch.num_heads * arch.head_dim, arch.num_kv_heads * arch.head_dim
    narrow = _FULL if dtype == "fp32" else _HALF
    # RMSNorm keeps its input and its normalized value, LayerNorm its input alone.
    norm = (2 if arch.norm == "rmsnorm" else 1) * _FULL * hidden + narrow * hidden
    copies = narrow * (query + key) * (arch.position == "rope")
    # Norms of heads run in float32: a narrow input is kept once more in its widened form.
    copies += _FULL * (query + key) * arch.qk_norm * (1 if dtype == "fp32" else 2)
    attention = narrow * (query + 2 * key + query) + _FULL * arch.num_heads + copies
    mlp = narrow * (4 if arch.is_gated else 2) * arch.intermediate_size
    return 2 * norm + attention + mlp, norm


def eager_training_memory(
    arch: Architecture,
    *,
    batch: ArrayLike,
    sequence_length: int,
    accumulation: ArrayLike = 1,
    dtype: Literal["fp32", "bf16"] = "fp32",
) -> MemoryBreakdown:
    """Forecast the peak memory of this package's trainer with fp32 weights and AdamW.

    What the process held before is left out. The peak is the larger of two moments: the start of
    the backward pass, when all activations live with what surrounds the logits; and its end, when
    all gradients live with those of the token table. In between, memory changes by a layer's
    gradients less its activations, so it is largest at either end.

    Args:
        arch: dense decoder with a language-model head.
        batch: sequences in a micro-batch.
        sequence_length: tokens per sequence.
        accumulation: micro-batches per step; above 1 the gradients live through the forward pass as
            well.
        dtype: "fp32", or "bf16" for autocast over float32 weights, whose cast copies live from
            their use to the backward pass.

    Returns:
        Bytes; `total` is the peak, `workspace` what lives around logits or token table.
    """
    tokens = np.asarray(batch, dtype=float) * sequence_length
    per_layer, outside = saved_bytes_per_token(arch, dtype)
    casts = 0.0 if dtype == "fp32" else _HALF * matrix_elements(arch)
    weights = _FULL * sum(parameter_count(arch))
    activations = tokens * (arch.num_layers * per_layer + outside) + casts
    accumulates = np.asarray(accumulation) > 1
    around_logits, around_table = _workspace(arch, tokens, dtype, accumulates)
    held = np.where(accumulates, weights, 0.0)
    start = 3 * weights + held + activations + around_logits
    end = 4 * weights + around_table
    return MemoryBreakdown(
        **plain_floats(
            weights=weights,
            gradients=weights,
            optimizer=2 * weights,
            activations=activations,
            workspace=np.maximum(around_logits, around_table),
            total=np.maximum(start, end),
        )
    )


def _workspace(arch: Architecture, tokens: Any, dtype: str, accumulates: Any) -> tuple[Any, Any]:
    """Return the bytes around the logits at the backward pass's start, and the table's at its end.

    Logits become the errors of their shares where they stand, and live until the head's gradient is
    made. Few, divided or capped logits take a log-softmax in float32 instead, whose result lives
    with the gradients of both.
    """
    logits = tokens * arch.vocab_size
    table = float(arch.vocab_size * arch.hidden_size)
    can_turn = arch.logit_divisor == 1.0 and not arch.logit_softcap
    turns = can_turn & (logits > TURNED_LOGITS)
    if dtype == "fp32":
        head = _FULL * logits + _FULL * table
    else:
        # The gradient of the head is made in bfloat16 and widened; errors are gone by then.
        whole = _HALF * logits + (_HALF + _FULL) * table
        head = np.where(
            turns, np.maximum(_HALF * logits + _HALF * table, (_HALF + _FULL) * table), whole
        )
    # A tied table gets two gradients and, where neither may be written to, their sum; where logits
    # are turned the head takes the table's rows into its own.
    tied = (2 if dtype == "fp32" else 1) * _FULL * table * arch.tied_embeddings
    # What is added to an earlier micro-batch's gradient is made beside it.
    added = np.where(accumulates, _FULL * table, 0.0)
    # While logits are turned a piece of them is there in float32, and two where they are narrow.
    piece = _FULL * np.minimum(logits, TURNED_LOGITS)
    turned = _FULL * logits + piece if dtype == "fp32" else _HALF * logits + 2 * piece
    softmax = np.where(turns, turned, 3 * _FULL * logits)
    return np.maximum(softmax, head), np.where(turns, 0.0, tied) + added

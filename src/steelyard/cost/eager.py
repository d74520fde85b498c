"""Peak memory of a plain eager PyTorch trainer in fp32: what autograd really saves."""

from steelyard.catalog.architecture import Architecture
from steelyard.cost.memory import MemoryBreakdown, parameter_count

__all__ = ["eager_training_memory", "saved_elements_per_token"]


def saved_elements_per_token(arch: Architecture) -> float:
    """Count the fp32 elements that autograd keeps per token and layer.

    These are norm inputs (RMSNorm keeps its normalized value as well) and the projections' inputs;
    the fused query-key-value projection, which the values keep whole; normalized and rotated copies
    of queries and keys; attention output and statistics; and every input of the MLP's elementwise
    steps. A tensor that several operators use is kept once.

    Args:
        arch: architecture that is trained.

    Returns:
        Elements per token and layer.
    """
    hidden = arch.hidden_size
    query = arch.num_heads * arch.head_dim
    key = arch.num_kv_heads * arch.head_dim
    norms = 2 * (2 * hidden + (hidden if arch.norm == "rmsnorm" else 0))
    copies = (query + key) * ((arch.position == "rope") + arch.qk_norm)
    attention = query + 2 * key + query + arch.num_heads + copies
    mlp = (4 if arch.is_gated else 2) * arch.intermediate_size
    return float(norms + attention + mlp)


def eager_training_memory(
    arch: Architecture,
    *,
    batch: int,
    sequence_length: int,
    accumulation: int = 1,
) -> MemoryBreakdown:
    """Forecast the peak memory of a plain fp32 trainer with AdamW.

    What the process held before is left out. The peak is the larger of two moments: the start of
    the backward pass, when all activations, the log-softmax of the logits and the gradients of both
    live; and the fused optimizer's, when all gradients live.

    Args:
        arch: decoder with a language-model head.
        batch: sequences in a micro-batch.
        sequence_length: tokens per sequence.
        accumulation: micro-batches per step; above 1 the gradients live through the forward pass as
            well.

    Returns:
        Bytes; `total` is the peak, `workspace` what lives around the logits.
    """
    tokens = batch * sequence_length
    outside = arch.hidden_size * (3 if arch.norm == "rmsnorm" else 2)
    weights = 4.0 * sum(parameter_count(arch))
    activations = 4.0 * tokens * (arch.num_layers * saved_elements_per_token(arch) + outside)
    # Logits, their log-softmax and the gradient of one of them live at once.
    workspace = 3 * 4.0 * tokens * arch.vocab_size
    backward = 3 * weights + (weights if accumulation > 1 else 0.0) + activations + workspace
    return MemoryBreakdown(
        weights=weights,
        gradients=weights,
        optimizer=2 * weights,
        activations=activations,
        workspace=workspace,
        total=max(backward, 4 * weights),
    )

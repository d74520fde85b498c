"""Exact parameter counts of a transformer: all, without embeddings, and active per token."""

from dataclasses import dataclass
from functools import lru_cache

from steelyard.catalog.architecture import Architecture

__all__ = [
    "RELATIVE_BUCKETS",
    "ROUTER_DIM",
    "ParameterCount",
    "attention_matrices",
    "count_parameters",
]

RELATIVE_BUCKETS = 32
"""Rows of T5's relative position bias, one column per head, one table per stack. Source: Raffel et
al., arXiv:1910.10683, section 2.1."""

ROUTER_DIM = 16
"""Dimensions in which a cosine router compares tokens and experts. Source: Ma et al.,
arXiv:2211.13184, its code; half the number of experts in Chi et al., arXiv:2204.09179."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterCount:
    """How many parameters a model has, by the part they stand in.

    Attributes:
        total: sum of `non_embedding`, `embedding` and `head`.
        non_embedding: all layers, the norms outside them, relative position biases and the pooler.
        embedding: token, learned position and token-type tables.
        head: output matrix; 0 when it is the token table again, or when there is none (encoders).
        active: parameters one token visits; equal to `total` in a dense model.
        active_non_embedding: parameters one token visits, without embedding and head.
    """

    total: int
    non_embedding: int
    embedding: int
    head: int
    active: int
    active_non_embedding: int


@lru_cache(maxsize=256)
def count_parameters(arch: Architecture) -> ParameterCount:
    """Count the parameters of an architecture exactly as its reference implementation holds them.

    A tied head is counted once, in `embedding`. Encoders (BERT) count the bare model: embeddings,
    their norm, layers and pooler. Rotary tables are no parameters; the balancing bias of a
    DeepSeek-V3 router is one, as in its checkpoint.

    Args:
        arch: architecture of any kind.

    Returns:
        Exact integers.

    Example:
        >>> from steelyard.catalog import architecture_by_name
        >>> count_parameters(architecture_by_name("gpt2")).total
        124439808

    Source: shapes of the reference implementations; checked against published counts in
    tests/golden/architecture_parameters.csv.
    """
    stored, active = (
        _outside_layers(arch)
        + sum(count * _layer(arch, *kind) for count, kind in _stacks(arch, experts))
        for experts in (arch.num_experts, arch.experts_per_token)
    )
    embedding = _embedding(arch)
    head = _head(arch)
    return ParameterCount(
        total=stored + embedding + head,
        non_embedding=stored,
        embedding=embedding,
        head=head,
        active=active + embedding + head,
        active_non_embedding=active,
    )


def _stacks(arch: Architecture, experts: int) -> list[tuple[int, tuple[int | None, bool]]]:
    """List the runs of equal layers.

    Each is a number of layers, the routed experts that count (None for a dense MLP), and whether
    they have cross-attention.
    """
    if arch.kind == "encoder-decoder":
        return [(arch.num_layers, (None, False)), (arch.num_layers, (None, True))]
    sparse = arch.num_expert_layers
    return [(arch.num_layers - sparse, (None, False)), (sparse, (experts, False))]


def _embedding(arch: Architecture) -> int:
    """Count the tables a token is looked up in."""
    rows = arch.vocab_size + arch.num_token_types
    if arch.position == "learned":
        rows += arch.max_positions + arch.position_offset
    return rows * arch.hidden_size


def _head(arch: Architecture) -> int:
    """Count an output matrix of its own."""
    if arch.tied_embeddings or arch.kind == "encoder":
        return 0
    return arch.vocab_size * arch.hidden_size


def _outside_layers(arch: Architecture) -> int:
    """Count the norms before and after each stack, relative biases and pooler."""
    stacks = 2 if arch.kind == "encoder-decoder" else 1
    norms = (not arch.norms_sums) + arch.embedding_norm
    relative = RELATIVE_BUCKETS * arch.num_heads if arch.position == "relative" else 0
    pooler = arch.hidden_size * (arch.hidden_size + 1) if arch.pooler else 0
    return stacks * (norms * _norm(arch, arch.hidden_size) + relative) + pooler


def _norm(arch: Architecture, width: int) -> int:
    """Count one norm: a gain, and a shift when it is a LayerNorm."""
    return width * (2 if arch.norm == "layernorm" else 1)


def _layer(arch: Architecture, experts: int | None, cross: bool) -> int:
    """Count one layer with its norms and `experts` routed experts, None for a dense MLP."""
    norms = (2 if arch.sandwich_norm else 1) * (3 if cross else 2)
    attention = _attention(arch) * (2 if cross else 1)
    if experts is None:
        inner, feed_forward = arch.intermediate_size, _mlp(arch, arch.intermediate_size)
    else:
        inner, feed_forward = arch.moe_intermediate_size, _moe(arch, experts)
    feed_forward += _norm(arch, inner) * arch.subln
    layer = attention + feed_forward + norms * _norm(arch, arch.hidden_size)
    return layer * (2 if arch.multiway else 1)


def attention_matrices(arch: Architecture) -> int:
    """Count the projections of one attention, multi-head latent ones included.

    Args:
        arch: architecture of any kind.

    Returns:
        Parameters of the matrices, without biases and norms.

    Source: DeepSeek-V2, arXiv:2405.04434, section 2.1 and appendix C (latent attention).
    """
    hidden = arch.hidden_size
    heads = arch.num_heads
    width = heads * arch.head_dim
    if not arch.kv_lora_rank:
        # Retention gates its result by one more projection of its input.
        wide = 3 if arch.mixer == "retention" else 2
        return hidden * (wide * width + 2 * arch.num_kv_heads * arch.head_dim)
    queries = arch.q_lora_rank * (hidden + width) if arch.q_lora_rank else hidden * width
    down = hidden * (arch.kv_lora_rank + arch.qk_rope_head_dim)
    up = arch.kv_lora_rank * heads * (arch.head_dim - arch.qk_rope_head_dim + arch.value_dim)
    return queries + down + up + heads * arch.value_dim * hidden


def _attention(arch: Architecture) -> int:
    """Count one attention block: projections, their biases and norms."""
    if arch.kv_lora_rank:
        # The latent query and the latent key each pass a norm: one gain per dimension.
        return attention_matrices(arch) + arch.q_lora_rank + arch.kv_lora_rank
    width = (arch.num_heads + 2 * arch.num_kv_heads) * arch.head_dim
    normed = arch.num_heads + arch.num_kv_heads if arch.qk_norm_across_heads else 2
    inner = width * arch.qkv_bias + normed * arch.head_dim * arch.qk_norm
    inner += _norm(arch, arch.num_heads * arch.head_dim) * arch.subln
    return attention_matrices(arch) + inner + arch.hidden_size * arch.output_bias


def _mlp(arch: Architecture, width: int) -> int:
    """Count one MLP of the given inner width."""
    inner = 2 if arch.is_gated else 1
    biases = inner * width + arch.hidden_size if arch.mlp_bias else 0
    return (inner + 1) * arch.hidden_size * width + biases


def _moe(arch: Architecture, experts: int) -> int:
    """Count the router over all experts, `experts` routed ones and the shared ones."""
    shared = arch.num_shared_experts
    gate = arch.hidden_size * arch.shared_expert_gate
    return _router(arch) + gate + (experts + shared) * _mlp(arch, arch.moe_intermediate_size)


def _router(arch: Architecture) -> int:
    """Count what decides where tokens go: matrices, a temperature, an offset, balancing biases."""
    single = arch.router in ("cosine", "reinforce")
    return router_matrices(arch) + single + arch.num_experts * arch.router_bias


def router_matrices(arch: Architecture) -> int:
    """Count the matrix parameters of one router.

    Args:
        arch: architecture with a mixture of experts.

    Returns:
        Hidden size times experts; nothing for hash routers, more with a policy's baseline, and for
        cosines the projection to few dimensions with a direction per expert there.
    """
    if arch.router == "hash":
        return 0
    if arch.router == "cosine":
        return ROUTER_DIM * (arch.hidden_size + arch.num_experts)
    return arch.hidden_size * (arch.num_experts + (arch.router == "reinforce"))

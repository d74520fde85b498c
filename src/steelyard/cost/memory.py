"""What training and serving keep in memory, per accelerator, vectorized over layouts."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.catalog.architecture import Architecture
from steelyard.cost.held import parameter_count, stage_parameters
from steelyard.cost.layout import STATE_STAGES, Layout, State

__all__ = [
    "MIXED",
    "PURE_FP32",
    "MemoryBreakdown",
    "Precision",
    "activation_bytes_per_layer",
    "kv_bytes_per_token",
    "plain_floats",
    "serving_memory",
    "training_memory",
]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Precision:
    """Bytes per parameter and activation element of a training recipe.

    Attributes:
        weights: bytes of a weight that computes.
        gradients: bytes of a gradient as it is kept.
        optimizer: bytes of optimizer states per parameter, fp32 master weights included.
        activations: bytes of one activation element.
    """

    weights: float = 2.0
    gradients: float = 4.0
    optimizer: float = 12.0
    activations: float = 2.0


MIXED = Precision()
"""16-bit compute, fp32 gradients, fp32 master weights and two AdamW moments: 18 bytes per
parameter."""
PURE_FP32 = Precision(weights=4.0, gradients=4.0, optimizer=8.0, activations=4.0)
"""Everything fp32 with AdamW: 16 bytes per parameter."""


_EAGER_NORM_BYTES = 4.0
"""Bytes per element that an eager norm saves beside input and output: its input as fp32 in place of
16 bit, and the normalized values before the scale."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryBreakdown:
    """Bytes on the fullest accelerator; numbers, or arrays over layouts.

    Attributes:
        weights: bytes of the weights.
        gradients: bytes of the gradients.
        optimizer: bytes of the optimizer states.
        activations: bytes saved for the backward pass, or used by the running step when serving.
        kv_cache: bytes of the keys and values kept.
        workspace: bytes of logits and temporaries at the largest moment.
        packed: bytes of the copy of the weights that kernels read, beside the weights.
        process: bytes of the process itself: interpreter, libraries, free blocks that are kept.
        total: most bytes held at one moment; at most the sum of the parts.
    """

    weights: Any
    gradients: Any
    optimizer: Any
    activations: Any
    kv_cache: Any = 0.0
    workspace: Any
    packed: Any = 0.0
    process: Any = 0.0
    total: Any

    def at(self, index: int) -> "MemoryBreakdown":
        """Return the bytes of one of several layouts.

        Args:
            index: place of the layout in the arrays [layouts].

        Returns:
            Plain numbers.
        """
        parts = {item.name: getattr(self, item.name) for item in fields(self)}
        return MemoryBreakdown(
            **{
                name: float(value[index] if np.ndim(value) else value)
                for name, value in parts.items()
            }
        )


def kv_bytes_per_token(arch: Architecture, dtype_bytes: float = 2.0) -> float:
    """Return the bytes of keys and values that one token leaves in all layers.

    Latent attention keeps its latent and rotary part. Layers with a sliding window count as the
    others: the engine here keeps all tokens in its blocks, and one that drops those outside the
    window holds less. OPT-13B in fp16 keeps 2 x 40 layers x 5,120 x
    2 bytes = 819,200.

    Args:
        arch: architecture that is served.
        dtype_bytes: bytes of one cached element.

    Returns:
        Bytes per token over all layers.

    Source: Kwon et al. 2023 (PagedAttention), section 3; DeepSeek-V2 2024, section 2.1 for latent
    attention.
    """
    if arch.kv_lora_rank:
        return arch.num_layers * (arch.kv_lora_rank + arch.qk_rope_head_dim) * dtype_bytes
    return 2 * arch.num_layers * arch.num_kv_heads * arch.head_dim * dtype_bytes


def activation_bytes_per_layer(
    arch: Architecture,
    *,
    batch: ArrayLike,
    sequence_length: int,
    layout: Layout,
    element_bytes: float = 2.0,
    dropout: bool = False,
    flash_attention: bool = True,
    fused: bool = True,
) -> Array:
    """Count the bytes one layer saves for its backward pass on one accelerator.

    With dropout, unfused attention and 2-byte elements this is s b h (34 + 5 a s / h) for a GPT
    layer, the published formula.

    Args:
        arch: architecture that is trained; of a mixture of experts only the visited ones save.
        batch: sequences in a micro-batch.
        sequence_length: tokens per sequence.
        layout: tensor and sequence parallelism and recomputation.
        element_bytes: bytes of one activation element.
        dropout: whether the byte masks of two residual dropouts, and of the attention's with its
            output, are saved.
        flash_attention: whether no scores are saved, only one fp32 statistic per head and token.
        fused: whether norms are single kernels; eager ones save fp32 intermediate results.

    Returns:
        Bytes, broadcast over the layouts.

    Source: Korthikanti et al. 2022, equations 1 to 4 (arXiv 2205.05198).
    """
    axes = layout.arrays()
    tensor = axes["tensor"]
    recompute = axes["recompute"]
    split = np.where(axes["sequence_parallel"], tensor, 1)
    tokens = np.asarray(batch, dtype=float) * sequence_length / axes["context"]
    heads = arch.num_heads
    query = heads * arch.head_dim
    value = (heads if arch.kv_lora_rank else arch.num_kv_heads) * arch.head_dim
    shared = element_bytes * 4 * arch.hidden_size + (2.0 * arch.hidden_size if dropout else 0.0)
    shared += 0.0 if fused else 2 * _EAGER_NORM_BYTES * arch.hidden_size
    sharded = element_bytes * (query + 2 * value + heads * arch.head_dim + _mlp_elements(arch))
    per_score = 2 * element_bytes + 1 if dropout else element_bytes
    scores = heads * (4.0 if flash_attention else sequence_length * per_score)
    # Selective recomputation drops the scores, full recomputation all but the layer's input.
    kept = shared / split + sharded / tensor + np.where(recompute >= 1, 0.0, 1.0) * scores / tensor
    return tokens * np.where(recompute == 2, element_bytes * arch.hidden_size / split, kept)


def _mlp_elements(arch: Architecture) -> float:
    """Count the elements that an MLP saves per token.

    A gated one saves gate, up projection and their product, another one its inner input and output.
    """
    parts = 3 if arch.is_gated else 2
    if not arch.num_experts:
        return float(parts * arch.intermediate_size)
    visited = arch.experts_per_token + arch.num_shared_experts
    dense = (arch.num_layers - arch.num_expert_layers) / arch.num_layers
    return parts * (
        dense * arch.intermediate_size + (1 - dense) * visited * arch.moe_intermediate_size
    )


def _states(arch: Architecture, layout: Layout, precision: Precision) -> tuple[Array, Array, Array]:
    """Return bytes of weights, gradients and optimizer states of the fullest stage."""
    axes = layout.arrays()
    layers, tables = parameter_count(arch)
    # Of several stages the first holds the token table and the last the head: one table each.
    held = np.where(axes["pipeline"] == 1, tables, arch.vocab_size * arch.hidden_size)
    dense, routed = stage_parameters(arch, axes, tables=held)
    # A whole expert has fewer replicas than the layers around it.
    beside = np.where(axes["expert"] > 1, axes["tensor"] / axes["expert"], 1.0)
    shards = {state: np.asarray(layout.shards(state)) for state in STATE_STAGES}

    def local(state: State) -> Array:
        split = shards[state]
        return dense / split + routed / np.maximum(split * beside, 1.0)

    weights, gradients, optimizer = (
        local(state) * getattr(precision, state) for state in STATE_STAGES
    )
    # Two layers are whole at a time: the one that computes and the next one, already gathered.
    gathered = 2 * precision.weights * layers / arch.num_layers / axes["tensor"]
    copies = axes["weight_copy_shards"]
    each = np.where(axes["copy_wire_bits"] > 0, axes["copy_wire_bits"] / 8, precision.weights)
    second = np.where(copies > 0, (dense + routed) * each / np.maximum(copies, 1), 0.0)
    weights = weights + np.where(shards["weights"] > 1, gathered, 0.0) + second
    return weights, gradients, np.where(axes["offload_optimizer"], 0.0, optimizer)


def _in_flight(axes: dict[str, Any], accumulation: ArrayLike) -> Array:
    """Count the micro-batches whose activations the first stage holds at once."""
    stages, chunks = axes["pipeline"], axes["virtual_stages"]
    micro_batches = np.asarray(accumulation, dtype=float)
    # Interleaving fills the pipeline with p - 1 more chunks of a v-th of the layers each.
    held = np.where(chunks > 1, stages + (stages - 1) / chunks, stages)
    # All forward then all backward holds every micro-batch.
    return np.where(axes["schedule"] == 1, micro_batches, np.minimum(held, micro_batches))


def _logit_bytes(arch: Architecture, precision: Precision) -> float:
    """Return the bytes of one token's logits in the compute dtype and of their fp32 softmax."""
    return 0.0 if arch.kind == "encoder" else arch.vocab_size * (precision.activations + 4.0)


def training_memory(
    arch: Architecture,
    *,
    batch: ArrayLike,
    sequence_length: int,
    layout: Layout | None = None,
    accumulation: ArrayLike = 1,
    precision: Precision = MIXED,
    dropout: bool = False,
    flash_attention: bool = True,
    fused: bool = True,
) -> MemoryBreakdown:
    """Forecast the memory of the fullest accelerator in training.

    The first pipeline stage holds activations of as many micro-batches as there are stages
    (one-forward-one-backward; more with interleaving, all of them where every forward pass comes
    first); the last one holds the logits. The larger of the two counts.

    Args:
        arch: architecture that is trained.
        batch: sequences in a micro-batch.
        sequence_length: tokens per sequence.
        layout: parallelism and policies, one accelerator when not given; its fields may be arrays.
        accumulation: micro-batches per step and replica.
        precision: bytes per parameter and element.
        dropout: whether dropout masks are saved.
        flash_attention: whether attention runs without saving its scores.
        fused: whether norms are single kernels.

    Returns:
        Bytes per part; arrays when any argument is.

    Source: Korthikanti et al. 2022 (activations), Rajbhandari et al. 2020 (ZeRO stages).
    """
    chosen = layout or Layout()
    axes, moved = chosen.arrays(), np.asarray(chosen.offload_activations)
    weights, gradients, optimizer = _states(arch, chosen, precision)
    per_layer, rebuilt = (
        activation_bytes_per_layer(
            arch,
            batch=batch,
            sequence_length=sequence_length,
            layout=item,
            element_bytes=precision.activations,
            dropout=dropout,
            flash_attention=flash_attention,
            fused=fused,
        )
        for item in (chosen, replace(chosen, recompute="none"))
    )
    # An encoder layer, and one and a half for a decoder layer with its cross-attention.
    stacks = 2.5 if arch.kind == "encoder-decoder" else 1
    per_stage = per_layer * stacks * np.ceil(arch.num_layers / axes["pipeline"])
    # Activations that wait in host memory leave two layers here: one that computes and one that
    # moves.
    in_flight = np.where(moved, 1.0, _in_flight(axes, accumulation))
    per_stage = np.where(moved, np.minimum(2 * stacks * per_layer, per_stage), per_stage)
    tokens = np.asarray(batch, dtype=float) * sequence_length / axes["context"]
    logits = tokens * _logit_bytes(arch, precision) / axes["tensor"]
    last_is_fuller = per_stage + logits > per_stage * in_flight
    # Full recomputation rebuilds one layer at a time.
    rebuilt = np.where(axes["recompute"] == 2, rebuilt, 0.0)
    parts = {
        "weights": weights,
        "gradients": gradients,
        "optimizer": optimizer,
        "activations": per_stage * np.where(last_is_fuller, 1.0, in_flight),
        "workspace": np.where(last_is_fuller, logits, 0.0) + rebuilt,
    }
    return MemoryBreakdown(**plain_floats(**parts, total=sum(parts.values())))


def plain_floats(**parts: Any) -> dict[str, Any]:
    """Return the parts, as plain floats where they are no arrays over layouts."""
    return {name: float(value) if np.ndim(value) == 0 else value for name, value in parts.items()}


def serving_memory(
    arch: Architecture,
    *,
    tokens_resident: ArrayLike,
    step_tokens: ArrayLike = 1,
    dtype_bytes: float = 2.0,
    tensor_parallel: ArrayLike = 1,
) -> MemoryBreakdown:
    """Forecast the memory of serving: weights, cached keys and values, and the running step.

    Args:
        arch: architecture that is served.
        tokens_resident: tokens whose keys and values are kept.
        step_tokens: tokens processed in one step.
        dtype_bytes: bytes of one element of weights, cache and activations.
        tensor_parallel: accelerators the model is split over.

    Returns:
        Bytes per part on one accelerator.
    """
    tensor = np.asarray(tensor_parallel, dtype=float)
    weights = sum(parameter_count(arch)) * dtype_bytes / tensor
    # Beyond one key/value head per accelerator the cache is copied; a latent one always is.
    heads = 1 if arch.kv_lora_rank else arch.num_kv_heads
    cache = (
        np.asarray(tokens_resident, dtype=float)
        * kv_bytes_per_token(arch, dtype_bytes)
        / np.minimum(tensor, heads)
    )
    step = np.asarray(step_tokens, dtype=float)
    running = step * dtype_bytes * (4 * arch.hidden_size + 2 * _mlp_elements(arch) / tensor)
    logits = step * 4.0 * arch.vocab_size / tensor
    return MemoryBreakdown(
        **plain_floats(
            weights=weights,
            gradients=0.0,
            optimizer=0.0,
            activations=running,
            kv_cache=cache,
            workspace=logits,
            total=weights + cache + running + logits,
        )
    )

"""What training and serving keep in memory, per accelerator, vectorised over layouts."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.parameters import count_parameters
from steelyard.cost.layout import Layout
from steelyard.cost.operators import kv_bytes_per_token

__all__ = [
    "MIXED",
    "PURE_FP32",
    "MemoryBreakdown",
    "Precision",
    "activation_bytes_per_layer",
    "parameter_count",
    "serving_memory",
    "training_memory",
]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Precision:
    """Bytes per parameter and activation element of a training recipe.

    Attributes:
        weights: of the weights that compute.
        gradients: of the gradients as kept.
        optimizer: of optimizer states per parameter, fp32 master weights included.
        activations: of one activation element.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryBreakdown:
    """Bytes on the fullest accelerator; numbers, or arrays over layouts.

    Attributes:
        weights: of the weights.
        gradients: of the gradients.
        optimizer: of the optimizer states.
        activations: saved for the backward pass, or of the running step when serving.
        kv_cache: keys and values kept.
        workspace: logits and temporaries of the largest moment.
        total: most bytes held at one moment; at most the sum of the parts.
    """

    weights: Any
    gradients: Any
    optimizer: Any
    activations: Any
    kv_cache: Any = 0.0
    workspace: Any
    total: Any


def parameter_count(arch: Architecture) -> tuple[float, float]:
    """Count (parameters of the layers, parameters of embeddings and an untied head)."""
    count = count_parameters(arch)
    return float(count.non_embedding), float(count.embedding + count.head)


def activation_bytes_per_layer(
    arch: Architecture,
    *,
    batch: ArrayLike,
    sequence_length: int,
    layout: Layout,
    element_bytes: float = 2.0,
    dropout: bool = False,
    flash_attention: bool = True,
) -> Array:
    """Count the bytes one layer saves for its backward pass on one accelerator.

    With dropout, unfused attention and 2-byte elements this is s b h (34 + 5 a s / h) for a GPT
    layer, the published formula.

    Args:
        arch: the architecture; of a mixture of experts the visited ones save.
        batch: sequences in a micro-batch.
        sequence_length: tokens of each.
        layout: tensor and sequence parallelism and recomputation.
        element_bytes: of one activation element.
        dropout: byte masks of two residual dropouts, and of the attention's with its output, are
            saved.
        flash_attention: no scores are saved, only one fp32 statistic per head and token.

    Returns:
        Bytes, broadcast over the layouts.

    Source: Korthikanti et al. 2022, equations 1 to 4 (arXiv 2205.05198).
    """
    axes = layout.arrays()
    tensor, recompute, split = (
        axes["tensor"],
        axes["recompute"],
        np.where(axes["sequence_parallel"], axes["tensor"], 1),
    )
    tokens, heads = np.asarray(batch, dtype=float) * sequence_length, arch.num_heads
    query = heads * arch.head_dim
    value = (heads if arch.kv_lora_rank else arch.num_kv_heads) * arch.head_dim
    shared = element_bytes * 4 * arch.hidden_size + (2.0 * arch.hidden_size if dropout else 0.0)
    sharded = element_bytes * (query + 2 * value + heads * arch.head_dim + _mlp_elements(arch))
    scores = heads * (
        4.0
        if flash_attention
        else sequence_length * (2 * element_bytes + 1 if dropout else element_bytes)
    )
    kept = shared / split + sharded / tensor + np.where(recompute >= 1, 0.0, 1.0) * scores / tensor
    return tokens * np.where(recompute == 2, element_bytes * arch.hidden_size / split, kept)


def _mlp_elements(arch: Architecture) -> float:
    """Count elements an MLP saves per token: gate, up and their product, or its one input and output."""
    parts = 3 if arch.mlp in ("swiglu", "geglu") else 2
    if not arch.num_experts:
        return float(parts * arch.intermediate_size)
    visited = arch.experts_per_token + arch.num_shared_experts
    dense = arch.num_dense_layers / arch.num_layers
    return parts * (
        dense * arch.intermediate_size + (1 - dense) * visited * arch.moe_intermediate_size
    )


def _states(arch: Architecture, layout: Layout, precision: Precision) -> tuple[Array, Array, Array]:
    """Return bytes of weights, gradients and optimizer states of the fullest stage."""
    axes = layout.arrays()
    layers, tables = parameter_count(arch)
    local = (
        layers / axes["pipeline"]
        + np.where(axes["pipeline"] == 1, tables, arch.vocab_size * arch.hidden_size)
    ) / axes["tensor"]
    stage, data = axes["zero_stage"], axes["data"]
    shards = [np.where(stage >= least, data, 1) for least in (3, 2, 1)]
    sizes = (precision.weights, precision.gradients, precision.optimizer)
    weights, gradients, optimizer = (
        local * size / shard for size, shard in zip(sizes, shards, strict=True)
    )
    gathered = 2 * precision.weights * layers / arch.num_layers / axes["tensor"]
    return weights + np.where(stage >= 3, gathered, 0.0), gradients, optimizer


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
) -> MemoryBreakdown:
    """Forecast the memory of the fullest accelerator in training.

    The first pipeline stage holds activations of as many micro-batches as there are stages
    (one-forward-one-backward); the last one holds the logits. The larger of the two counts.

    Args:
        arch: the architecture.
        batch: sequences in a micro-batch.
        sequence_length: tokens of each.
        layout: parallelism and policies, one accelerator when not given; its fields may be arrays.
        accumulation: micro-batches per step and replica.
        precision: bytes per parameter and element.
        dropout: dropout masks are saved.
        flash_attention: attention scores are not saved.

    Returns:
        Bytes per part; arrays when any argument is.

    Source: Korthikanti et al. 2022 (activations), Rajbhandari et al. 2020 (ZeRO stages).
    """
    chosen = layout or Layout()
    axes = chosen.arrays()
    weights, gradients, optimizer = _states(arch, chosen, precision)
    options: dict[str, Any] = {
        "element_bytes": precision.activations,
        "dropout": dropout,
        "flash_attention": flash_attention,
    }
    per_layer = activation_bytes_per_layer(
        arch, batch=batch, sequence_length=sequence_length, layout=chosen, **options
    )
    stacks = {"encoder-decoder": 2.5}.get(arch.kind, 1)
    in_flight = np.minimum(axes["pipeline"], np.asarray(accumulation))
    per_stage = per_layer * stacks * arch.num_layers / axes["pipeline"]
    tokens = np.asarray(batch, dtype=float) * sequence_length
    logits = (
        0.0
        if arch.kind == "encoder"
        else tokens * arch.vocab_size * (precision.activations + 4.0) / axes["tensor"]
    )
    rebuilt = np.where(
        axes["recompute"] == 2, _rebuilt(arch, tokens, axes["tensor"], precision.activations), 0.0
    )
    first, last = per_stage * in_flight, per_stage + logits
    workspace = np.where(last > first, logits, 0.0) + rebuilt
    activations = np.where(last > first, per_stage, first)
    total = weights + gradients + optimizer + activations + workspace
    parts = {
        "weights": weights,
        "gradients": gradients,
        "optimizer": optimizer,
        "activations": activations,
    }
    return _breakdown(**parts, workspace=workspace, total=total)


def _rebuilt(arch: Architecture, tokens: Array, tensor: Any, element_bytes: float) -> Any:
    """Return the bytes of one layer's activations while full recomputation rebuilds them."""
    width = (
        4 * arch.hidden_size
        + (2 * arch.num_heads + 2 * arch.num_kv_heads) * arch.head_dim
        + _mlp_elements(arch)
    )
    return tokens * element_bytes * width / tensor


def _breakdown(**parts: Any) -> MemoryBreakdown:
    """Make a breakdown, with plain floats where nothing was an array."""
    return MemoryBreakdown(
        **{name: float(value) if np.ndim(value) == 0 else value for name, value in parts.items()}
    )


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
        arch: the architecture.
        tokens_resident: tokens whose keys and values are kept.
        step_tokens: tokens processed in one step.
        dtype_bytes: of weights, cache and activations.
        tensor_parallel: accelerators the model is split over.

    Returns:
        Bytes per part on one accelerator.
    """
    tensor = np.asarray(tensor_parallel, dtype=float)
    weights = sum(parameter_count(arch)) * dtype_bytes / tensor
    heads = 1 if arch.kv_lora_rank else arch.num_kv_heads
    cache = (
        np.asarray(tokens_resident, dtype=float)
        * kv_bytes_per_token(arch, dtype_bytes)
        / np.minimum(tensor, heads)
    )
    step = np.asarray(step_tokens, dtype=float)
    running = step * dtype_bytes * (4 * arch.hidden_size + 2 * _mlp_elements(arch) / tensor)
    logits = step * 4.0 * arch.vocab_size / tensor
    total = weights + cache + running + logits
    parts = {
        "weights": weights,
        "gradients": 0.0,
        "optimizer": 0.0,
        "activations": running,
        "kv_cache": cache,
    }
    return _breakdown(**parts, workspace=logits, total=total)

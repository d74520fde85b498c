"""Peak resident memory of this package's own engine and trainer on a CPU, process included."""

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from steelyard.catalog.architecture import Architecture
from steelyard.cost.eager import eager_training_memory, matrix_elements
from steelyard.cost.held import parameter_count
from steelyard.cost.memory import MemoryBreakdown, kv_bytes_per_token, plain_floats
from steelyard.cost.weights import engine_bytes_per_weight

__all__ = [
    "BLOCK_TOKENS",
    "STEP_TOKENS",
    "StoredIn",
    "resident_serving_memory",
    "resident_training_memory",
]

BLOCK_TOKENS = 16
"""Tokens of a block of the engine's pool."""
STEP_TOKENS = 512
"""Most tokens of one step of the engine, unless it is told otherwise."""
_KEPT_BYTES = 64 * 2**20
"""Freed memory that the C library keeps for the trainer: `train.memory` sets its limit so."""

DType = Literal["fp32", "bf16"]
StoredIn = Literal["fp32", "bf16", "int8", "int4"]


def resident_training_memory(
    arch: Architecture,
    *,
    batch: ArrayLike,
    sequence_length: int,
    accumulation: ArrayLike = 1,
    dtype: DType = "fp32",
    process_bytes: float,
) -> MemoryBreakdown:
    """Forecast the most memory that a process of `steelyard train` comes to hold.

    Args:
        arch: dense decoder.
        batch: sequences in a micro-batch.
        sequence_length: tokens per sequence.
        accumulation: micro-batches per step.
        dtype: number format of the products.
        process_bytes: what interpreter and libraries hold before there is a model.

    Returns:
        Bytes; `process` counts the freed blocks that the C library keeps as well.
    """
    found = eager_training_memory(
        arch,
        batch=batch,
        sequence_length=sequence_length,
        accumulation=accumulation,
        dtype=dtype,
    )
    # What never was in use cannot be kept: weights and states are not freed before the end.
    freed = found.activations + found.workspace + found.gradients
    process = process_bytes + np.minimum(freed, _KEPT_BYTES)
    return replace(found, **plain_floats(process=process, total=found.total + process))


def resident_serving_memory(
    arch: Architecture,
    *,
    sequences: int,
    context: int,
    dtype: StoredIn = "fp32",
    process_bytes: float,
    step_tokens: int = STEP_TOKENS,
) -> MemoryBreakdown:
    """Forecast the most memory that a process of the engine comes to hold.

    Its pool has room for exactly the sequences and is filled. The kernels read a packed copy of
    every matrix; once packed, what was mapped of a matrix is let go, so that of the stored weights
    the table of embeddings and the vectors stay.

    Args:
        arch: dense decoder.
        sequences: sequences that are served together.
        context: tokens of each, prompt and output.
        dtype: number format in which the layers are computed. Keys and values have that of the
            model as it is loaded: bf16 where the layers have fewer bits.
        process_bytes: what interpreter, libraries and an idle engine hold without a model.
        step_tokens: most tokens of one step.

    Returns:
        Bytes per kind; `packed` is the kernels' copy of the weights.
    """
    size = 4.0 if dtype == "fp32" else 2.0
    # Cosines and sines of every position, float32 in any case; twice where windows have their own.
    turned = (arch.rotary_dim or arch.head_dim) * (2 if arch.local_rope_theta else 1)
    angles = 4.0 * arch.max_positions * turned if arch.position == "rope" else 0.0
    slots = sequences * -(-context // BLOCK_TOKENS) * BLOCK_TOKENS
    rows = min(sequences * context, step_tokens)
    logits = sequences * arch.vocab_size * 4.0  # one row is sampled per sequence
    parts = {
        "weights": size * _kept_elements(arch) + angles,
        "packed": _packed_bytes(arch, dtype),
        "kv_cache": slots * kv_bytes_per_token(arch, size),
        "activations": _buffers(arch, rows),
        "workspace": logits,
        "process": process_bytes,
    }
    return MemoryBreakdown(gradients=0.0, optimizer=0.0, total=sum(parts.values()), **parts)


def _packed_bytes(arch: Architecture, dtype: StoredIn) -> float:
    """Return the bytes of the kernels' copy; the head keeps eight bits where layers have four."""
    head = float(arch.vocab_size * arch.hidden_size)
    layers = matrix_elements(arch) - head
    each, whole = (
        engine_bytes_per_weight(kind, arch.hidden_size)
        for kind in (dtype, "int8" if dtype == "int4" else dtype)
    )
    return layers * each + head * whole


def _buffers(arch: Architecture, rows: int) -> float:
    """Return the bytes of the compiled kernels' buffers, which are kept from step to step."""
    query, key = arch.num_heads * arch.head_dim, arch.num_kv_heads * arch.head_dim
    inner = (2 if arch.is_gated else 1) * arch.intermediate_size
    # Inputs of a product are laid out once more, as its kernel reads them.
    tiles = max(arch.hidden_size, query, arch.intermediate_size)
    return 4.0 * rows * (2 * arch.hidden_size + 2 * query + 2 * key + inner + tiles)


def _kept_elements(arch: Architecture) -> float:
    """Count what no kernel has a packed copy of; a tied table is packed once more for the head."""
    tied = arch.vocab_size * arch.hidden_size if arch.tied_embeddings else 0
    return sum(parameter_count(arch)) - matrix_elements(arch) + tied

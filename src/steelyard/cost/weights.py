"""Number types that weights are stored in: their bytes, and the products they are used in."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from steelyard.catalog.architecture import Architecture
from steelyard.cost.held import parameter_count
from steelyard.cost.memory import MemoryBreakdown, serving_memory
from steelyard.cost.operators import OperatorTable
from steelyard.quantity import Provenance

__all__ = [
    "WEIGHT_LOSSES",
    "WEIGHT_TYPES",
    "StoredWidth",
    "WeightLoss",
    "WeightType",
    "engine_bytes_per_weight",
    "kv_element_bytes",
    "product_dtypes",
    "stored_bytes",
    "stored_serving_memory",
    "with_stored_weights",
]

_TABLE_BYTES = 2.0
"""Embeddings and head stay in 16 bits when the layers are quantized. Source: Dettmers et al. 2022
(arXiv 2208.07339), section 3; Lin et al. 2023 (arXiv 2306.00978)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightType:
    """How the weights of the layers are stored.

    Attributes:
        name: "fp32", "bf16", "fp8", "int8" or "int4".
        bytes_per_weight: bytes of a weight with its share of the scales.
        activation_bytes: bytes of an element of activations, keys and values.
        products: number formats of the products, the preferred one first.
        trains: whether training keeps its weights in this type.
    """

    name: str
    bytes_per_weight: float
    activation_bytes: float
    products: tuple[str, ...]
    trains: bool = False

    @property
    def is_quantized(self) -> bool:
        """Whether a weight takes fewer than 16 bits."""
        return self.bytes_per_weight < _TABLE_BYTES

    @property
    def table_bytes(self) -> float:
        """Bytes of a weight of embeddings and head."""
        return max(self.bytes_per_weight, _TABLE_BYTES)


WEIGHT_TYPES: dict[str, WeightType] = {
    item.name: item
    for item in (
        WeightType(
            name="fp32", bytes_per_weight=4, activation_bytes=4, products=("fp32",), trains=True
        ),
        WeightType(
            name="bf16",
            bytes_per_weight=2,
            activation_bytes=2,
            products=("bf16", "fp16"),
            trains=True,
        ),
        WeightType(
            name="fp8",
            bytes_per_weight=1,
            activation_bytes=2,
            products=("fp8", "bf16", "fp16", "fp32"),
        ),
        WeightType(
            name="int8",
            bytes_per_weight=1,
            activation_bytes=2,
            products=("int8", "bf16", "fp16", "fp32"),
        ),
        # A 16-bit scale per 32 weights; products run in 16 bits after the weights are widened.
        WeightType(
            name="int4",
            bytes_per_weight=0.5 + 2 / 32,
            activation_bytes=2,
            products=("bf16", "fp16", "fp32"),
        ),
    )
}
"""Weight types by name, the widest first."""


@dataclass(frozen=True, slots=True)
class StoredWidth:
    """How a matrix is kept in the engine, and what multiplies it.

    Attributes:
        products: type whose products read it: "fp32" for float16 too, "int8" or "int4" for codes in
            blocks.
        bytes_per_weight: bytes of a weight with its share of what stands beside the codes.
    """

    products: str
    bytes_per_weight: float


@dataclass(frozen=True, slots=True)
class WeightLoss:
    """What a type of weights costs in quality.

    Attributes:
        value: relative increase of perplexity over the weights as they were trained.
        provenance: how it is known.
        source: models and text on which it was measured.
    """

    value: float
    provenance: Provenance
    source: str


_WEIGHED = "this package's engine on a model of 1.6 million weights, benchmark `weight_quality`"
WEIGHT_LOSSES: dict[str, WeightLoss] = {
    "fp32": WeightLoss(0.0, "derived", "as trained"),
    "bf16": WeightLoss(0.0005, "assumed", "a bound; rounding of 8 bits, below that of int8"),
    "int8": WeightLoss(0.0005, "measured", f"{_WEIGHED}: a scale per output, activations rounded"),
    "int4": WeightLoss(0.011, "measured", f"{_WEIGHED}: groups of 32, rounded to nearest"),
}
"""Loss of quality by type, of small models; larger ones have been seen to lose less."""


def engine_bytes_per_weight(name: str, inputs: float) -> float:
    """Return the bytes of a weight in the engine's kernels, with its share of the scales.

    Args:
        name: "fp32", "bf16", "int8" (a float32 scale per output) or "int4" (a 16-bit scale per 32
            weights).
        inputs: inner length of the matrix.

    Returns:
        Bytes.
    """
    return WEIGHT_TYPES[name].bytes_per_weight + (4.0 / inputs if name == "int8" else 0.0)


def kv_element_bytes(name: str, head_dim: int) -> float:
    """Return the bytes of an element of keys and values, with its share of the scales.

    Args:
        name: "fp32", "bf16" or "int8" (a float32 scale per head and token).
        head_dim: elements of a head.

    Returns:
        Bytes.
    """
    return {"fp32": 4.0, "bf16": 2.0, "int8": 1.0 + 4.0 / head_dim}[name]


def product_dtypes(kind: WeightType, peaks: Mapping[str, float]) -> list[str]:
    """Return the number formats in which a machine can multiply weights of a type.

    Args:
        kind: type the weights are stored in.
        peaks: the machine's rates by dtype.

    Returns:
        Those of the type's formats that have a rate, the preferred one first.
    """
    return [dtype for dtype in kind.products if peaks.get(dtype)]


def stored_bytes(arch: Architecture, kind: WeightType) -> float:
    """Return the bytes of all weights; embeddings and head of a quantized model take 16 bits.

    Args:
        arch: model whose weights are stored.
        kind: type of the layers' weights.

    Returns:
        Bytes.
    """
    layers, tables = parameter_count(arch)
    return layers * kind.bytes_per_weight + tables * kind.table_bytes


def with_stored_weights(table: OperatorTable, kind: WeightType) -> OperatorTable:
    """Return operators that read their weights in the type they are stored in.

    Args:
        table: operators listed with `kind.activation_bytes` per element.
        kind: type of the layers' weights.

    Returns:
        The same operators; only the bytes of weights differ.
    """
    factor = kind.bytes_per_weight / kind.activation_bytes
    whole = np.array([name.startswith("head") for name in table.names])
    scale = np.where(whole, max(factor, _TABLE_BYTES / kind.activation_bytes), factor)
    weights = table.weight_bytes * scale.reshape(-1, *(1,) * (table.flops.ndim - 1))
    return replace(
        table, weight_bytes=weights, bytes_read=table.bytes_read - table.weight_bytes + weights
    )


def stored_serving_memory(
    arch: Architecture,
    kind: WeightType,
    *,
    tokens_resident: ArrayLike,
    step_tokens: ArrayLike = 1,
    tensor_parallel: int = 1,
) -> MemoryBreakdown:
    """Forecast the memory of serving with weights in the type they are stored in.

    Args:
        arch: model that is served.
        kind: type of the layers' weights.
        tokens_resident: tokens whose keys and values are kept.
        step_tokens: tokens processed in one step.
        tensor_parallel: accelerators the model is split over.

    Returns:
        Bytes per part on one accelerator.
    """
    plain = serving_memory(
        arch,
        tokens_resident=tokens_resident,
        step_tokens=step_tokens,
        dtype_bytes=kind.activation_bytes,
        tensor_parallel=tensor_parallel,
    )
    weights = stored_bytes(arch, kind) / tensor_parallel
    return replace(plain, weights=weights, total=plain.total - plain.weights + weights)

"""The one list of operators behind every cost.

FLOPs, bytes and communication of a transformer, per accelerator.

All quantities may be arrays over layouts; they broadcast together, and each column is [operators,
*layouts].
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.catalog.architecture import Architecture
from steelyard.errors import ConfigError

__all__ = ["OperatorTable", "Phase", "kv_bytes_per_token", "operators"]

Phase = Literal["train", "prefill", "decode"]
Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorTable:
    """What one accelerator computes and moves in one pass over one micro-batch, busiest pipeline stage.

    Attributes:
        names: of the operators.
        kinds: "matmul", "attention" or "memory" (norms, activations, softmax: bound by bandwidth).
        count: how often each runs in the pass.
        flops: of one run.
        bytes_read: of one run, weights included.
        bytes_written: of one run.
        bytes_communicated: sent over the tensor-parallel links in one run.
        weight_bytes: part of `bytes_read` that is weights.
        m: rows of the matrix product (tokens), 0 where none.
        n: its columns.
        k: its inner size.
        launches: kernels one run dispatches.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    count: Array
    flops: Array
    bytes_read: Array
    bytes_written: Array
    bytes_communicated: Array
    weight_bytes: Array
    m: Array
    n: Array
    k: Array
    launches: Array

    def total(self, column: str) -> Array:
        """Sum a column over operators and their counts; [*layouts]."""
        return (self.count * getattr(self, column)).sum(axis=0)

    @property
    def bytes_moved(self) -> Array:
        """Read plus written by one run; [operators, *layouts]."""
        return self.bytes_read + self.bytes_written

    def mask(self, kind: str) -> NDArray[np.bool_]:
        """Tell which operators are of a kind; [operators]."""
        return np.array([item == kind for item in self.kinds])


class _Shape(NamedTuple):
    """What the rows of a table depend on besides the architecture.

    Every field broadcasts over layouts.
    """

    rows: Array
    batch: Array
    tokens: Array
    context: Array
    pairs: Array
    tensor: Array
    width: float
    fused: bool
    flash: bool
    sequence_parallel: Array


_COLUMNS = (
    "count",
    "flops",
    "bytes_read",
    "bytes_written",
    "bytes_communicated",
    "weight_bytes",
    "m",
    "n",
    "k",
    "launches",
)
Row = dict[str, Any]


def _matmul(
    name: str,
    shape: _Shape,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    *,
    weights: ArrayLike | None = None,
) -> Row:
    """Make the row of [m, k] x [k, n]; `weights` overrides the n k weight elements read."""
    m, n, k = (np.asarray(item, dtype=float) for item in (m, n, k))
    weight = shape.width * (n * k if weights is None else np.asarray(weights, dtype=float))
    moved = {"bytes_read": weight + shape.width * m * k, "bytes_written": shape.width * m * n}
    return {
        "name": name,
        "kind": "matmul",
        "flops": 2 * m * n * k,
        "weight_bytes": weight,
        "m": m,
        "n": n,
        "k": k,
        "launches": 1,
        **moved,
    }


def _elementwise(
    name: str,
    shape: _Shape,
    elements: ArrayLike,
    *,
    reads: float,
    writes: float = 1.0,
    launches: float = 1.0,
) -> Row:
    """Make the row of a bandwidth-bound operator; reads and writes count passes over `elements`."""
    size = shape.width * np.asarray(elements, dtype=float)
    return {
        "name": name,
        "kind": "memory",
        "bytes_read": reads * size,
        "bytes_written": writes * size,
        "launches": launches,
    }


def _norm(name: str, arch: Architecture, shape: _Shape) -> Row:
    """Make the row of a norm; outside tensor-parallel regions it is split only by sequence parallelism."""
    elements = shape.rows * arch.hidden_size / np.where(shape.sequence_parallel, shape.tensor, 1)
    return _elementwise(
        name, shape, elements, reads=1 if shape.fused else 3, launches=1 if shape.fused else 5
    )


def _attention(name: str, arch: Architecture, shape: _Shape) -> Row:
    """Make the row of scores, softmax and weighted values over all local heads."""
    heads = arch.num_heads / shape.tensor
    key_dim = arch.head_dim
    value_dim = (arch.v_head_dim or arch.head_dim) if arch.kv_lora_rank else arch.head_dim
    cache = shape.batch * shape.context * kv_bytes_per_token(arch, shape.width) / arch.num_layers
    local = cache / (1 if arch.kv_lora_rank else np.minimum(shape.tensor, arch.num_kv_heads))
    spill = (
        0.0 if shape.flash else 2 * shape.width * shape.batch * heads * shape.tokens * shape.context
    )
    query, output = (shape.width * shape.rows * heads * dim for dim in (key_dim, value_dim))
    flops = 2 * shape.batch * heads * shape.pairs * (key_dim + value_dim)
    sizes = {
        "m": shape.tokens,
        "n": shape.context,
        "k": key_dim,
        "launches": 1 if shape.flash else 4,
        "backward": 2.5 if shape.flash else 2.0,
    }
    return {
        "name": name,
        "kind": "attention",
        "flops": flops,
        "bytes_read": query + local + spill,
        "bytes_written": output + spill,
        **sizes,
    }


def _projections(arch: Architecture, shape: _Shape) -> list[Row]:
    """List the matrix products around one attention."""
    hidden, heads = arch.hidden_size, arch.num_heads / shape.tensor
    if not arch.kv_lora_rank:
        width = (
            heads * arch.head_dim
            + 2 * np.maximum(arch.num_kv_heads / shape.tensor, 1) * arch.head_dim
        )
        return [
            _matmul("qkv", shape, shape.rows, width, hidden),
            _matmul("output", shape, shape.rows, hidden, heads * arch.head_dim),
        ]
    query_width, value_dim = heads * arch.head_dim, arch.v_head_dim or arch.head_dim
    rank, plain_dim = arch.q_lora_rank, arch.head_dim - arch.qk_rope_head_dim
    queries = [_matmul("query_down", shape, shape.rows, rank, hidden)] if rank else []
    return [
        *queries,
        _matmul("query_up", shape, shape.rows, query_width, rank or hidden),
        _matmul(
            "latent_down", shape, shape.rows, arch.kv_lora_rank + arch.qk_rope_head_dim, hidden
        ),
        _matmul("latent_up", shape, shape.rows, heads * (plain_dim + value_dim), arch.kv_lora_rank),
        _matmul("output", shape, shape.rows, hidden, heads * value_dim),
    ]


def _attention_block(arch: Architecture, shape: _Shape, prefix: str = "") -> list[Row]:
    """List one attention with its norm, rotation, residual and tensor-parallel reduction."""
    rows = _projections(arch, shape)
    split = shape.rows * (arch.num_heads + arch.num_kv_heads) * arch.head_dim / shape.tensor
    rotated = arch.position == "rope"
    rotation = (
        [
            _elementwise(
                "rope",
                shape,
                split,
                reads=1 if shape.fused else 3,
                launches=1 if shape.fused else 6,
            )
        ]
        if rotated
        else []
    )
    block = [
        _norm("norm", arch, shape),
        *rows[:-1],
        *rotation,
        _attention("attention", arch, shape),
        rows[-1],
        _residual(arch, shape),
    ]
    return [{**row, "name": prefix + row["name"]} for row in block]


def _residual(arch: Architecture, shape: _Shape) -> Row:
    """Make the residual add; the tensor-parallel all-reduce of its operand is charged here."""
    elements = shape.rows * arch.hidden_size / np.where(shape.sequence_parallel, shape.tensor, 1)
    row = _elementwise("residual", shape, elements, reads=2)
    ring = 2 * (shape.tensor - 1) / shape.tensor * shape.width * shape.rows * arch.hidden_size
    return {**row, "bytes_communicated": ring}


def _mlp_rows(
    arch: Architecture, shape: _Shape, inner: float, *, name: str, rows: Any, experts: Any = 1.0
) -> list[Row]:
    """List an MLP of `inner` width over `rows`, whose weights are read `experts` times."""
    gated = 2 if arch.mlp in ("swiglu", "geglu") else 1
    local, hidden = inner / shape.tensor, arch.hidden_size
    reads = (gated if shape.fused else 2 * gated, 1 if shape.fused else gated)
    activation = _elementwise(
        f"{name}_activation", shape, rows * local, reads=reads[0], writes=reads[1], launches=gated
    )
    up = _matmul(
        f"{name}_up", shape, rows, gated * local, hidden, weights=experts * gated * local * hidden
    )
    return [
        up,
        activation,
        _matmul(f"{name}_down", shape, rows, hidden, local, weights=experts * local * hidden),
    ]


def _mlp_block(arch: Architecture, shape: _Shape, *, sparse: bool) -> list[Row]:
    """List one MLP or mixture of experts with its norm and residual."""
    norm, residual = (
        {**_norm("norm", arch, shape), "name": "mlp_norm"},
        {**_residual(arch, shape), "name": "mlp_residual"},
    )
    if not sparse:
        return [
            norm,
            *_mlp_rows(arch, shape, arch.intermediate_size, name="mlp", rows=shape.rows),
            residual,
        ]
    visits = shape.rows * arch.experts_per_token
    touched = arch.num_experts * (1 - (1 - arch.experts_per_token / arch.num_experts) ** shape.rows)
    routed = _mlp_rows(
        arch, shape, arch.moe_intermediate_size, name="expert", rows=visits, experts=touched
    )
    router = _matmul("router", shape, shape.rows, arch.num_experts, arch.hidden_size)
    width = arch.moe_intermediate_size * arch.num_shared_experts
    shared = _mlp_rows(arch, shape, width, name="shared", rows=shape.rows) if width else []
    return [norm, router, *routed, *shared, residual]


def _head(arch: Architecture, shape: _Shape, rows: Array, *, loss: bool) -> list[Row]:
    """List the final norm, the output head over `rows` and, for training, the softmax of the loss."""
    norm = {**_norm("norm", arch, shape), "name": "final_norm"}
    if arch.kind == "encoder":
        return [norm]
    logits = _matmul("head", shape, rows, arch.vocab_size / shape.tensor, arch.hidden_size)
    softmax = _elementwise(
        "loss", shape, rows * arch.vocab_size / shape.tensor, reads=2, writes=1, launches=4
    )
    return [norm, logits, *([softmax] if loss else [])]


def _counted(rows: list[Row], count: Any) -> list[Row]:
    """Return each row its count."""
    return [{**row, "count": count} for row in rows]


def _forward(
    arch: Architecture, shape: _Shape, stages: Array, *, loss: bool, last_only: bool
) -> list[Row]:
    """List one forward pass over the busiest stage: its share of the layers, the embedding and the head."""
    layers = arch.num_layers / stages
    dense_share = arch.num_dense_layers / arch.num_layers if arch.num_experts else 1.0
    stacks = 2 if arch.kind == "encoder-decoder" else 1
    rows = _counted(_attention_block(arch, shape), stacks * layers)
    if stacks == 2:
        rows += _counted(_attention_block(arch, shape, "cross_"), layers)
    for sparse, share in ((False, dense_share), (True, 1 - dense_share)):
        if share > 0:
            rows += _counted(_mlp_block(arch, shape, sparse=sparse), stacks * layers * share)
    embedding = _elementwise("embedding", shape, shape.rows * arch.hidden_size, reads=1)
    head_rows = shape.batch if last_only else shape.rows
    return (
        _counted([embedding], 1.0) + rows + _counted(_head(arch, shape, head_rows, loss=loss), 1.0)
    )


def _backward(row: Row) -> list[Row]:
    """List the backward operators of a forward one: two products for a matmul, else twice; fused attention recomputes its scores."""
    if row["kind"] == "matmul":
        m, n, k = row["m"], row["n"], row["k"]
        gradient = {
            "bytes_read": row["bytes_written"] + row["bytes_read"] - row["weight_bytes"],
            "bytes_written": row["weight_bytes"],
        }
        weight = {
            **row,
            **gradient,
            "name": f"{row['name']}.grad_weight",
            "m": k,
            "k": m,
            "weight_bytes": 0.0,
        }
        return [{**row, "name": f"{row['name']}.grad_input", "n": k, "k": n}, weight]
    factor = row.get("backward", 2.0)
    scaled = {
        key: factor * row[key]
        for key in ("flops", "bytes_read", "bytes_written", "launches")
        if key in row
    }
    return [{**row, **scaled, "name": f"{row['name']}.backward"}]


def _table(rows: list[Row], layouts: tuple[int, ...]) -> OperatorTable:
    """Stack rows into columns [operators, *layouts]."""

    def column(name: str) -> Array:
        return np.stack(
            [np.broadcast_to(np.asarray(row.get(name, 0.0), dtype=float), layouts) for row in rows]
        )

    columns = {name: column(name) for name in _COLUMNS}
    return OperatorTable(
        names=tuple(row["name"] for row in rows),
        kinds=tuple(row["kind"] for row in rows),
        **columns,
    )


def operators(
    arch: Architecture,
    *,
    phase: Phase,
    tokens: ArrayLike,
    context: ArrayLike | None = None,
    batch: ArrayLike = 1,
    dtype_bytes: float = 2.0,
    tensor_parallel: ArrayLike = 1,
    pipeline_parallel: ArrayLike = 1,
    sequence_parallel: ArrayLike = False,
    causal: bool = True,
    fused: bool = True,
    flash_attention: bool = True,
) -> OperatorTable:
    """List the operators of one pass over one micro-batch on one accelerator.

    Args:
        arch: the architecture; the list is exact for dense decoders and encoders, experts are taken
            as balanced.
        phase: "train" is forward and backward with all logits, "prefill" and "decode" are forward
            with the last token's logits.
        tokens: new tokens per sequence; 1 for plain decoding.
        context: tokens attended by the last new one, itself included; `tokens` when not given.
        batch: sequences in the micro-batch.
        dtype_bytes: bytes of weights and activations.
        tensor_parallel: accelerators a layer is split over.
        pipeline_parallel: stages the layers are split over; the table is of the busiest, which
            holds the head.
        sequence_parallel: norms and residuals are split over the tensor-parallel group as well.
        causal: count only the pairs at or before each token; encoders always count all.
        fused: norms, rotary embedding and activation are single kernels; else as eager PyTorch runs
            them.
        flash_attention: scores never reach memory; else they are written and read twice.

    Returns:
        A table of [operators, *layouts], layouts being the broadcast shape of the array arguments.

    Raises:
        ConfigError: the phase is unknown, or a size is smaller than 1.

    Source: Gholami et al. 2024 (operations and bytes), Korthikanti et al. 2022 (tensor and sequence
        parallel).
    """
    if phase not in ("train", "prefill", "decode"):
        raise ConfigError(f"phase {phase!r} is not one of train, prefill, decode")
    values = (
        tokens,
        tokens if context is None else context,
        batch,
        tensor_parallel,
        pipeline_parallel,
    )
    arrays = [np.asarray(item, dtype=float) for item in values]
    if any((item < 1).any() for item in arrays):
        raise ConfigError(
            "tokens, context, batch, tensor_parallel and pipeline_parallel must be at least 1"
        )
    split = np.asarray(sequence_parallel, dtype=bool)
    layouts = np.broadcast_shapes(*(item.shape for item in arrays), split.shape)
    length, keys, sequences, tensor, stages = arrays
    half = causal and arch.kind != "encoder"
    pairs = length * keys - (length * (length - 1) / 2 if half else 0.0)
    shape = _Shape(
        sequences * length,
        sequences,
        length,
        keys,
        pairs,
        tensor,
        dtype_bytes,
        fused,
        flash_attention,
        split,
    )
    train = phase == "train"
    rows = _forward(arch, shape, stages, loss=train, last_only=not train)
    return _table(rows + [row for item in rows if train for row in _backward(item)], layouts)


def kv_bytes_per_token(arch: Architecture, dtype_bytes: float = 2.0) -> float:
    """Return the bytes of keys and values one token leaves in all layers.

    Latent attention keeps its latent and rotary part.

    OPT-13B in fp16 keeps 2 x 40 layers x 5,120 x 2 bytes = 819,200.

    Args:
        arch: the architecture.
        dtype_bytes: of one cached element.

    Returns:
        Bytes per token over all layers.

    Source: Kwon et al. 2023 (PagedAttention), section 3; DeepSeek-V2 2024, section 2.1 for latent
    attention.
    """
    if arch.kv_lora_rank:
        return arch.num_layers * (arch.kv_lora_rank + arch.qk_rope_head_dim) * dtype_bytes
    return 2 * arch.num_layers * arch.num_kv_heads * arch.head_dim * dtype_bytes

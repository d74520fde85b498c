"""The rows of the operator list: what each block of a transformer computes, reads and writes.

Every size may be an array over layouts; they broadcast together.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.parameters import router_matrices
from steelyard.cost.memory import kv_bytes_per_token

__all__ = ["PassShape", "Row", "backward", "forward"]

Array = NDArray[np.float64]
Row = dict[str, Any]
"""Columns of one operator by name; absent ones are 0."""


_WIDE = 4.0
"""Bytes of an element that a norm needs no wider copy of."""
_EAGER_NORM_BYTES = (20.0, 16.0)
"""Bytes per element that an eager RMSNorm over 16-bit values reads and writes: a copy in fp32 (2,
4), its squares (4, 4), their mean (4, 0), the scaled values (4, 4), these in 16 bits (4, 2), and
their product with the weights (2, 2)."""


class PassShape(NamedTuple):
    """What the rows depend on besides the architecture; every field broadcasts over layouts."""

    rows: Array
    batch: Array
    tokens: Array
    context: Array
    pairs: Array
    tensor: Array
    width: float
    kv_width: float
    fused: bool
    flash: bool
    sequence_parallel: Array
    expert: Array

    @property
    def norm_split(self) -> Array:
        """Accelerators that share norms and residuals: one group only with sequence parallelism."""
        return np.where(self.sequence_parallel, self.tensor, 1)


def _matmul(
    name: str,
    shape: PassShape,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    *,
    weights: ArrayLike | None = None,
) -> Row:
    """Make the row of [m, k] x [k, n]; `weights` replaces the n k weight elements read."""
    m, n, k = (np.asarray(item, dtype=float) for item in (m, n, k))
    weight = shape.width * (n * k if weights is None else np.asarray(weights, dtype=float))
    return {
        "name": name,
        "kind": "matmul",
        "flops": 2 * m * n * k,
        "weight_bytes": weight,
        "bytes_read": weight + shape.width * m * k,
        "bytes_written": shape.width * m * n,
        "m": m,
        "n": n,
        "k": k,
        "launches": 1,
    }


def _elementwise(
    name: str,
    shape: PassShape,
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


def _norm(name: str, arch: Architecture, shape: PassShape) -> Row:
    """Make the row of a norm."""
    elements = shape.rows * arch.hidden_size / shape.norm_split
    if shape.fused:
        return _elementwise(name, shape, elements, reads=1)
    # Eager PyTorch squares, averages, takes the root, scales and shifts in kernels of their own.
    reads, writes, launches = 3.0, 1.0, 5.0
    if shape.width < _WIDE:
        read, written = _EAGER_NORM_BYTES
        reads, writes, launches = read / shape.width, written / shape.width, 8.0
    return _elementwise(name, shape, elements, reads=reads, writes=writes, launches=launches)


def _attention(arch: Architecture, shape: PassShape) -> Row:
    """Make the row of scores, softmax and weighted values over all local heads."""
    heads = arch.num_heads / shape.tensor
    cache = shape.batch * shape.context * kv_bytes_per_token(arch, shape.kv_width) / arch.num_layers
    # Key/value heads are split no finer than one per accelerator; a latent cache has none to split,
    # so every member of the group reads it whole.
    local = cache / (1 if arch.kv_lora_rank else np.minimum(shape.tensor, arch.num_kv_heads))
    spill = 2 * shape.width * shape.batch * heads * shape.tokens * shape.context
    spill = 0.0 if shape.flash else spill
    query, output = (
        shape.width * shape.rows * heads * dim for dim in (arch.head_dim, arch.value_dim)
    )
    return {
        "name": "attention",
        "kind": "attention",
        "flops": 2 * shape.batch * heads * shape.pairs * (arch.head_dim + arch.value_dim),
        "bytes_read": query + local + spill,
        "bytes_written": output + spill,
        "m": shape.tokens,
        "n": shape.context,
        "k": arch.head_dim,
        "launches": 1 if shape.flash else 4,
        # Four products backward for two forward; a fused kernel computes the scores once more.
        "backward": 2.5 if shape.flash else 2.0,
    }


def _projections(arch: Architecture, shape: PassShape) -> list[Row]:
    """List the matrix products around one attention, the output projection last."""
    hidden = arch.hidden_size
    heads = arch.num_heads / shape.tensor
    if not arch.kv_lora_rank:
        keys = 2 * np.maximum(arch.num_kv_heads / shape.tensor, 1) * arch.head_dim
        width = heads * arch.head_dim
        gates = arch.mixer == "retention"
        return [
            _matmul("qkv", shape, shape.rows, width + keys, hidden),
            *([_matmul("gate", shape, shape.rows, width, hidden)] if gates else []),
            _matmul("output", shape, shape.rows, hidden, heads * arch.head_dim),
        ]
    rank = arch.q_lora_rank
    up = heads * (arch.head_dim - arch.qk_rope_head_dim + arch.value_dim)
    down = arch.kv_lora_rank + arch.qk_rope_head_dim
    queries = [_matmul("query_down", shape, shape.rows, rank, hidden)] if rank else []
    return [
        *queries,
        _matmul("query_up", shape, shape.rows, heads * arch.head_dim, rank or hidden),
        _matmul("latent_down", shape, shape.rows, down, hidden),
        _matmul("latent_up", shape, shape.rows, up, arch.kv_lora_rank),
        _matmul("output", shape, shape.rows, hidden, heads * arch.value_dim),
    ]


def _attention_block(arch: Architecture, shape: PassShape, prefix: str = "") -> list[Row]:
    """List one attention with its norm, rotation, residual and tensor-parallel reduction."""
    *inputs, output = _projections(arch, shape)
    rotation = []
    if arch.position in ("rope", "xpos"):
        split = shape.rows * (arch.num_heads + arch.num_kv_heads) * arch.head_dim / shape.tensor
        cost: dict[str, float] = (
            {"reads": 1, "launches": 1} if shape.fused else {"reads": 3, "launches": 6}
        )
        rotation = [_elementwise("rope", shape, split, **cost)]
    block = [
        _norm("norm", arch, shape),
        *inputs,
        *rotation,
        _attention(arch, shape),
        output,
        _residual("residual", arch, shape),
    ]
    return [{**row, "name": prefix + row["name"]} for row in block]


def _residual(name: str, arch: Architecture, shape: PassShape) -> Row:
    """Make the residual add; the tensor-parallel all-reduce of its operand is charged here."""
    row = _elementwise(name, shape, shape.rows * arch.hidden_size / shape.norm_split, reads=2)
    ring = 2 * (shape.tensor - 1) / shape.tensor * shape.width * shape.rows * arch.hidden_size
    return {**row, "bytes_communicated": ring}


def _mlp_rows(
    arch: Architecture, shape: PassShape, inner: float, *, name: str, rows: Any, experts: Any = 1.0
) -> list[Row]:
    """List an MLP of `inner` width over `rows`, whose weights are read `experts` times."""
    gated = 2 if arch.is_gated else 1
    local = inner / shape.tensor
    hidden = arch.hidden_size
    reads, writes = (gated, 1) if shape.fused else (2 * gated, gated)
    up = experts * gated * local * hidden
    return [
        _matmul(f"{name}_up", shape, rows, gated * local, hidden, weights=up),
        _elementwise(
            f"{name}_activation", shape, rows * local, reads=reads, writes=writes, launches=gated
        ),
        _matmul(f"{name}_down", shape, rows, hidden, local, weights=experts * local * hidden),
    ]


def _mlp_block(arch: Architecture, shape: PassShape, *, sparse: bool) -> list[Row]:
    """List one MLP or mixture of experts with its norm and residual."""
    norm = _norm("mlp_norm", arch, shape)
    residual = _residual("mlp_residual", arch, shape)
    if not sparse:
        rows = _mlp_rows(arch, shape, arch.intermediate_size, name="mlp", rows=shape.rows)
        return [norm, *rows, residual]
    # Whole experts stand on the accelerators of an expert group, one part of each on those of a
    # tensor group; the work of an accelerator is the same, of experts that do not overflow.
    whole = np.asarray(shape.expert) > 1
    visits = shape.rows * arch.experts_per_token / np.where(whole, shape.tensor, 1)
    held = arch.num_experts / np.where(whole, shape.expert, 1)
    # Experts that at least one of the rows visits, if each row draws its experts at random: only
    # these read their weights.
    rows_met = shape.rows * np.where(whole, shape.expert / shape.tensor, 1)
    touched = held * (1 - (1 - arch.experts_per_token / arch.num_experts) ** rows_met)
    routed = _mlp_rows(
        arch,
        shape._replace(tensor=np.where(whole, 1, shape.tensor)),
        arch.moe_intermediate_size,
        name="expert",
        rows=visits,
        experts=touched,
    )
    columns = router_matrices(arch) / arch.hidden_size
    router = _matmul("router", shape, shape.rows, columns, arch.hidden_size)
    width = arch.moe_intermediate_size * arch.num_shared_experts
    shared = _mlp_rows(arch, shape, width, name="shared", rows=shape.rows) if width else []
    return [norm, router, *routed, *shared, residual]


def _head(arch: Architecture, shape: PassShape, rows: Array, *, loss: bool) -> list[Row]:
    """List the final norm, the output head over `rows` and, in training, the loss's softmax."""
    norm = _norm("final_norm", arch, shape)
    if arch.kind == "encoder":
        return [norm]
    width = arch.vocab_size / shape.tensor
    logits = _matmul("head", shape, rows, width, arch.hidden_size)
    softmax = _elementwise(
        "loss", shape, rows * arch.vocab_size / shape.tensor, reads=2, launches=4
    )
    return [norm, logits, *([softmax] if loss else [])]


def _counted(rows: list[Row], count: Any) -> list[Row]:
    """Return the rows with their count."""
    return [{**row, "count": count} for row in rows]


def forward(arch: Architecture, shape: PassShape, stages: Array, *, train: bool) -> list[Row]:
    """List one forward pass over the busiest stage: its layers, the embedding and the head.

    Args:
        arch: architecture that is run.
        shape: sizes of the pass.
        stages: pipeline stages the layers are split over.
        train: all logits and the loss are computed; else the logits of each last token.

    Returns:
        Rows with their counts, in the order they run.
    """
    layers = arch.num_layers / stages
    dense_share = (arch.num_layers - arch.num_expert_layers) / arch.num_layers
    stacks = 2 if arch.kind == "encoder-decoder" else 1
    rows = _counted([_elementwise("embedding", shape, shape.rows * arch.hidden_size, reads=1)], 1.0)
    rows += _counted(_attention_block(arch, shape), stacks * layers)
    if stacks == 2:
        rows += _counted(_attention_block(arch, shape, "cross_"), layers)
    for sparse, share in ((False, dense_share), (True, 1 - dense_share)):
        if share > 0:
            rows += _counted(_mlp_block(arch, shape, sparse=sparse), stacks * layers * share)
    return rows + _counted(
        _head(arch, shape, shape.rows if train else shape.batch, loss=train), 1.0
    )


def backward(row: Row) -> list[Row]:
    """List the backward operators of a forward one: two products for a matmul, else one.

    Args:
        row: operator of the forward pass; its "backward" is its cost backward over forward, 2
            where absent.

    Returns:
        Rows with the counts of the forward one.
    """
    if row["kind"] == "matmul":
        # The gradient of the input reads the weights again; that of the weights reads both
        # activations and writes what the forward pass read as weights.
        gradient = {
            "name": f"{row['name']}.grad_weight",
            "bytes_read": row["bytes_written"] + row["bytes_read"] - row["weight_bytes"],
            "bytes_written": row["weight_bytes"],
            "weight_bytes": 0.0,
            "m": row["k"],
            "k": row["m"],
        }
        inputs = {"name": f"{row['name']}.grad_input", "n": row["k"], "k": row["n"]}
        return [{**row, **inputs}, {**row, **gradient}]
    factor = row.get("backward", 2.0)
    costs = ("flops", "bytes_read", "bytes_written", "launches")
    scaled = {key: factor * row[key] for key in costs if key in row}
    return [{**row, **scaled, "name": f"{row['name']}.backward"}]

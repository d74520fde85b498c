"""The one list of operators behind every cost: a transformer's work on one accelerator.

All quantities may be arrays over layouts; they broadcast together, and each column is [operators,
*layouts].
"""

from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.catalog.architecture import Architecture
from steelyard.cost.blocks import PassShape, Row, backward, forward
from steelyard.cost.windows import attended_keys, attended_pairs
from steelyard.errors import ConfigError

__all__ = ["OperatorTable", "Phase", "operators"]

Phase = Literal["train", "prefill", "decode"]
Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorTable:
    """What one accelerator of the busiest pipeline stage does in a pass over one micro-batch.

    Attributes:
        names: names of the operators.
        kinds: "matmul", "attention" or "memory" (norms, activations, softmax: bound by bandwidth).
        count: how often each operator runs in the pass.
        flops: FLOPs of one run.
        bytes_read: bytes one run reads, weights included.
        bytes_written: bytes one run writes.
        bytes_communicated: bytes one run sends over the tensor-parallel links.
        weight_bytes: part of `bytes_read` that is weights.
        m: rows of the matrix product (tokens), 0 where there is none.
        n: columns of the matrix product.
        k: inner size of the matrix product.
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
        """Sum a column over the operators, each times its count; [*layouts]."""
        return (self.count * getattr(self, column)).sum(axis=0)

    @property
    def bytes_moved(self) -> Array:
        """Bytes read plus written by one run; [operators, *layouts]."""
        return self.bytes_read + self.bytes_written

    def mask(self, kind: str) -> NDArray[np.bool_]:
        """Return which operators are of a kind; [operators]."""
        return np.array([item == kind for item in self.kinds])


def _table(rows: list[Row], layouts: tuple[int, ...]) -> OperatorTable:
    """Stack rows into columns [operators, *layouts]."""

    def column(name: str) -> Array:
        # Assigning broadcasts by itself, several times faster than stacking broadcast arrays.
        values = np.zeros((len(rows), *layouts))
        for place, row in enumerate(rows):
            values[place] = row.get(name, 0.0)
        return values

    columns = {
        item.name: column(item.name)
        for item in fields(OperatorTable)
        if item.name not in ("names", "kinds")
    }
    return OperatorTable(
        names=tuple(row["name"] for row in rows),
        kinds=tuple(row["kind"] for row in rows),
        **columns,
    )


def _refuse(phase: str, sizes: list[Array], sequences: Array) -> None:
    """Raise where the phase is unknown or a size is impossible."""
    if phase not in ("train", "prefill", "decode"):
        raise ConfigError(f"phase {phase!r} is not one of train, prefill, decode")
    if any((item < 1).any() for item in sizes) or (sequences <= 0).any():
        raise ConfigError(
            "tokens, context, tensor_parallel, pipeline_parallel and expert_parallel must be at "
            "least 1, and batch greater than 0"
        )


def operators(
    arch: Architecture,
    *,
    phase: Phase,
    tokens: ArrayLike,
    context: ArrayLike | None = None,
    batch: ArrayLike = 1,
    dtype_bytes: float = 2.0,
    kv_bytes: float | None = None,
    tensor_parallel: ArrayLike = 1,
    pipeline_parallel: ArrayLike = 1,
    expert_parallel: ArrayLike = 1,
    sequence_parallel: ArrayLike = False,
    causal: bool = True,
    fused: bool = True,
    flash_attention: bool = True,
) -> OperatorTable:
    """List the operators of one pass over one micro-batch on one accelerator.

    Args:
        arch: architecture that is run; the list is exact for dense decoders and encoders, experts
            are taken as balanced.
        phase: "train" is forward and backward with all logits, "prefill" and "decode" are forward
            with the last token's logits.
        tokens: new tokens per sequence; 1 for plain decoding.
        context: tokens that the last new one attends, itself included; `tokens` when not given.
        batch: sequences in the micro-batch; a fraction where a sequence is split over accelerators.
        dtype_bytes: bytes of one weight and one activation element.
        kv_bytes: bytes of one element of keys and values; `dtype_bytes` when not given.
        tensor_parallel: accelerators a layer is split over.
        pipeline_parallel: stages the layers are split over; the table is of the busiest, which
            holds the head.
        expert_parallel: accelerators that share out whole experts; 1 splits each over the
            tensor-parallel group.
        sequence_parallel: whether norms and residuals are split over the tensor-parallel group as
            well.
        causal: whether only pairs at or before each token count; encoders always count all.
        fused: whether norms, rotary embedding and activation are single kernels; else they run as
            in eager PyTorch.
        flash_attention: whether scores stay out of memory; else they are written and read twice.

    Returns:
        A table of [operators, *layouts], layouts being the broadcast shape of the array arguments.

    Raises:
        ConfigError: the phase is unknown, the batch is not positive, or another size is smaller
            than 1.

    Source: Gholami et al. 2024 (operations and bytes), Korthikanti et al. 2022 (tensor and sequence
        parallel).
    """
    reach = tokens if context is None else context
    sizes = (tokens, reach, tensor_parallel, pipeline_parallel, expert_parallel)
    arrays = [np.asarray(item, dtype=float) for item in sizes]
    sequences = np.asarray(batch, dtype=float)
    _refuse(phase, arrays, sequences)
    split = np.asarray(sequence_parallel, dtype=bool)
    layouts = np.broadcast_shapes(*(item.shape for item in arrays), sequences.shape, split.shape)
    length, keys, tensor, stages, expert = arrays
    # The last new token attends `keys` tokens, each one before it one fewer, none more than its
    # layer's window has.
    is_causal = causal and arch.kind != "encoder"
    pairs = attended_pairs(arch, length, keys) if is_causal else length * keys
    keys = attended_keys(arch, length, keys) if is_causal else keys
    shape = PassShape(
        rows=sequences * length,
        batch=sequences,
        tokens=length,
        context=keys,
        pairs=pairs,
        tensor=tensor,
        width=dtype_bytes,
        kv_width=dtype_bytes if kv_bytes is None else kv_bytes,
        fused=fused,
        flash=flash_attention,
        sequence_parallel=split,
        expert=expert,
    )
    train = phase == "train"
    rows = forward(arch, shape, stages, train=train)
    return _table(rows + [row for item in rows if train for row in backward(item)], layouts)

"""Where a model fits: accelerators and counts for serving, training and adapters, ranked."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.hardware import Accelerator, Site
from steelyard.cost.held import parameter_count
from steelyard.cost.layout import RECOMPUTE, Layout, Recompute
from steelyard.cost.memory import MIXED, PURE_FP32, MemoryBreakdown, Precision, training_memory
from steelyard.cost.money import ChipHour, chip_hour
from steelyard.cost.operators import operators
from steelyard.cost.roofline import Machine
from steelyard.cost.weights import (
    WEIGHT_TYPES,
    WeightType,
    product_dtypes,
    stored_bytes,
    stored_serving_memory,
)
from steelyard.errors import CatalogError
from steelyard.plan.intervals import timed
from steelyard.plan.own import has_engine, own_memory, placed_rate
from steelyard.plan.rates import Load, Use
from steelyard.quantity import Forecast

__all__ = [
    "COUNTS",
    "PREFILL_CHUNK",
    "RESERVE",
    "USES",
    "Placement",
    "Use",
    "adapter_parameters",
    "fits_on",
    "known_hour",
    "place",
    "placed_precision",
    "product_machines",
]

USES: dict[Use, str] = {
    "serve": "serving",
    "train": "training, or fine-tuning of all weights",
    "lora": "fine-tuning of low-rank adapters",
}
"""What a model is placed for, in words."""
COUNTS = (1, 2, 4, 8)
"""Accelerators of one node that are tried."""

RESERVE = 0.05
"""Share of the memory that driver, kernels and fragmentation take; chosen so that 26 published
statements of what fits come out right."""
PREFILL_CHUNK = 512
"""Most prompt tokens of one serving step, as engines split them by default."""
_LORA_RANK = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """A model on a number of accelerators of one kind.

    Attributes:
        use: what for.
        accelerator: catalog name.
        count: accelerators; where none of the tried numbers suffices, the largest.
        weights: name of the weight type.
        memory: bytes on each accelerator.
        limit_bytes: bytes that each accelerator offers.
        tokens_per_s: forecast of output tokens in serving, of trained tokens otherwise; None where
            the model does not fit or the machine has no products for the weights.
        usd_per_million: money per million of these tokens, None where no price is known.
        usd_per_hour: price of one accelerator and hour, None where none is known.
        price_source: where the price of the accelerator stands.
        dtype: number format of the products, empty where there are none.
        layout: how the work is shared; replicas of training, tensor parallelism of serving.
        bound: "compute", "bandwidth" or "links", what limits the speed; "memory" where it does not
            fit.
        has_engine: whether an engine of this package computes with the model in this weight type.
    """

    use: Use
    accelerator: str
    count: int
    weights: str
    memory: MemoryBreakdown
    limit_bytes: float
    tokens_per_s: Forecast | None = None
    usd_per_million: float | None = None
    usd_per_hour: float | None = None
    price_source: str = ""
    dtype: str = ""
    layout: Layout = field(default_factory=Layout)
    bound: str = "memory"
    has_engine: bool = True

    @property
    def fits(self) -> bool:
        """Whether the memory suffices."""
        return self.memory.total <= self.limit_bytes


def place(
    arch: Architecture,
    accelerators: Iterable[tuple[Accelerator, Mapping[str, Machine]]],
    *,
    use: Use = "serve",
    context: int = 4096,
    users: int = 1,
    weights: Sequence[str] = tuple(WEIGHT_TYPES),
    counts: Sequence[int] = COUNTS,
    site: Site | None = None,
) -> list[Placement]:
    """Place a model on the fewest accelerators of each kind that hold it.

    Args:
        arch: model to place.
        accelerators: records, each with its measured rooflines by number format; none for published
            peaks.
        use: "serve", "train" (AdamW on all weights) or "lora" (adapters of rank 16).
        context: tokens of each sequence.
        users: sequences served together.
        weights: weight types to try; training takes fp32 and bf16 only.
        counts: numbers of accelerators to try, rising.
        site: place whose electricity amortized hardware and own machines pay.

    Returns:
        Placements that fit first, the cheapest first among them, then the fastest; those that do
        not fit at the end, the least short first. Where none of the counts can share the work,
        there is no placement.
    """
    load = Load(use=use, context=context, users=users)
    kinds = [WEIGHT_TYPES[name] for name in weights]
    kinds = [kind for kind in kinds if kind.trains or use != "train"]
    needs = {kind.name: _memories(arch, kind, load, tuple(counts)) for kind in kinds}
    found = [
        _placement(arch, record, measured, kind, load, held, site)
        for record, measured in accelerators
        for kind in kinds
        if (held := _possible(arch, record, measured, kind, load, needs[kind.name]))
    ]
    return sorted(found, key=_rank)


def fits_on(
    arch: Architecture,
    record: Accelerator,
    *,
    use: Use,
    weights: str,
    context: int = 4096,
    users: int = 1,
) -> int:
    """Return how many accelerators of a node hold a model.

    Args:
        arch: model to place.
        record: accelerator.
        use: what for.
        weights: weight type.
        context: tokens of each sequence.
        users: sequences served together.

    Returns:
        The fewest of 1, 2, 4 and 8; 0 where none of them suffices.
    """
    only: list[tuple[Accelerator, Mapping[str, Machine]]] = [(record, {})]
    found = place(arch, only, use=use, weights=(weights,), context=context, users=users)
    # Training keeps no weights of fewer than 16 bits: then nothing is placed.
    return next((item.count for item in found if item.fits), 0)


def _rank(item: Placement) -> tuple[Any, ...]:
    """Return the sorting key: fits, then money, then speed, then what lacks."""
    speed = item.tokens_per_s.value if item.tokens_per_s else 0.0
    money = np.inf if item.usd_per_million is None else item.usd_per_million
    return (not item.fits, money, -speed, item.memory.total / item.limit_bytes)


_Needs = list[tuple[int, Layout, MemoryBreakdown]]


def _memories(arch: Architecture, kind: WeightType, load: Load, counts: tuple[int, ...]) -> _Needs:
    """Return the memory for each count and, in training, policy, the preferred first."""
    if load.use == "serve":
        return [
            (
                count,
                Layout(tensor=count),
                stored_serving_memory(
                    arch,
                    kind,
                    tokens_resident=load.context * load.users,
                    step_tokens=max(load.users, min(load.context, PREFILL_CHUNK)),
                    tensor_parallel=count,
                ),
            )
            for count in counts
            # Query heads are split evenly or not at all.
            if count == 1 or arch.num_heads % count == 0
        ]
    policies: list[tuple[int, int, Recompute]] = [
        (count, zero, recompute)
        for count in counts
        for zero in ((0, 3) if count > 1 else (0,))
        for recompute in ("none", "full")
    ]
    data, zeros, kept = zip(*policies, strict=True)
    codes = np.array([RECOMPUTE.index(item) for item in kept])
    every = Layout(data=np.array(data), zero_stage=np.array(zeros), recompute=codes)
    found = _training(arch, kind, load, every)
    return [
        (count, Layout(data=count, zero_stage=zero, recompute=recompute), found.at(index))
        for index, (count, zero, recompute) in enumerate(policies)
    ]


def placed_precision(arch: Architecture, kind: WeightType, use: Use) -> Precision:
    """Return the bytes per parameter of training all weights, or adapters over frozen ones.

    Args:
        arch: model that is trained.
        kind: type of the weights.
        use: "train" or "lora".

    Returns:
        The bytes; those of frozen weights are the mean over layers and tables.
    """
    if use == "lora":
        return Precision(
            weights=stored_bytes(arch, kind) / sum(parameter_count(arch)),
            gradients=0.0,
            optimizer=0.0,
            activations=kind.activation_bytes,
        )
    return PURE_FP32 if kind.name == "fp32" else MIXED


def _training(arch: Architecture, kind: WeightType, load: Load, layout: Layout) -> MemoryBreakdown:
    """Return the memory of training all weights, or adapters over frozen ones, per layout."""
    found = training_memory(
        arch,
        batch=1,
        sequence_length=load.context,
        layout=layout,
        precision=placed_precision(arch, kind, load.use),
    )
    if load.use == "train":
        return found
    # Adapters are small, so every replica keeps them whole: 16-bit weights, fp32 gradients and
    # states.
    adapters = adapter_parameters(arch)
    states = {"gradients": 4.0 * adapters, "optimizer": 12.0 * adapters}
    own = 2.0 * adapters
    return replace(
        found, **states, weights=found.weights + own, total=found.total + own + 16.0 * adapters
    )


@lru_cache(maxsize=512)
def adapter_parameters(arch: Architecture) -> float:
    """Count the parameters of adapters on every matrix of every layer.

    Args:
        arch: model whose weights are frozen.

    Returns:
        Parameters of rank-16 adapters.

    Source: Hu et al. 2021 (arXiv 2106.09685), section 4.1; all linear layers as in Dettmers et al.
    2023 (arXiv 2305.14314).
    """
    table = operators(arch, phase="prefill", tokens=1)
    layer = table.mask("matmul") & np.array([name != "head" for name in table.names])
    return float(_LORA_RANK * (table.count * (table.n + table.k))[layer].sum())


def _possible(
    arch: Architecture,
    record: Accelerator,
    measured: Mapping[str, Machine],
    kind: WeightType,
    load: Load,
    needs: _Needs,
) -> _Needs:
    """Return the needs whose count the accelerator can share."""
    # Of this machine is known what runs there, and what that holds.
    own = own_memory(arch, kind.name, load, measured)
    if own is not None:
        return [(1, Layout(), own)] if any(need[0] == 1 for need in needs) else []
    # A calibrated machine has no second of its kind; chips without a known link cannot share work.
    is_alone = measured or not (record.scale_up_bytes_per_s or record.host_link_bytes_per_s)
    return [need for need in needs if need[0] == 1 or not is_alone]


def _placement(
    arch: Architecture,
    record: Accelerator,
    measured: Mapping[str, Machine],
    kind: WeightType,
    load: Load,
    needs: _Needs,
    site: Site | None,
) -> Placement:
    """Place a model with one weight type on the fewest accelerators that hold it."""
    limit = record.memory_bytes * (1 - RESERVE)
    chosen = next((need for need in needs if need[2].total <= limit), None)
    count, layout, memory = chosen or min(needs, key=lambda need: need[2].total)
    plain = Placement(
        use=load.use,
        accelerator=record.name,
        count=count,
        weights=kind.name,
        memory=memory,
        limit_bytes=limit,
        layout=layout,
        has_engine=has_engine(arch, kind.name, load.use),
    )
    machines = product_machines(record, measured, kind, load.use)
    if chosen is None or not machines:
        return plain
    rated = [placed_rate(arch, machine, kind, load, layout, count) for machine in machines]
    best = max(range(len(rated)), key=lambda index: rated[index].tokens_per_s)
    found = rated[best]
    rate = found.tokens_per_s
    quantity = "serve.throughput" if load.use == "serve" else "train.throughput"
    hour = known_hour(record, site)
    return replace(
        plain,
        tokens_per_s=timed(machines[best], {quantity: rate}, relative=found.relative)[0],
        dtype=machines[best].dtype,
        usd_per_million=hour.total_usd * count / 3600 / rate * 1e6 if hour else None,
        usd_per_hour=hour.total_usd if hour else None,
        price_source=hour.source if hour else "",
        bound=found.bound,
    )


def product_machines(
    record: Accelerator, measured: Mapping[str, Machine], kind: WeightType, use: Use
) -> list[Machine]:
    """Return the rooflines that may multiply the weights; the fastest of them counts.

    Args:
        record: accelerator.
        measured: its measured rooflines by number format, none for published peaks.
        kind: type of the weights.
        use: what for.

    Returns:
        Rooflines, none where the accelerator has no rate for the weights.
    """
    # Quantized weights that are trained around are widened to 16 bits for every product.
    narrow = ("fp8", "int8") if use == "lora" else ()
    peaks = {name: rate for name, rate in record.peak_flops_per_s.items() if name not in narrow}
    dtypes = product_dtypes(kind, peaks)
    if measured:
        return [measured[dtype] for dtype in dtypes if dtype in measured]
    # Published peaks rise as formats narrow, so that the preferred one is the fastest.
    return [
        replace(Machine.from_accelerator(record, dtype=dtype), accelerators_per_node=max(COUNTS))
        for dtype in dtypes[:1]
    ]


def known_hour(record: Accelerator, site: Site | None) -> ChipHour | None:
    """Return what an accelerator costs for an hour; None where no rent is known."""
    if site is None:
        return None
    try:
        hour = chip_hour(record, site)
    except CatalogError:
        return None
    # Hardware that is owned is cheaper than any rent: only this machine is taken as owned.
    return hour if hour.method == "rented" or record.confidence == "measured" else None

"""The layouts that a search tries: what each axis may be, and what goes together."""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from steelyard.catalog.architecture import Architecture
from steelyard.cost.layout import RECOMPUTE, SCHEDULES, Recompute, Schedule
from steelyard.cost.roofline import Machine
from steelyard.errors import require
from steelyard.plan.engines import EngineName, runs_on

__all__ = ["LayoutSpace", "layout_columns"]

MICRO_BATCHES = (1, 2, 4, 8)
MAX_PIPELINE = 64
MAX_CONTEXT = 64
MIN_PART_TOKENS = 4096
"""Fewest tokens of a sequence that context parallelism leaves to one accelerator: no published run
leaves fewer (8,192 over 2; arXiv 2407.21783, table 4: 131,072 over 16), so nothing says what its
exchange would take."""
MAX_SHARDED_REPLICAS = 512
"""Most replicas that share weights: published runs agree with the cost model up to it. The only
larger ones, on 1,536 and 2,240 replicas, are of a library whose rings reached a ninth of the
network."""
_TENSOR = (1, 2, 4, 8, 16)
_ENDS = 2
"""Layers that the last and then the first stage may lack, for the head and the embedding
(arXiv 2407.21783, section 3.3.2)."""

ShardGroups = Literal["all", "levels", "per-state"]
Array = NDArray[Any]
Columns = dict[str, Array]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutSpace:
    """Values that each axis of a layout may take; an empty one takes all that are worth trying.

    What an axis is not given, leaves out what never wins in the cost model: GPipe (as fast as one
    forward one backward, and larger), norms that are not split over tensor groups, and parts of a
    sequence where whole sequences would do. It also leaves out tensor groups beyond a node,
    parts of a sequence of fewer than 4,096 tokens, gradients or weights that are sharded under a
    pipeline, and selective recomputation, which saves next to nothing beside fused attention.

    Attributes:
        data: data-parallel replicas.
        tensor: tensor-parallel degrees.
        pipeline: pipeline stages.
        context: accelerators a sequence is split over.
        expert: accelerators of a stage that share out whole experts.
        virtual_stages: chunks of layers per accelerator.
        schedule: orders of a pipeline's passes.
        zero_stage: sharding stages.
        micro_batch: sequences per micro-batch.
        recompute: what the backward pass computes again.
        sequence_parallel: whether tensor groups split norms and residuals.
        offload_optimizer: whether optimizer states may live in host memory; not searched by default
            since neither the host's memory nor its update of the weights is counted.
        offload_activations: whether the inputs of layers may wait in host memory, where all else
            is recomputed.
        shard_groups: what may share states: "all" replicas, groups that end where "levels" of links
            do as well, one size for all that is sharded, or such groups of a size "per-state".
        engine: engine that has to run the layouts; any when empty.
    """

    data: tuple[int, ...] = ()
    tensor: tuple[int, ...] = ()
    pipeline: tuple[int, ...] = ()
    context: tuple[int, ...] = ()
    expert: tuple[int, ...] = ()
    virtual_stages: tuple[int, ...] = ()
    schedule: tuple[Schedule, ...] = ()
    zero_stage: tuple[int, ...] = ()
    micro_batch: tuple[int, ...] = ()
    recompute: tuple[Recompute, ...] = ()
    sequence_parallel: tuple[bool, ...] = ()
    offload_optimizer: tuple[bool, ...] = (False,)
    offload_activations: tuple[bool, ...] = (False,)
    shard_groups: ShardGroups = "levels"
    engine: EngineName = ""

    def __post_init__(self) -> None:
        """Refuse values that no layout has.

        Raises:
            ConfigError: a degree is below 1, a stage beyond 3, or a word unknown.
        """
        degrees = ("data", "tensor", "pipeline", "context", "expert", "virtual_stages")
        require(
            self,
            **{
                name: (all(item >= 1 for item in getattr(self, name)), "numbers of at least 1")
                for name in (*degrees, "micro_batch")
            },
            zero_stage=({*self.zero_stage} <= {0, 1, 2, 3}, "some of 0, 1, 2, 3"),
            schedule=({*self.schedule} <= {*SCHEDULES}, f"some of {', '.join(SCHEDULES)}"),
            recompute=({*self.recompute} <= {*RECOMPUTE}, f"some of {', '.join(RECOMPUTE)}"),
            shard_groups=(self.shard_groups in get_args(ShardGroups), "all, levels or per-state"),
            offload_optimizer=(bool(self.offload_optimizer), "False, True or both"),
            offload_activations=(bool(self.offload_activations), "False, True or both"),
        )

    @property
    def pinned(self) -> dict[str, Any]:
        """Axes that differ from those of a free search, with their values."""
        free = LayoutSpace()
        return {
            item.name: getattr(self, item.name)
            for item in fields(self)
            if getattr(self, item.name) != getattr(free, item.name)
        }

    @property
    def words(self) -> str:
        """What is pinned, such as "tensor 8 and zero stage 0 or 1"; empty where nothing is."""
        each = {
            name: values if isinstance(values, tuple) else (values,)
            for name, values in self.pinned.items()
        }
        return " and ".join(
            f"{name.replace('virtual_stages', 'chunks').replace('_', ' ')} "
            f"{' or '.join(map(str, each[name]))}"
            for name in each
        )

    def freed(self, axis: str) -> "LayoutSpace":
        """Return the space with one axis free.

        Args:
            axis: name of a field.

        Returns:
            The wider space.
        """
        return replace(self, **{axis: getattr(LayoutSpace(), axis)})


@dataclass(frozen=True, kw_only=True)
class _LayoutJob:
    """What the candidates are for."""

    arch: Architecture
    machine: Machine
    global_batch: int
    sequence_length: int
    space: LayoutSpace

    def is_free(self, *axes: str) -> bool:
        """Return whether no axis is set to a single value: then what never wins is left out."""
        return all(len(getattr(self.space, name)) != 1 for name in axes)


def layout_columns(
    arch: Architecture,
    machine: Machine,
    *,
    counts: list[int],
    global_batch: int,
    sequence_length: int,
    space: LayoutSpace,
) -> Columns:
    """List every layout of a space, axis by axis, and drop what does not go together at once.

    Args:
        arch: model that is trained.
        machine: accelerator with its links.
        counts: numbers of accelerators.
        global_batch: target sequences per step; a layout may deviate by at most a quarter.
        sequence_length: tokens per sequence.
        space: what each axis may be.

    Returns:
        Arrays [candidates] by field of `cost.layout.Layout`, with "micro_batch" and "accumulation".
    """
    job = _LayoutJob(
        arch=arch,
        machine=machine,
        global_batch=global_batch,
        sequence_length=sequence_length,
        space=space,
    )
    columns: Columns = {"count": np.array(counts, dtype=np.int64)}
    for widened in (_degrees, _batches, _stages, _experts, _shards, _policies):
        columns = widened(columns, job)
    columns = _kept(columns, runs_on(space.engine, arch, columns))
    del columns["count"]
    # A column of one value stays one: the cost model then evaluates it once.
    return {
        name: np.broadcast_to(column[:1], column.shape)
        if column.size and (column == column[0]).all()
        else column
        for name, column in columns.items()
    }


def _crossed(columns: Columns, **options: Any) -> Columns:
    """Return every row with each of the options, which are lists of one length."""
    each = {name: np.asarray(values, dtype=np.int64) for name, values in options.items()}
    size, rows = len(next(iter(each.values()))), len(next(iter(columns.values())))
    wide = {name: np.repeat(column, size) for name, column in columns.items()}
    return wide | {name: np.tile(values, rows) for name, values in each.items()}


def _kept(columns: Columns, *rules: Any) -> Columns:
    """Return the rows that keep all rules."""
    mask = np.logical_and.reduce([np.broadcast_to(rule, len(columns["count"])) for rule in rules])
    return {name: column[mask] for name, column in columns.items()}


def _degrees(columns: Columns, job: _LayoutJob) -> Columns:
    """Split the accelerators over tensor, pipeline, context and data groups."""
    arch, space, inside = job.arch, job.space, job.machine.accelerators_per_node
    found = _crossed(columns, tensor=space.tensor or _TENSOR)
    tensor = found["tensor"]
    # Tensor groups stay within a node: their traffic is too much for the network.
    within = not job.is_free("tensor") or (tensor <= inside) & (inside % tensor == 0)
    found = _kept(found, found["count"] % tensor == 0, arch.num_heads % tensor == 0, within)
    deepest = min(arch.num_layers, MAX_PIPELINE)
    found = _crossed(found, pipeline=space.pipeline or range(1, deepest + 1))
    stages = found["pipeline"]
    found = _kept(
        found,
        found["count"] // found["tensor"] % stages == 0,
        stages <= arch.num_layers,
        _end_layers(arch.num_layers, stages) <= np.where(stages > 1, _ENDS, 0),
    )
    parts = [2**power for power in range(MAX_CONTEXT.bit_length())]
    found = _crossed(found, context=space.context or parts)
    context, rest = found["context"], found["count"] // found["tensor"] // found["pipeline"]
    # Each part is cut in two, so that early and late tokens share the causal work out evenly.
    even = job.sequence_length % (2 * context * found["tensor"]) == 0
    long = not job.is_free("context") or job.sequence_length >= MIN_PART_TOKENS * context
    found = _kept(found, rest % context == 0, (context == 1) | (even & long))
    found["data"] = found["count"] // found["tensor"] // found["pipeline"] // found["context"]
    return _kept(found, np.isin(found["data"], space.data) if space.data else True)


def _end_layers(num_layers: int, pieces: Array) -> Array:
    """Return how many layers fewer than evenly the pieces hold."""
    return -num_layers % pieces


def _batches(columns: Columns, job: _LayoutJob) -> Columns:
    """Choose micro-batches and their number, within a quarter of the wanted batch."""
    found = _crossed(columns, micro_batch=job.space.micro_batch or MICRO_BATCHES)
    at_once = found["data"] * found["micro_batch"]
    steps = np.rint(job.global_batch / at_once).astype(np.int64)
    share = steps * at_once / job.global_batch
    found["accumulation"] = steps
    # Two parts of two sequences are two whole sequences without traffic between them.
    whole = (found["micro_batch"] == 1) | (found["context"] == 1)
    if not job.is_free("micro_batch", "context", "data"):
        whole = np.True_
    return _kept(found, steps >= 1, share >= 0.75, share <= 1.25, whole)


def _stages(columns: Columns, job: _LayoutJob) -> Columns:
    """Choose chunks of layers and the order of a pipeline's passes."""
    layers, space = job.arch.num_layers, job.space
    ends = range(_ENDS + 1)
    chunks = space.virtual_stages or [
        size for size in range(1, layers + 1) if any((layers + end) % size == 0 for end in ends)
    ]
    orders = [SCHEDULES.index(word) for word in space.schedule or ("1f1b", "zero-bubble")]
    pairs = [(piece, order) for order in orders for piece in chunks if piece == 1 or order == 0]
    found = _crossed(
        columns,
        virtual_stages=[piece for piece, _ in pairs],
        schedule=[order for _, order in pairs],
    )
    pieces, order, stages = found["virtual_stages"], found["schedule"], found["pipeline"]
    steps = found["accumulation"]
    missing = _end_layers(layers, stages * pieces)
    found = _kept(
        found,
        (stages > 1) | ((pieces == 1) & (order == orders[0])),
        stages * pieces <= layers + _ENDS,
        # Chunks that lack layers do so where stages have to: at both ends.
        (pieces == 1) | (missing == _end_layers(layers, stages)),
        # Interleaving takes micro-batches in rounds of as many as there are ranks
        # (arXiv 2104.04473, section 2.2.2).
        (pieces == 1) | (steps % stages == 0),
        # Weight gradients fill the bubble where there are enough micro-batches that have some.
        (order != SCHEDULES.index("zero-bubble")) | (steps >= stages) | (stages == 1),
    )
    # A single stage has no order.
    found["schedule"] = np.where(found["pipeline"] > 1, found["schedule"], 0)
    return found


def _experts(columns: Columns, job: _LayoutJob) -> Columns:
    """Choose groups that share out whole experts; 1 splits each over the tensor group."""
    total = job.arch.num_experts
    divisors = [size for size in range(1, total + 1) if total % size == 0] or [1]
    found = _crossed(columns, expert=job.space.expert or divisors)
    group, tensor = found["expert"], found["tensor"]
    stage = tensor * found["context"] * found["data"]
    width = job.arch.moe_intermediate_size if total else 0
    return _kept(
        found,
        (group == 1) | ((total > 0) & (max(total, 1) % group == 0)),
        stage % group == 0,
        (group % tensor == 0) | (tensor % group == 0),
        (group > 1) | (width % tensor == 0),
    )


def _shards(columns: Columns, job: _LayoutJob) -> Columns:
    """Choose what replicas shard, and over groups that end where a level of links does."""
    levels = job.machine.topology.sizes[:-1] if job.space.shard_groups != "all" else ()
    every = len(levels) + 1
    stages = job.space.zero_stage or range(4)
    rows = [
        (stage, *codes)
        for stage in stages
        for codes in _groups(stage, every, job.space.shard_groups == "per-state")
    ]
    codes = {name: [row[place + 1] for row in rows] for place, name in enumerate(_STATES)}
    found = _crossed(columns, zero_stage=[row[0] for row in rows], **codes)
    stage, replicas = found["zero_stage"], found["data"] * found["context"]
    rules: list[Any] = [(replicas > 1) | (stage == 0)]
    if job.is_free("zero_stage"):
        # Gradients or weights under a pipeline would be reduced or gathered per micro-batch.
        rules.append((found["pipeline"] == 1) | (stage < 2))
    ends = np.array([0, *levels, 0])
    for name in _STATES:
        code = found[name]
        size = np.where((code > 0) & (code < every), ends[code] // found["tensor"], 0)
        inner = (size > 1) & (size < replicas) & (replicas % np.maximum(size, 1) == 0)
        rules.append((code == 0) | (code == every) | (inner & (ends[code] % found["tensor"] == 0)))
        if name == "weight_shards":
            rules.append((code != every) | (replicas <= MAX_SHARDED_REPLICAS))
        found[name] = size
    return _kept(found, *rules)


_STATES = ("weight_shards", "gradient_shards", "optimizer_shards")


def _groups(stage: int, every: int, per_state: bool) -> list[tuple[int, int, int]]:
    """List groups of weights, gradients and optimizer states, each as the place of a level.

    0 stands for every replica on its own, `every` for all replicas as one group.
    """
    sharded = [stage >= 3, stage >= 2, stage >= 1]
    if not per_state:
        sizes = range(1, every + 1) if stage else (0,)
        return [(size * sharded[0], size * sharded[1], size * sharded[2]) for size in sizes]
    weights, gradients, optimizer = (range(1, every + 1) if item else (0,) for item in sharded)
    # What moves more often is shared by no larger group.
    return [
        (first, second, third)
        for first in weights
        for second in gradients
        for third in optimizer
        if first <= second <= third
    ]


def _policies(columns: Columns, job: _LayoutJob) -> Columns:
    """Choose recomputation, sequence parallelism and offloading."""
    space, machine = job.space, job.machine
    words = space.recompute or ("none", "full")
    if machine.trainer_process_bytes:
        words = ("none",)  # this package's own trainer keeps every activation
    found = _crossed(columns, recompute=[RECOMPUTE.index(word) for word in words])
    found = _crossed(found, sequence_parallel=space.sequence_parallel or (True, False))
    tensor, split = found["tensor"], found["sequence_parallel"] == 1
    even = (tensor > 1) & (job.sequence_length // found["context"] % tensor == 0)
    best = split == even if job.is_free("sequence_parallel") else ~split | even
    lone = {*space.sequence_parallel} == {True}
    found = _kept(found, best | (lone & (tensor == 1)))
    found["sequence_parallel"] = found["sequence_parallel"] * (found["tensor"] > 1)
    for name in ("offload_optimizer", "offload_activations"):
        found = _crossed(found, **{name: getattr(space, name)})
    moved = (found["offload_optimizer"] | found["offload_activations"]) > 0
    # What is timed are the inputs of layers: all else has to be recomputed.
    full = found["recompute"] == RECOMPUTE.index("full")
    return _kept(
        found,
        ~moved | (machine.host_link_bytes_per_s > 0),
        (found["offload_activations"] == 0) | full,
    )

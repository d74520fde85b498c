"""The step of a decoder on a cluster, simulated: each overlap is a switch."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.parameters import count_parameters
from steelyard.cost.collectives import group_bandwidth
from steelyard.cost.flops import model_flops_per_token
from steelyard.cost.layout import Layout
from steelyard.cost.memory import activation_bytes_per_layer
from steelyard.cost.operators import OperatorTable, operators
from steelyard.cost.roofline import Machine, operator_times_s
from steelyard.errors import ConfigError, require
from steelyard.sim.step.layers import Segment, layer_time_s, transposed
from steelyard.sim.step.replica import SCHEDULES, ReplicaTasks, replica_tasks
from steelyard.sim.step.stages import StageTimes
from steelyard.sim.step.stragglers import Stragglers
from steelyard.sim.step.timeline import Array, StepTimeline
from steelyard.sim.taskgraph.lowering import StepOverlap
from steelyard.sim.taskgraph.tasks import TaskGraph

__all__ = ["Links", "TrainingStep"]

_LEADING = ("qkv", "gate", "query_down", "query_up", "latent_down", "latent_up", "mlp_up")
"""Products that read what is gathered over the tensor-parallel group."""
_TRAILING = ("output", "mlp_down")
"""Products whose results are summed over the group."""
_SECOND = ("mlp_norm", "mlp_residual")
"""What a block in parallel does without."""
_ENDS = ("embedding", "final_norm", "head", "loss")


@dataclass(frozen=True, kw_only=True, slots=True)
class Links:
    """Bytes per second that one accelerator reaches in each kind of traffic, one way.

    Attributes:
        tensor_bytes_per_s: collectives of the tensor-parallel group.
        pipeline_bytes_per_s: transfers to the next stage.
        data_bytes_per_s: collectives of the replicas.
    """

    tensor_bytes_per_s: float
    pipeline_bytes_per_s: float
    data_bytes_per_s: float

    @classmethod
    def of(cls, machine: Machine, *, tensor: int, data: int, pipeline: int) -> "Links":
        """Return what a machine's links give to groups placed tensor first, pipeline last."""
        rates = (
            group_bandwidth(machine, tensor),
            group_bandwidth(machine, pipeline, tensor * data),
            group_bandwidth(machine, data, tensor),
        )
        return cls(**dict(zip(cls.__slots__, map(float, rates), strict=True)))


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingStep:
    """One optimizer step of a dense decoder, as one pipeline replica runs it.

    All replicas and all members of a tensor-parallel group do the same, so that one replica's ranks
    stand for `tensor` x `pipeline` x `data` accelerators.

    Attributes:
        arch: architecture that is trained.
        machine: accelerator.
        sequence_length: tokens per sequence.
        micro_batch: sequences per micro-batch.
        num_micro_batches: micro-batches per step and replica.
        tensor: accelerators a layer is split over, with sequence parallelism.
        pipeline: ranks of the pipeline.
        data: replicas, which share optimizer states.
        num_chunks: stages per rank.
        schedule: "1f1b" (interleaved with several chunks), "gpipe" or "zero-bubble".
        overlap: what communicates beside the kernels.
        tensor_chunks: pieces in which products and their tensor-parallel traffic overlap, 1 for not
            at all.
        contention: seconds by which kernels lengthen for each second of traffic beside them, which
            takes multiprocessors and memory bandwidth.
        parallel_block: attention and MLP read the same norm, so that a layer gathers and scatters
            once instead of twice, and has one norm and one residual fewer.
        recompute: whether the backward pass runs the forward pass again.
        load_s: seconds of reading a step's data.
        links: rates of the traffic; the machine's when not given.

    Source: Jiang et al. 2024, arXiv 2402.15627, section 3.
    """

    arch: Architecture
    machine: Machine
    sequence_length: int
    micro_batch: int = 1
    num_micro_batches: int = 1
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    num_chunks: int = 1
    schedule: str = "1f1b"
    overlap: StepOverlap = field(default_factory=StepOverlap)
    tensor_chunks: int = 1
    contention: float = 0.0
    parallel_block: bool = False
    recompute: bool = False
    load_s: float = 0.0
    links: Links | None = None

    def __post_init__(self) -> None:
        sizes = ("sequence_length", "micro_batch", "num_micro_batches", "tensor", "pipeline")
        sizes += ("data", "num_chunks", "tensor_chunks")
        shares = dict.fromkeys(("contention", "load_s"), "0 or more")
        require(
            self,
            **{name: (getattr(self, name) >= 1, "at least 1") for name in sizes},
            **{name: (getattr(self, name) >= 0, allowed) for name, allowed in shares.items()},
        )
        if self.arch.kind != "decoder" or self.arch.num_experts:
            raise ConfigError(
                f"{self.arch.name} is no dense decoder, and only their steps are simulated",
                hint="choose a dense decoder, such as gpt3-175b",
            )
        if self.arch.num_heads % self.tensor:
            raise ConfigError(
                f"{self.arch.num_heads} heads do not divide by {self.tensor} tensor-parallel "
                "accelerators",
                hint="choose a divisor of the heads",
            )
        stages = self.pipeline * self.num_chunks
        if self.arch.num_layers % stages:
            raise ConfigError(
                f"{self.arch.num_layers} layers do not divide by {stages} stages",
                hint="choose ranks x chunks among the divisors of the layers",
            )
        if self.schedule not in SCHEDULES or (self.schedule != "1f1b" and self.num_chunks > 1):
            raise ConfigError(
                f"schedule {self.schedule!r} with {self.num_chunks} chunks per rank is not known",
                hint=f"{', '.join(SCHEDULES)}; several chunks with 1f1b alone",
            )

    @property
    def num_accelerators(self) -> int:
        """Accelerators that the step stands for."""
        return self.tensor * self.pipeline * self.data

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.sequence_length * self.micro_batch * self.num_micro_batches * self.data

    def mfu(self, time_s: float) -> float:
        """Return the MFU of a step that takes so long; what windows skip is not counted.

        Args:
            time_s: seconds of the step.

        Returns:
            Share of the peak of all accelerators.
        """
        work = model_flops_per_token(self.arch, self.sequence_length, windows=True)
        return self.tokens * work / (time_s * self.num_accelerators * self.machine.peak_flops_per_s)

    def graph(self) -> TaskGraph:
        """Return the tasks of one replica."""
        return self._tasks().ordered.graph

    def simulate(self) -> StepTimeline:
        """Return when each task of a replica runs."""
        ordered = self._tasks().ordered
        start, finish = ordered.times(self.durations_s()[:, None])
        return StepTimeline(ordered.graph, start[:, 0], finish[:, 0])

    def durations_s(self) -> Array:
        """Return the seconds of each task of `graph`, kernels slowed by the traffic beside them."""
        tasks = self._tasks()
        alone = self.times().durations_s(tasks.ordered.graph)
        return alone + self.contention * tasks.beside.seconds(alone)

    def straggling_s(self, slowdown: Array) -> float:
        """Return the seconds of a step in which some ranks are slow.

        Args:
            slowdown: [replicas, pipeline] factors of the kernels' time, 1 for none; a
                tensor-parallel group is as slow as its slowest member. Replicas that are alike need
                to be there only once.

        Returns:
            Seconds until the last replica has ended.
        """
        tasks = self._tasks()
        unlike = np.unique(np.asarray(slowdown, dtype=float), axis=0)
        factors = np.where(tasks.is_kernel[:, None], unlike.T[tasks.device], 1.0)
        return float(tasks.ordered.times(self.durations_s()[:, None] * factors)[1].max())

    def mean_straggling_s(self, stragglers: Stragglers) -> float:
        """Return the mean seconds of a step on a cluster that has slow machines somewhere.

        Args:
            stragglers: how many, and how slow.

        Returns:
            Mean over the draws; replicas wait for the slowest of them.
        """
        drawn = stragglers.patterns(
            tensor=self.tensor,
            data=self.data,
            pipeline=self.pipeline,
            per_machine=self.machine.accelerators_per_node,
        )
        return sum(share * self.straggling_s(pattern) for pattern, share in drawn)

    def _tasks(self) -> ReplicaTasks:
        """Return the tasks of one replica with their order."""
        return replica_tasks(
            self.schedule,
            self.pipeline,
            self.num_micro_batches,
            self.num_chunks,
            self.overlap,
            self.data > 1,
        )

    def times(self) -> StageTimes:
        """Return the seconds and bytes of each stage's tasks."""
        stages = self.pipeline * self.num_chunks
        links = self.links or Links.of(
            self.machine, tensor=self.tensor, data=self.data, pipeline=self.pipeline
        )
        layers = self.arch.num_layers / stages
        forward_s, backward_s, weight_s = (layers * item for item in self._layer_s(links))
        ends = np.eye(stages)[-1]
        ends_s, ends_backward_s = self._ends_s()
        # The products of both gradients are alike; what is no product belongs to the inputs'.
        again_s = forward_s if self.recompute else 0.0
        weights = self._weights(stages)
        share = (self.data - 1) / self.data * self.machine.dtype_bytes / links.data_bytes_per_s
        tokens = self.micro_batch * self.sequence_length
        hidden = self.machine.dtype_bytes * tokens * self.arch.hidden_size / self.tensor
        kept = activation_bytes_per_layer(
            self.arch,
            batch=self.micro_batch,
            sequence_length=self.sequence_length,
            layout=Layout(
                tensor=self.tensor,
                sequence_parallel=True,
                recompute="full" if self.recompute else "none",
            ),
        )
        return StageTimes(
            forward_s=forward_s + ends * ends_s,
            backward_input_s=backward_s - weight_s + again_s + ends * ends_backward_s,
            backward_weight_s=np.full(stages, weight_s),
            transfer_s=hidden / links.pipeline_bytes_per_s if self.pipeline > 1 else 0.0,
            gather_s=weights * share,
            scatter_s=weights * share,
            update_s=self._update_s(float(weights.sum())),
            load_s=self.load_s,
            activation_bytes=np.full(stages, layers * float(kept)),
            gradient_bytes=layers * hidden,
        )

    def _table(self) -> tuple[OperatorTable, Array]:
        """List the operators of a micro-batch through the whole model, and their seconds."""
        table = operators(
            self.arch,
            phase="train",
            tokens=self.sequence_length,
            batch=self.micro_batch,
            dtype_bytes=self.machine.dtype_bytes,
            tensor_parallel=self.tensor,
            sequence_parallel=True,
            fused=self.machine.fused,
        )
        return table, table.count * operator_times_s(table, self.machine)

    def _layer_s(self, links: Links) -> tuple[float, float, float]:
        """Time a layer: its forward pass, its backward pass, and its weights' gradients."""
        table, seconds = self._table()
        per_layer = dict(zip(table.names, seconds / self.arch.num_layers, strict=True))
        size = self.machine.dtype_bytes * self.micro_batch * self.sequence_length
        sent = size * self.arch.hidden_size * (self.tensor - 1) / self.tensor
        transfer_s = sent / links.tensor_bytes_per_s
        segments, factors = _segments(per_layer, transfer_s, is_parallel=self.parallel_block)
        how: dict[str, Any] = {"num_chunks": self.tensor_chunks, "contention": self.contention}
        weights = [value for name, value in per_layer.items() if _is_weight_gradient(name)]
        return (
            layer_time_s(segments, **how),
            layer_time_s(transposed(segments, factors), **how),
            float(sum(weights)),
        )

    def _ends_s(self) -> tuple[float, float]:
        """Time the head and the loss, forward and backward; the embedding takes next to nothing."""
        table, seconds = self._table()
        found = {True: 0.0, False: 0.0}
        for name, value in zip(table.names, seconds, strict=True):
            if _base(name) in _ENDS:
                found[name == _base(name)] += float(value)
        return found[True], found[False]

    def _weights(self, stages: int) -> Array:
        """Count the weights of each stage that one accelerator holds, [S]."""
        count = count_parameters(self.arch)
        found = np.full(stages, count.non_embedding / stages)
        found[0] += count.embedding
        # A head that is tied to the embedding lies on the last stage a second time.
        found[-1] += (count.head or count.embedding) if stages > 1 else count.head
        return found / self.tensor

    def _update_s(self, weights: float) -> float:
        """Time one rank's share of the update: weights and two moments read and written in fp32."""
        passes, width = 7, 4.0
        own = weights / self.pipeline / self.data
        return passes * width * own / self.machine.memory_bytes_per_s


def _base(name: str) -> str:
    """Return the operator of the forward pass that one of the backward pass belongs to."""
    return name.partition(".")[0]


def _is_weight_gradient(name: str) -> bool:
    return name.endswith(".grad_weight") and _base(name) not in _ENDS


def _segments(
    per_layer: dict[str, float], transfer_s: float, *, is_parallel: bool
) -> tuple[list[Segment], list[float]]:
    """Cut a layer into segments with their traffic, and say how much longer each is backward."""
    forward = [name for name in per_layer if name == _base(name) and name not in _ENDS]
    groups: list[tuple[str, list[str]]] = []
    for name in forward:
        kind = "gather" if name in _LEADING else "scatter" if name in _TRAILING else "plain"
        if groups and groups[-1][0] == kind:
            groups[-1][1].append(name)
        else:
            groups.append((kind, [name]))
    if is_parallel:
        # Both halves read one norm: what leads them is one product, and what ends them another. The
        # second norm and the second residual are not there.
        per_layer = {name: per_layer[name] for name in per_layer if _base(name) not in _SECOND}
        groups = [(kind, [name for name in names if name in per_layer]) for kind, names in groups]
        merged = {
            kind: [name for item, names in groups if item == kind for name in names]
            for kind in ("gather", "plain", "scatter")
        }
        groups = list(merged.items())
    segments, factors = [], []
    for kind, names in groups:
        once = sum(per_layer[name] for name in names)
        whole = sum(value for name, value in per_layer.items() if _base(name) in names)
        moved_s = 0.0 if kind == "plain" else transfer_s
        segments.append(Segment(kind=kind, compute_s=once, transfer_s=moved_s))  # pyright: ignore[reportArgumentType]
        factors.append(whole / once - 1 if once else 0.0)
    return segments, factors

"""A machine as a roofline: rates of products, memory, links and launches, measured or published."""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.catalog.calibration import Calibration
from steelyard.catalog.engine_rates import EngineRates
from steelyard.catalog.hardware import Accelerator, Cluster, Level
from steelyard.cost.efficiency import Efficiencies, MatmulCurve
from steelyard.cost.operators import OperatorTable
from steelyard.cost.topology import Topology, node_and_network
from steelyard.errors import CatalogError
from steelyard.quantity import Provenance

__all__ = [
    "Machine",
    "OperatorTimes",
    "operator_parts",
    "operator_times_s",
    "roofline_time_s",
]

Array = NDArray[np.float64]
ENGINE_PROCESS_BYTES, TRAINER_PROCESS_BYTES = 380e6, 335e6
"""What processes of the engine and the trainer hold without a model where that was not measured:
torch 2.13 for CPUs on x86-64 Linux, of which 0.1 to 0.17 GB are mapped libraries."""
_CALIBRATED_RELATIVE = 0.2
"""Half-width of a time's interval on a machine that was calibrated while nothing else ran."""

_WIDE = {"fp64": 8.0, "fp32": 4.0, "tf32": 4.0}
DTYPE_BYTES = _WIDE | {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """One accelerator with its place in a cluster, as the roofline sees it.

    Attributes:
        name: name of the accelerator.
        dtype: number format of the matrix products.
        peak_flops_per_s: dense peak of the dtype, the denominator of MFU; the best measured rate
            when calibrated.
        memory_bytes: capacity of the memory.
        memory_bytes_per_s: bandwidth beyond the caches, as reached.
        cache_bytes: largest working set that moves at `cache_bytes_per_s`; 0 for no such tier.
        cache_bytes_per_s: bandwidth within the caches.
        elementwise_bytes_per_s: rate that separate norms, activations and softmaxes reach; 0 where
            bandwidth alone binds them.
        scale_up_bytes_per_s: one-way bandwidth to a peer in the node, 0 for none.
        injection_bytes_per_s: one-way network bandwidth of a whole node, 0 for none.
        accelerators_per_node: accelerators that share the node's network.
        num_nodes: nodes of the cluster.
        levels: levels of links where there are more than a node and a network.
        host_link_bytes_per_s: one-way bandwidth to host memory, 0 when unknown.
        efficiencies: fractions applied to compute and links; memory bandwidths above already carry
            theirs.
        curve: measured matmul rates, None for a published machine.
        fused: whether kernels are fused (GPU stacks) or eager (CPU).
        disturbance: relative error that noise and other work left in measured rates, 0 for
            published ones.
        engine_process_bytes: what a process of this package's engine holds without a model; 0 where
            something else than this package runs, as on published machines.
        trainer_process_bytes: what a process of its trainer holds without a model, likewise.
        engine: rates of this package's engine, None where they were not measured.
        provenance: measured for a calibrated machine, else assumed.
        source: record and efficiencies it was made from.
    """

    name: str
    dtype: str
    peak_flops_per_s: float
    memory_bytes: float
    memory_bytes_per_s: float
    cache_bytes: float = 0.0
    cache_bytes_per_s: float = 0.0
    elementwise_bytes_per_s: float = 0.0
    scale_up_bytes_per_s: float = 0.0
    injection_bytes_per_s: float = 0.0
    accelerators_per_node: int = 1
    num_nodes: int = 1
    levels: tuple[Level, ...] = ()
    host_link_bytes_per_s: float = 0.0
    efficiencies: Efficiencies = field(default_factory=Efficiencies)
    curve: MatmulCurve | None = None
    fused: bool = True
    disturbance: float = 0.0
    engine_process_bytes: float = 0.0
    trainer_process_bytes: float = 0.0
    engine: EngineRates | None = None
    provenance: Provenance = "assumed"
    source: str = ""

    @classmethod
    def from_accelerator(
        cls,
        accelerator: Accelerator,
        *,
        dtype: str = "bf16",
        cluster: Cluster | None = None,
        efficiencies: Efficiencies | None = None,
    ) -> "Machine":
        """Make a machine from published peaks times assumed efficiencies.

        Args:
            accelerator: record with a peak for the dtype; fp16 and bf16 stand in for each other.
            dtype: number format of the matrix products.
            cluster: node size and network; a lone accelerator has none.
            efficiencies: fractions of the peaks that are reached; the typical ones when not given.

        Returns:
            The machine, with provenance "assumed".

        Raises:
            CatalogError: no peak for the dtype, or no memory bandwidth.
        """
        peaks = accelerator.peak_flops_per_s
        twins = (dtype, "fp16", "bf16") if dtype in ("bf16", "fp16") else (dtype,)
        peak = next((peaks[name] for name in twins if peaks.get(name)), 0.0)
        if not peak:
            known = ", ".join(sorted(peaks)) or "none"
            raise CatalogError(
                f"{accelerator.name} has no published {dtype} peak",
                hint=f"choose one of its dtypes: {known}",
            )
        chosen = efficiencies or Efficiencies.typical(peak)
        if not accelerator.memory_bytes_per_s:
            raise CatalogError(
                f"{accelerator.name} lacks memory_bytes_per_s",
                hint="add it to a record in the user catalog",
            )
        return cls(
            name=accelerator.name,
            dtype=dtype,
            peak_flops_per_s=float(peak),
            memory_bytes=accelerator.memory_bytes,
            memory_bytes_per_s=accelerator.memory_bytes_per_s * chosen.memory,
            scale_up_bytes_per_s=(cluster.scale_up_bytes_per_s if cluster else 0.0)
            or accelerator.scale_up_bytes_per_s,
            injection_bytes_per_s=cluster.injection_bytes_per_s if cluster else 0.0,
            accelerators_per_node=cluster.accelerators_per_node if cluster else 1,
            num_nodes=cluster.num_nodes if cluster else 1,
            levels=cluster.levels if cluster else (),
            host_link_bytes_per_s=accelerator.host_link_bytes_per_s,
            efficiencies=chosen,
            source=f"{accelerator.name} peaks x assumed efficiencies: matmul {chosen.matmul:g}, "
            f"memory {chosen.memory:g}, link {chosen.link:g}",
        )

    @classmethod
    def from_calibration(
        cls, calibration: Calibration, dtype: str = "fp32", *, cache_bytes: float = 16e6
    ) -> "Machine":
        """Make a machine from what `steelyard calibrate` measured.

        Args:
            calibration: measured rates.
            dtype: number format of the matrix products; must have been measured.
            cache_bytes: size of the last-level cache this process may fill.

        Returns:
            The machine, with provenance "measured".

        Raises:
            CatalogError: no matrix product of the dtype was measured.
        """
        points = [point for point in calibration.matmul if point.dtype == dtype]
        if not points:
            known = ", ".join(sorted({point.dtype for point in calibration.matmul})) or "none"
            raise CatalogError(
                f"{calibration.machine}: no {dtype} matrix product was measured",
                hint=f"measured dtypes: {known}",
            )
        sizes = np.log(np.array([(point.m, point.n, point.k) for point in points], dtype=float))
        curve = MatmulCurve(sizes, np.array([point.flops_per_s for point in points]))
        best = calibration.best_flops_per_s(dtype)
        attention = calibration.attention_flops_per_s / best or 0.5
        is_cpu = calibration.device == "cpu"
        # Efficiencies of links and sizes are 1: the measured rates already are what is reached.
        return cls(
            name=calibration.machine,
            dtype=dtype,
            peak_flops_per_s=best,
            memory_bytes=calibration.memory_bytes,
            memory_bytes_per_s=calibration.stream_bytes_per_s,
            cache_bytes=cache_bytes,
            cache_bytes_per_s=calibration.cache_bytes_per_s,
            elementwise_bytes_per_s=calibration.elementwise_bytes_per_s if is_cpu else 0.0,
            injection_bytes_per_s=calibration.link_bytes_per_s,
            host_link_bytes_per_s=calibration.stream_bytes_per_s,
            efficiencies=Efficiencies(
                attention=attention, launch_s=calibration.launch_s, tile=0.0, link=1.0
            ),
            curve=curve,
            fused=not is_cpu,
            disturbance=calibration.disturbance,
            engine_process_bytes=is_cpu
            * (calibration.engine_process_bytes or ENGINE_PROCESS_BYTES),
            trainer_process_bytes=is_cpu
            * (calibration.trainer_process_bytes or TRAINER_PROCESS_BYTES),
            engine=calibration.engine,
            provenance="measured",
            source=f"calibration of {calibration.machine} ({calibration.description})",
        )

    @property
    def calibrated_relative(self) -> float:
        """Relative half-width of the interval of a time on a measured machine.

        What disturbed the calibration widens it. On a published machine it depends on what takes
        the time: `plan.intervals`.
        """
        return math.hypot(_CALIBRATED_RELATIVE, self.disturbance)

    @property
    def topology(self) -> Topology:
        """Links from this accelerator outward, at the rates that large transfers reach."""
        levels = self.levels or node_and_network(
            per_node=self.accelerators_per_node,
            num_nodes=self.num_nodes,
            scale_up_bytes_per_s=self.scale_up_bytes_per_s,
            injection_bytes_per_s=self.injection_bytes_per_s,
            host_bytes_per_s=self.host_link_bytes_per_s,
        )
        return Topology(levels, self.efficiencies.link, self.host_link_bytes_per_s)

    @property
    def dtype_bytes(self) -> float:
        """Bytes of one element of the dtype."""
        return DTYPE_BYTES[self.dtype]

    def matmul_rate(self, m: ArrayLike, n: ArrayLike, k: ArrayLike) -> Array:
        """Return the FLOP/s that a matrix product of these sizes reaches."""
        if self.curve is not None:
            return self.curve.rate(m, n, k)
        tile = self.efficiencies.tile
        sizes = [np.maximum(np.asarray(item, dtype=float), 1.0) for item in (m, n, k)]
        reached = np.prod(np.broadcast_arrays(*(item / (item + tile) for item in sizes)), axis=0)
        return self.peak_flops_per_s * self.efficiencies.matmul * reached

    def bandwidth(self, working_set_bytes: ArrayLike) -> Array:
        """Return the bytes per second of traffic over a working set of this size."""
        size = np.asarray(working_set_bytes, dtype=float)
        if not self.cache_bytes:
            return np.full(size.shape, self.memory_bytes_per_s)
        return np.where(
            size <= self.cache_bytes,
            max(self.cache_bytes_per_s, self.memory_bytes_per_s),
            self.memory_bytes_per_s,
        )


@dataclass(frozen=True, slots=True)
class OperatorTimes:
    """What each operator waits for, once; arrays [operators, *layouts].

    Attributes:
        compute_s: time of its FLOPs.
        memory_s: time of its memory traffic.
        launch_s: time of its launches, which neither hides.
    """

    compute_s: Array
    memory_s: Array
    launch_s: Array

    @property
    def total_s(self) -> Array:
        """Slower of compute and memory traffic, plus the launches."""
        return np.maximum(self.compute_s, self.memory_s) + self.launch_s


def operator_parts(table: OperatorTable, machine: Machine) -> OperatorTimes:
    """Time what each operator computes and moves once.

    Elementwise operators move their data at the rate measured for them, where it was. Weights
    stream from memory when all of a pass's weights exceed the cache, whatever one operator's share.
    Communication is not included; `step` adds what cannot overlap.

    Args:
        table: operators of a pass.
        machine: accelerator they run on.

    Returns:
        Seconds of compute, of memory traffic and of launches.

    Source: Williams et al. 2009 (roofline).
    """
    matmul, attention = (_spread(table.mask(kind), table) for kind in ("matmul", "attention"))
    rate = machine.matmul_rate(table.m, table.n, table.k)
    rate = np.where(attention, machine.peak_flops_per_s * machine.efficiencies.attention, rate)
    compute = np.where(matmul | attention, table.flops / rate, 0.0)
    # A weight is read once per pass: by the next pass all others have pushed it out of the cache,
    # unless they fit together.
    weights_set = np.maximum(table.total("weight_bytes"), table.bytes_moved)
    activations = table.bytes_moved - table.weight_bytes
    reached = machine.bandwidth(activations)
    if machine.elementwise_bytes_per_s:
        reached = np.where(
            _spread(table.mask("memory"), table), machine.elementwise_bytes_per_s, reached
        )
    memory = table.weight_bytes / machine.bandwidth(weights_set) + activations / reached
    return OperatorTimes(compute, memory, table.launches * machine.efficiencies.launch_s)


def operator_times_s(table: OperatorTable, machine: Machine) -> Array:
    """Time each operator once, as `operator_parts` says.

    Args:
        table: operators of a pass.
        machine: accelerator they run on.

    Returns:
        Seconds, [operators, *layouts].
    """
    return operator_parts(table, machine).total_s


def _spread(mask: NDArray[np.bool_], table: OperatorTable) -> NDArray[np.bool_]:
    """Return a mask over operators the dimensions of the table's columns."""
    return mask.reshape(-1, *(1,) * (table.flops.ndim - 1))


def roofline_time_s(table: OperatorTable, machine: Machine) -> Array:
    """Time one pass without communication; [*layouts]."""
    return (table.count * operator_times_s(table, machine)).sum(axis=0)

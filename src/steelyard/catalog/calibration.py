"""What `steelyard calibrate` measured on one machine: the record that cost models read."""

import math
from dataclasses import dataclass, field

from steelyard.catalog.engine_rates import EngineRates
from steelyard.quantity import Measurement

__all__ = ["Calibration", "MatmulPoint", "RandomReads"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MatmulPoint:
    """Rate of one matrix product [m, k] x [k, n].

    Attributes:
        dtype: "fp32", "bf16" or "fp16".
        m: rows of the product.
        n: columns of the product.
        k: inner size of the product.
        flops_per_s: median rate, 2mnk over the time.
        spread: interquartile range over the median.
    """

    dtype: str
    m: int
    n: int
    k: int
    flops_per_s: float
    spread: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RandomReads:
    """Rate of random reads at one queue depth, page cache bypassed.

    Attributes:
        depth: reads under way at once.
        block_bytes: bytes of a read.
        reads_per_s: median rate of all of them together.
        spread: interquartile range over the median.
    """

    depth: int
    block_bytes: int
    reads_per_s: float
    spread: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Measured facts of one machine.

    Attributes:
        machine: name of the record, "this-machine" by default.
        device: "cpu" or "cuda".
        description: processor and its threads, in words.
        num_threads: threads the matrix products used.
        memory_bytes: memory of the device.
        matmul: rates over dtypes and sizes, small to large.
        stream_bytes_per_s: memory bandwidth beyond the caches, reads plus writes.
        cache_bytes_per_s: bandwidth of a working set inside the last-level cache.
        gather_bytes_per_s: rate of random row gathers.
        disk_read_bytes_per_s: sequential read rate, 0 when it could not be measured.
        disk_write_bytes_per_s: sequential write rate with flush, 0 when it could not be measured.
        disk_direct: whether the disk rates bypassed the page cache.
        random_reads: random reads of the disk over queue depths; none in calibrations of before
            they were measured, and where the page cache cannot be bypassed.
        link_latency_s: one-way time between two processes over loopback TCP.
        link_bytes_per_s: rate between two processes over loopback TCP.
        shared_latency_s: one-way time between two processes over a pipe, 0 when not measured.
        shared_bytes_per_s: rate between two processes through shared memory, 0 when not measured.
        host_link_bytes_per_s: rate from the host's memory to a GPU's, 0 on a CPU.
        launch_s: time to dispatch one small tensor operation.
        noise: median over all probes of interquartile range over median.
        contention: largest share of the time of a probe that other work took, 0 to 1; 0 where the
            system does not tell.
        attention_flops_per_s: rate of fused causal attention, forward and backward, masked pairs
            not counted; 0 when not measured.
        elementwise_bytes_per_s: rate of activation and softmax, forward and backward, reads plus
            writes; 0 when not measured.
        engine_process_bytes: memory that a process of the engine holds without a model, 0 when not
            measured.
        trainer_process_bytes: memory that a process of the trainer holds without a model, 0 when
            not measured.
        engine: rates of the engine's own kernels by number type; None where they do not run, and in
            calibrations that were quick or of before they were measured.
        measurements: the same figures as quantities with spread and count.
        time_s: start of the calibration, seconds since 1970 (UTC).
        duration_s: time the calibration took.
        versions: versions of Python, torch and numpy.
    """

    machine: str = "this-machine"
    device: str = "cpu"
    description: str
    num_threads: int
    memory_bytes: float
    matmul: tuple[MatmulPoint, ...]
    stream_bytes_per_s: float
    cache_bytes_per_s: float
    gather_bytes_per_s: float
    disk_read_bytes_per_s: float
    disk_write_bytes_per_s: float
    link_latency_s: float
    link_bytes_per_s: float
    launch_s: float
    noise: float
    contention: float = 0.0
    attention_flops_per_s: float = 0.0
    elementwise_bytes_per_s: float = 0.0
    engine_process_bytes: float = 0.0
    trainer_process_bytes: float = 0.0
    engine: EngineRates | None = None
    measurements: tuple[Measurement, ...] = ()
    disk_direct: bool = False
    random_reads: tuple[RandomReads, ...] = ()
    shared_latency_s: float = 0.0
    shared_bytes_per_s: float = 0.0
    host_link_bytes_per_s: float = 0.0
    time_s: float = 0.0
    duration_s: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def disturbance(self) -> float:
        """Relative error that noise and other work may have left in the rates."""
        slowed = self.contention / max(1 - self.contention, 0.05)
        return math.hypot(self.noise, slowed)

    def best_flops_per_s(self, dtype: str = "fp32") -> float:
        """Return the largest measured matmul rate of a dtype, 0 when it was not measured."""
        return max(
            (point.flops_per_s for point in self.matmul if point.dtype == dtype), default=0.0
        )

"""The stored calibration of this machine, and the catalog records made of it."""

import time
from pathlib import Path

from steelyard.catalog.calibration import Calibration
from steelyard.catalog.hardware import Accelerator, Cluster
from steelyard.catalog.measured import load_measured, measured_path, store_measured
from steelyard.catalog.storage import StorageTier

__all__ = [
    "THIS_MACHINE",
    "accelerator_of",
    "calibration_path",
    "cluster_of",
    "disk_of",
    "load_calibration",
    "store_calibration",
]

_NAME = "calibration"
THIS_MACHINE = "this-machine"
"""Name of the calibrated machine among accelerators, clusters and storage."""


def calibration_path() -> Path:
    """Return the file that holds the stored calibration."""
    return measured_path(_NAME)


def store_calibration(calibration: Calibration) -> Path:
    """Store a calibration as the one of this machine, replacing an older one.

    Args:
        calibration: result of `calibrate`.

    Returns:
        The file that was written.
    """
    return store_measured(_NAME, calibration)


def load_calibration() -> Calibration | None:
    """Return the stored calibration, or None when this machine was never calibrated.

    Returns:
        The calibration that `store_calibration` wrote last.

    Raises:
        CalibrationError: the stored file is damaged.
    """
    return load_measured(
        _NAME,
        Calibration,
        what="calibration is",
        hint="run `steelyard calibrate` to measure it again",
    )


def accelerator_of(calibration: Calibration) -> Accelerator:
    """Make the accelerator record of a calibrated machine: best measured rates, not peaks.

    Args:
        calibration: measured rates.

    Returns:
        A record with confidence "measured"; TDP and price are unknown (0).
    """
    dtypes = dict.fromkeys(point.dtype for point in calibration.matmul)
    date = time.strftime("%Y-%m-%d", time.gmtime(calibration.time_s))
    return Accelerator(
        name=calibration.machine,
        vendor=calibration.description,
        kind="gpu" if calibration.device == "cuda" else "cpu",
        year=time.gmtime(calibration.time_s).tm_year,
        peak_flops_per_s={dtype: calibration.best_flops_per_s(dtype) for dtype in dtypes},
        memory_bytes=calibration.memory_bytes,
        memory_bytes_per_s=calibration.stream_bytes_per_s,
        host_link_bytes_per_s=calibration.host_link_bytes_per_s,
        confidence="measured",
        source=f"steelyard calibrate on {date}, {calibration.num_threads} threads, noise "
        f"{100 * calibration.noise:.1f} %",
    )


def cluster_of(calibration: Calibration) -> Cluster:
    """Make a cluster of one node and one accelerator of a calibrated machine."""
    record = accelerator_of(calibration)
    return Cluster(
        name=calibration.machine,
        site="here",
        year=record.year,
        num_nodes=1,
        accelerator=record.name,
        accelerators_per_node=1,
        node_memory_bytes=calibration.memory_bytes if calibration.device == "cpu" else 0.0,
        topology="one machine",
        confidence="measured",
        source=record.source,
    )


def disk_of(calibration: Calibration) -> StorageTier:
    """Make the storage tier of a calibrated machine's disk; keeping and reading cost nothing."""
    record = accelerator_of(calibration)
    how = "page cache bypassed" if calibration.disk_direct else "page cache not bypassed"
    reads = calibration.random_reads
    best = max(reads, key=lambda point: point.reads_per_s, default=None)
    return StorageTier(
        name=calibration.machine,
        vendor="disk of this machine",
        region="here",
        schemes=("file",),
        bytes_per_s=calibration.disk_read_bytes_per_s,
        first_byte_s=next((1 / point.reads_per_s for point in reads if point.depth == 1), 0.0),
        reads_per_s=best.reads_per_s if best else 0.0,
        depth=best.depth if best else 0,
        confidence="measured",
        source=f"{record.source}, {how}",
    )

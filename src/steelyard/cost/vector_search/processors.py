"""Stages of a vector search on processors: a CPU that was calibrated, a GPU by its roofline."""

from collections.abc import Mapping

import numpy as np

from steelyard.catalog.hardware import Accelerator
from steelyard.catalog.search_rates import SearchRates
from steelyard.cost.vector_search.options import SearchPoint, StageOptions
from steelyard.cost.vector_search.prediction import stage_seconds
from steelyard.cost.vector_search.work import IndexShape
from steelyard.errors import CatalogError, ConfigError

__all__ = ["CpuStages", "GpuStages", "shape_of"]

_LAUNCH_S = 5e-6
"""Time that a kernel's launch adds; assumed."""
_REACHED = 0.6
"""Share of a GPU's peaks that kernels of one stage reach; assumed."""


def shape_of(point: SearchPoint) -> IndexShape:
    """Return the index of a point.

    Args:
        point: index and query.

    Returns:
        Its sizes.

    Raises:
        ConfigError: codes do not divide the numbers of a vector.
    """
    parts = {"ivf": 0, "ivfpq": point.code_bytes, "fastscan": 2 * point.code_bytes}[point.kind]
    return IndexShape(
        kind=point.kind,
        num_vectors=point.num_vectors,
        dim=point.dim,
        nlist=point.nlist,
        parts=parts,
        rerank=point.rerank,
        rotate=point.opq,
        scan_ratio=point.scan_ratio,
    )


class CpuStages:
    """One query at a time on one thread of the calibrated machine; stages follow each other."""

    resources = ("bytes",)
    is_pipelined = False

    def __init__(self, rates: SearchRates, *, memory_bytes: float) -> None:
        """Take what was measured.

        Args:
            rates: what `steelyard retrieve calibrate` found.
            memory_bytes: memory that an index may take.

        Raises:
            ConfigError: no memory.
        """
        if not memory_bytes > 0:
            raise ConfigError(f"{memory_bytes:g} bytes of memory", hint="give more than 0")
        self.rates = rates
        self.capacity, self.used = np.array([memory_bytes]), np.zeros(1)

    def stages(self, point: SearchPoint) -> list[StageOptions]:
        """List the one way to run each stage.

        Args:
            point: index and query.

        Returns:
            A stage for each part of a query; the first holds the memory of the index.

        Raises:
            ConfigError: codes do not divide the numbers of a vector.
            CalibrationError: this kind of index was not measured.
        """
        shape = shape_of(point)
        told = stage_seconds(shape, point.nprobe, self.rates, k=point.k)
        return _one_way(told, shape.memory_bytes)


class GpuStages:
    """Batches of queries on a GPU: each stage takes what its roofline says, and a launch."""

    resources = ("bytes",)
    is_pipelined = False

    def __init__(self, chip: Accelerator, *, batch: int = 1024, dtype: str = "fp16") -> None:
        """Take a chip.

        Args:
            chip: record with the peak rate of a number type and the memory's bandwidth.
            batch: queries that are answered together, 1 or more.
            dtype: number type of distances to centers.

        Raises:
            ConfigError: a batch below 1.
            CatalogError: the record has no rate of this type.
        """
        if batch < 1:
            raise ConfigError(f"a batch of {batch}", hint="give 1 query or more")
        if dtype not in chip.peak_flops_per_s:
            known = ", ".join(chip.peak_flops_per_s)
            raise CatalogError(f"{chip.name} has no peak of {dtype}", hint=f"it has {known}")
        self.chip, self.batch, self.dtype = chip, batch, dtype
        self.capacity, self.used = np.array([chip.memory_bytes]), np.zeros(1)

    def stages(self, point: SearchPoint) -> list[StageOptions]:
        """List the one way to run each stage.

        Args:
            point: index and query.

        Returns:
            A stage for each part of a query, its time that of a batch over its queries. Codes are
            read for each query: batches meet in few cells of many.

        Raises:
            ConfigError: codes do not divide the numbers of a vector.
        """
        shape = shape_of(point)
        centers = float(point.nlist * point.dim)
        tables = float(shape.code_centers * point.dim)
        rows = shape.rows_scanned(point.nprobe)
        parts = shape.parts if shape.code_centers else point.dim
        again = float(point.k * point.rerank * point.dim)
        told = {
            "cell distances": self._s(2 * centers, 2 * centers / self.batch + 4 * point.nlist),
            "cell selection": self._s(0.0, 8.0 * point.nlist),
            "lookup tables": self._s(2 * tables, 8.0 * tables / point.dim * max(parts, 1)),
            "scan": self._s(2 * rows * parts, rows * shape.row_bytes),
            "selection": self._s(0.0, 8.0 * rows),
            "comparing again": self._s(2 * again, 4 * again),
        }
        return _one_way(told, shape.memory_bytes)

    def _s(self, flops: float, moved_bytes: float) -> float:
        """Return the seconds of a query in a stage."""
        compute_s = flops / (_REACHED * self.chip.peak_flops_per_s[self.dtype])
        memory_s = moved_bytes / (_REACHED * self.chip.memory_bytes_per_s)
        launch_s = _LAUNCH_S / self.batch if flops or moved_bytes else 0.0
        return max(compute_s, memory_s) + launch_s


def _one_way(told: Mapping[str, float], memory_bytes: float) -> list[StageOptions]:
    """Return stages without a choice."""
    return [
        StageOptions(
            name,
            np.array([took_s]),
            np.array([[0.0 if place else memory_bytes]]),
            [{name: took_s}],
            [{}],
        )
        for place, (name, took_s) in enumerate(told.items())
    ]

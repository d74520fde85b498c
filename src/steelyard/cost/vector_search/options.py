"""What a stage of a vector search can be built as: time of a query, and what it takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError

__all__ = ["SearchPoint", "StageModel", "StageOptions", "expected_scan_ratio"]

_SCAN_RATIOS = (1.102, 1.125, 1.123, 1.136, 1.153, 1.144, 1.141, 1.148, 1.154)
"""Codes scanned over nprobe cells of mean size, for 2^10, 2^11, ... 2^18 cells."""


def expected_scan_ratio(nlist: int) -> float:
    """Return how many more codes are scanned than cells of mean size hold.

    Args:
        nlist: cells.

    Returns:
        A factor above 1, between the published ones by the logarithm of `nlist`.

    Source: Jiang et al. 2023 (arXiv 2306.11182): large cells are probed more often.
    """
    return float(np.interp(np.log2(nlist), np.arange(10, 19), _SCAN_RATIOS))


@dataclass(frozen=True, kw_only=True)
class SearchPoint:
    """An index of cells with product-quantized codes, and how one query goes through it.

    Attributes:
        num_vectors: vectors that one accelerator holds.
        nlist: cells.
        nprobe: cells that are scanned.
        k: neighbours that are returned.
        opq: whether queries are rotated first.
        dim: numbers in a vector.
        code_bytes: bytes of a code.
        scan_ratio: codes scanned over nprobe cells of mean size.
        kind: "ivfpq" for codes of bytes, "fastscan" for codes of half bytes, "ivf" for whole
            vectors; hardware with one way to scan knows the first alone.
        rerank: candidates per neighbour that are compared again by whole vectors.
    """

    num_vectors: int
    nlist: int
    nprobe: int
    k: int
    opq: bool = False
    dim: int = 128
    code_bytes: int = 16
    scan_ratio: float = 0.0
    kind: Literal["ivf", "ivfpq", "fastscan"] = "ivfpq"
    rerank: int = 0

    def __post_init__(self) -> None:
        """Refuse what no index can be; fill the ratio in."""
        if min(self.num_vectors, self.nlist, self.nprobe, self.k) < 1 or self.nprobe > self.nlist:
            raise ConfigError(
                f"{self.num_vectors} vectors in {self.nlist} cells, {self.nprobe} of them scanned "
                f"for {self.k} neighbours",
                hint="give at least 1 of each, and no more scanned cells than there are",
            )
        if not self.scan_ratio:
            object.__setattr__(self, "scan_ratio", expected_scan_ratio(self.nlist))

    def cell_codes(self, units: int) -> int:
        """Return how many codes of a cell one of some units scans."""
        return int(self.scan_ratio * self.num_vectors / self.nlist / units) + 1


@dataclass(frozen=True, slots=True)
class StageOptions:
    """Ways to build one stage.

    Attributes:
        name: name of the stage.
        times_s: time between two queries that it takes in [options].
        resources: what it takes [options, resources].
        parts_s: time of one query in each of its parts, by their names, of each option.
        configs: what each option is.
    """

    name: str
    times_s: NDArray[np.float64]
    resources: NDArray[np.float64]
    parts_s: Sequence[Mapping[str, float]]
    configs: Sequence[Mapping[str, Any]]


class StageModel(Protocol):
    """Hardware on which a search is built of stages."""

    @property
    def resources(self) -> Sequence[str]:
        """Names of what is limited."""
        ...

    @property
    def capacity(self) -> NDArray[np.float64]:
        """How much of each there is [resources]."""
        ...

    @property
    def used(self) -> NDArray[np.float64]:
        """What is gone before any stage is built [resources]."""
        ...

    @property
    def is_pipelined(self) -> bool:
        """Whether stages work at once on different queries, or one after the other."""
        ...

    def stages(self, point: SearchPoint) -> Sequence[StageOptions]:
        """List the ways to build each stage."""
        ...

"""Kinds of indexes: whole vectors, codes of residuals, and codes of half bytes, all in cells."""

from typing import Any

import numpy as np

from steelyard.retrieve.fast import HalfByteCodes
from steelyard.retrieve.index import Metric
from steelyard.retrieve.ivf import IVF
from steelyard.retrieve.ivfpq import ResidualCodes
from steelyard.retrieve.whole import VectorKind, WholeVectors

__all__ = ["IVFPQ", "IVFFastScan", "IVFFlat"]


class IVFFlat(IVF):
    """Whole vectors in cells.

    With one cell nothing needs to be trained, every vector is compared, and the result is exact.
    """

    kind = "ivf"
    codec: WholeVectors

    def __init__(
        self,
        dim: int,
        *,
        nlist: int = 1,
        nprobe: int = 1,
        metric: Metric = "l2",
        store: VectorKind = "float32",
    ) -> None:
        """Make an index without vectors.

        Args:
            dim: numbers in a vector.
            nlist: cells; 1 for exact search.
            nprobe: cells that a query looks into.
            metric: "l2" or "ip" (inner product).
            store: what vectors are kept as; "uint8" for whole numbers from 0 to 255.

        Raises:
            ConfigError: a number is out of range.
        """
        super().__init__(WholeVectors(store), dim=dim, nlist=nlist, nprobe=nprobe, metric=metric)
        if nlist == 1:
            self.centers = np.zeros((1, dim), np.float32)


class IVFPQ(IVF):
    """Codes of residuals in cells; the best can be compared again by whole vectors."""

    kind = "ivfpq"
    codec: ResidualCodes

    def __init__(
        self,
        dim: int,
        *,
        nlist: int,
        parts: int = 16,
        nprobe: int = 1,
        metric: Metric = "l2",
        rotate: bool = False,
        rerank: int = 0,
    ) -> None:
        """Make an index without vectors.

        Args:
            dim: numbers in a vector.
            nlist: cells.
            parts: bytes of a code; divides `dim`.
            nprobe: cells that a query looks into.
            metric: "l2" or "ip" (inner product).
            rotate: rotate vectors first, so that codes lose less (OPQ).
            rerank: candidates per wanted neighbour that are compared again.

        Raises:
            ConfigError: a number is out of range.
        """
        codec = ResidualCodes(dim, parts=parts, rotate=rotate, metric=metric)
        super().__init__(codec, dim=dim, nlist=nlist, nprobe=nprobe, metric=metric, rerank=rerank)

    def settings(self) -> dict[str, Any]:
        """Return what the index was made with."""
        return {**super().settings(), "rerank": self.rerank}


class IVFFastScan(IVF):
    """Codes of 16 centers per part in blocks of 32 rows, and whole vectors for the best."""

    kind = "fastscan"
    least_rerank = 1
    codec: HalfByteCodes

    def __init__(
        self,
        dim: int,
        *,
        nlist: int,
        parts: int = 0,
        nprobe: int = 1,
        metric: Metric = "l2",
        rerank: int = 8,
    ) -> None:
        """Make an index without vectors.

        Args:
            dim: numbers in a vector.
            nlist: cells.
            parts: half bytes of a code, even; divides `dim`; half of `dim` when 0.
            nprobe: cells that a query looks into.
            metric: "l2" or "ip" (inner product).
            rerank: candidates per wanted neighbour that are compared again, at least 1.

        Raises:
            ConfigError: a number is out of range.
        """
        codec = HalfByteCodes(dim, parts=parts or dim // 2)
        super().__init__(codec, dim=dim, nlist=nlist, nprobe=nprobe, metric=metric, rerank=rerank)

    def settings(self) -> dict[str, Any]:
        """Return what the index was made with."""
        return {**super().settings(), "rerank": self.rerank}

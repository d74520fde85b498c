"""Kinds of indexes: whole vectors, codes of residuals, and codes of half bytes, all in cells."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import DataError
from steelyard.retrieve.fast import HalfByteCodes
from steelyard.retrieve.filtered import admitted, scan_admitted
from steelyard.retrieve.index import (
    Hits,
    Metric,
    SearchStats,
    checked_k,
    checked_probes,
    checked_vectors,
)
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

    def admitted(self, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return a bitmap of vectors for `search_admitted`, to be made anew after changes.

        Args:
            ids: numbers of vectors; those that were removed are not found.

        Returns:
            One bit per number that was ever given.

        Raises:
            DataError: a number that was never given.
        """
        return admitted(ids, self.rows.next_id)

    def search_admitted(
        self,
        queries: NDArray[np.generic],
        k: int,
        bitmap: NDArray[np.uint8],
        *,
        nprobe: int | None = None,
    ) -> Hits:
        """Return the nearest of the vectors that a bitmap admits, among those in the nearest cells.

        Args:
            queries: [Q, D].
            k: neighbours; rows end with -1 where there are fewer in the cells.
            bitmap: what `admitted` returned for the vectors that there are now.
            nprobe: cells to look into; the index's own number where none is given.

        Returns:
            The hits; `stats.scanned` counts admitted vectors.

        Raises:
            ConfigError: k or nprobe is below 1.
            DataError: queries of another width, or not finite; or a bitmap of other vectors.
        """
        asked = checked_vectors(queries, self.dim, what="queries")
        count = checked_probes(self.nprobe if nprobe is None else nprobe, self.nlist)
        if bitmap.shape != (-(-self.rows.next_id // 8),) or bitmap.dtype != np.uint8:
            raise DataError(
                f"a bitmap of {bitmap.size} bytes for {self.rows.next_id:,} numbers",
                hint="make it anew with `admitted`",
            )
        cells = self._settled().nearest(asked, count).cells
        found, numbers, compared = scan_admitted(
            asked, cells, self.rows, bitmap, checked_k(k), is_l2=self.metric == "l2"
        )
        stats = SearchStats(scanned=compared, probed=cells.size)
        return Hits(ids=numbers, distances=found, stats=stats)


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

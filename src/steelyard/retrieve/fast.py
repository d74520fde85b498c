"""Vectors in cells with codes of half bytes: many are ranked fast, the best compared again."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError
from steelyard.retrieve.cells import CellRows, cells_of, nearest_cells, train_centers
from steelyard.retrieve.distance import compare_rows, new_heap, sorted_heap
from steelyard.retrieve.index import (
    Hits,
    Metric,
    SearchStats,
    checked_ids,
    checked_k,
    checked_vectors,
)
from steelyard.retrieve.pq import ProductQuantizer
from steelyard.retrieve.shuffled import CodeBlocks, byte_tables
from steelyard.retrieve.storage import write_index

__all__ = ["IVFFastScan"]

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
_CENTERS = 16
_MOST_PARTS = 256
"""Sums of that many entries of a byte stay below 65,536."""


class IVFFastScan:
    """Codes of 16 centers per part in blocks of 32 rows, and whole vectors for the best.

    Codes are of vectors, not of residuals: one table of bytes per query serves all cells.

    Attributes:
        dim: numbers in a vector.
        metric: "l2" or "ip".
        nlist: cells.
        parts: half bytes of a code, even.
        nprobe: cells that a query looks into, unless a search says otherwise.
        rerank: candidates per wanted neighbour that are compared again by whole vectors.

    Source: Andre et al. 2015 (fast scan); Guo et al. 2020 (blocks of 32 codes of 4 bits).
    """

    kind = "fastscan"

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
        parts = parts or dim // 2
        is_good = 2 <= parts <= _MOST_PARTS and parts % 2 == 0 and dim % parts == 0
        if not is_good or not 1 <= nprobe <= nlist or rerank < 1:
            raise ConfigError(
                f"{dim} numbers in codes of {parts} half bytes, {nlist} cells, {nprobe} of them "
                f"searched, {rerank} candidates compared again",
                hint=f"an even number of half bytes up to {_MOST_PARTS} must divide the numbers; "
                "search no more cells than there are, and compare at least 1 again",
            )
        self.dim, self.nlist, self.nprobe = dim, nlist, nprobe
        self.metric: Metric = metric
        self.parts, self.rerank = parts, rerank
        self.centers = np.empty((0, dim), np.float32)
        self.quantizer = ProductQuantizer(np.empty((0, _CENTERS, dim // parts), np.float32))
        empty = {"vectors": np.empty((0, dim), "f4"), "codes": np.empty((0, parts), "u1")}
        self.rows = CellRows.empty(nlist, empty)
        self._blocks: CodeBlocks | None = None
        self._offsets = np.empty((parts, _CENTERS), np.float32)

    def __len__(self) -> int:
        """Return how many vectors there are."""
        return len(self.rows)

    def train(self, vectors: NDArray[np.generic], *, seed: int = 0) -> None:
        """Place cells and the centers of codes.

        Args:
            vectors: sample [N, D], at least one per cell and 16.
            seed: seed of draws and first centers.

        Raises:
            ConfigError: there are vectors already, or the sample is too small.
            DataError: vectors of another width, or not finite.
        """
        if len(self):
            raise ConfigError("an index that holds vectors is not trained again")
        sample = checked_vectors(vectors, self.dim)
        self.centers = train_centers(sample, self.nlist, seed=seed)
        self.quantizer = ProductQuantizer.trained(sample, self.parts, seed=seed, centers=_CENTERS)

    def add(self, vectors: NDArray[np.generic], ids: Ids | None = None) -> Ids:
        """Add vectors.

        Args:
            vectors: [N, D].
            ids: their numbers, from 0, each new; counted on where none are given.

        Returns:
            Their numbers [N].

        Raises:
            ConfigError: the index is not trained.
            DataError: vectors of another width or not finite, or a number that is there already.
        """
        if not len(self.centers):
            raise ConfigError("the index has no cells yet", hint="train it on a sample first")
        rows = checked_vectors(vectors, self.dim)
        numbers = checked_ids(ids, len(rows), self.rows.all_ids(), self.rows.next_id)
        columns = {"vectors": rows, "codes": self.quantizer.encode(rows)}
        self.rows.add(numbers, cells_of(rows, self.centers), columns)
        self._blocks = None
        return numbers

    def remove(self, ids: Ids) -> None:
        """Remove vectors.

        Args:
            ids: their numbers.

        Raises:
            DataError: a number is not there; then nothing is removed.
        """
        self.rows.remove(np.atleast_1d(np.asarray(ids, dtype=np.int64)))
        self._blocks = None

    def search_steps(
        self,
        queries: NDArray[np.generic],
        k: int,
        *,
        nprobe: int | None = None,
        rerank: int | None = None,
    ) -> Iterator[Hits]:
        """Look into the nearest cell, then into twice as many each time.

        Args:
            queries: [Q, D].
            k: neighbours that are wanted.
            nprobe: cells to look into at the end; the index's own number where none is given.
            rerank: candidates per neighbour that are compared again; likewise.

        Yields:
            What was found so far.

        Raises:
            ConfigError: k, nprobe or rerank is below 1.
            DataError: queries of another width, or not finite.
        """
        yield from self._search(queries, k, nprobe, rerank, steps=True)

    def search(
        self,
        queries: NDArray[np.generic],
        k: int,
        *,
        nprobe: int | None = None,
        rerank: int | None = None,
    ) -> Hits:
        """Return the nearest vectors of each query among the best by codes.

        Args:
            queries: [Q, D].
            k: neighbours that are wanted.
            nprobe: cells to look into; the index's own number where none is given.
            rerank: candidates per neighbour that are compared again; likewise.

        Returns:
            The hits.

        Raises:
            ConfigError: k, nprobe or rerank is below 1.
            DataError: queries of another width, or not finite.
        """
        return next(self._search(queries, k, nprobe, rerank, steps=False))

    def _search(
        self,
        queries: NDArray[np.generic],
        k: int,
        nprobe: int | None,
        rerank: int | None,
        *,
        steps: bool,
    ) -> Iterator[Hits]:
        asked = checked_vectors(queries, self.dim, what="queries")
        wanted = self.nprobe if nprobe is None else nprobe
        again = self.rerank if rerank is None else rerank
        if wanted < 1 or again < 1:
            raise ConfigError(
                f"{wanted} cells, {again} candidates compared again", hint="give 1 or more of each"
            )
        blocks = self._settled()
        probes = nearest_cells(asked, self.centers, wanted, is_l2=self.metric == "l2")
        heap, rows = new_heap(len(asked), checked_k(k) * again)
        tables = list(self._tables(asked))
        scanned = done = 0
        while done < probes.cells.shape[1]:
            upto = max(1, 2 * done) if steps else probes.cells.shape[1]
            cells = np.ascontiguousarray(probes.cells[:, done:upto])
            for place, table in enumerate(tables):
                blocks.scan(cells[place], table, heap[place], rows[place])
            scanned += int((self.rows.starts[cells + 1] - self.rows.starts[cells]).sum())
            done += cells.shape[1]
            yield self._hits(asked, heap, rows, k, (scanned, done * len(asked)))

    def _settled(self) -> CodeBlocks:
        """Return the blocks, arranged anew where rows have changed."""
        self.rows.settle()
        if self._blocks is None:
            centers = self.quantizer.centers
            norms = np.einsum("pcd,pcd->pc", centers, centers)
            self._offsets = norms * np.float32(self.metric == "l2")
            codes = np.asarray(self.rows.columns["codes"], dtype=np.uint8)
            self._blocks = CodeBlocks.of(codes, self.rows.starts)
        return self._blocks

    def _tables(self, queries: Floats) -> Iterator[NDArray[np.uint8]]:
        """Yield what each code of each part adds to the distance of a query, but for a constant."""
        factor = np.float32(-2.0 if self.metric == "l2" else -1.0)
        for query in queries:
            yield byte_tables(query, self.quantizer.centers, self._offsets, factor)

    def _hits(self, asked: Floats, heap: Floats, rows: Ids, k: int, seen: tuple[int, int]) -> Hits:
        """Compare the best by codes again."""
        _, candidates = sorted_heap(heap, rows)
        nearest, ids = new_heap(len(asked), k)
        vectors = self.rows.columns["vectors"]
        is_l2 = self.metric == "l2"
        compare_rows(asked, candidates, vectors, self.rows.ids, is_l2, nearest, ids)
        distances, numbers = sorted_heap(nearest, ids)
        reranked = int((candidates >= 0).sum())
        return Hits(
            ids=numbers,
            distances=distances if is_l2 else -distances,
            stats=SearchStats(scanned=seen[0], probed=seen[1], reranked=reranked),
        )

    def memory_bytes(self) -> dict[str, int]:
        """Return bytes by part; codes count once as rows and once in blocks."""
        return {
            **self.rows.memory_bytes(),
            "blocks": self._settled().blocks.nbytes,
            "centers": self.centers.nbytes + self.quantizer.centers.nbytes,
        }

    def save(self, path: Path) -> None:
        """Write the index to a file.

        Args:
            path: the file; an older one is replaced at once.

        Raises:
            CapacityError: the disk is full; an older file stays.
        """
        learned = {"centers": self.centers, "parts": self.quantizer.centers}
        write_index(path, self.kind, self.settings(), self.rows, learned)

    def settings(self) -> dict[str, Any]:
        """Return what the index was made with."""
        names = ("dim", "nlist", "parts", "nprobe", "metric", "rerank")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def restored(
        cls, settings: Mapping[str, Any], rows: CellRows, learned: Mapping[str, NDArray[Any]]
    ) -> "IVFFastScan":
        """Return the index that was written with these parts."""
        made = cls(**settings)
        made.centers, made.rows = learned["centers"], rows
        made.quantizer = ProductQuantizer(learned["parts"])
        return made

"""Vectors in cells, each as a short code of what is left beside its cell's center."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError
from steelyard.jit import njit
from steelyard.retrieve.cells import CellRows, cells_of, nearest_cells, train_centers
from steelyard.retrieve.distance import compare_rows, new_heap, scan_codes, sorted_heap
from steelyard.retrieve.index import (
    Hits,
    Metric,
    SearchStats,
    checked_ids,
    checked_k,
    checked_vectors,
)
from steelyard.retrieve.pq import ProductQuantizer, inner_tables, train_rotation
from steelyard.retrieve.storage import write_index

__all__ = ["IVFPQ"]

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
_SAMPLE = 65_536


class IVFPQ:
    """Codes of residuals in cells; the best can be compared again by whole vectors.

    A squared distance to a code is |q - c|^2 + (|r|^2 + 2 c.r) - 2 q.r, with the cell's center c
    and the residual r that the code stands for. The bracket does not depend on the query: it is
    kept beside the code as one number, so that one table per query serves all cells.

    Attributes:
        dim: numbers in a vector.
        metric: "l2" or "ip".
        nlist: cells.
        parts: bytes of a code.
        nprobe: cells that a query looks into, unless a search says otherwise.
        rerank: candidates per wanted neighbour that are compared again by whole vectors; 0 for
            none, and then whole vectors are not kept.
    """

    kind = "ivfpq"

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
        if dim < 1 or parts < 1 or dim % parts or not 1 <= nprobe <= nlist or rerank < 0:
            raise ConfigError(
                f"{dim} numbers in codes of {parts} bytes, {nlist} cells, {nprobe} of them "
                f"searched, {rerank} candidates compared again",
                hint="bytes must divide the numbers, and no more cells be searched than there are",
            )
        self.dim, self.nlist, self.nprobe = dim, nlist, nprobe
        self.metric: Metric = metric
        self.parts, self.rotate, self.rerank = parts, rotate, rerank
        self.rotation = np.eye(dim, dtype=np.float32)
        self.centers = np.empty((0, dim), np.float32)
        self.quantizer = ProductQuantizer(np.empty((0, 256, dim // parts), np.float32))
        self.rows = CellRows.empty(nlist, self._columns(np.empty((0, dim), np.float32)))

    def __len__(self) -> int:
        """Return how many vectors there are."""
        return len(self.rows)

    def train(self, vectors: NDArray[np.generic], *, seed: int = 0) -> None:
        """Place cells and the centers of codes, and find the rotation.

        Args:
            vectors: sample [N, D], at least 256 and one per cell.
            seed: seed of draws and first centers.

        Raises:
            ConfigError: there are vectors already, or the sample is too small.
            DataError: vectors of another width, or not finite.
        """
        if len(self):
            raise ConfigError("an index that holds vectors is not trained again")
        sample = checked_vectors(vectors, self.dim)
        rng = np.random.default_rng(seed)
        few = sample
        if len(sample) > _SAMPLE:
            few = sample[np.sort(rng.choice(len(sample), _SAMPLE, replace=False))]
        if self.rotate:
            self.rotation, _ = train_rotation(few, self.parts, seed=seed)
        self.centers = train_centers(sample @ self.rotation, self.nlist, seed=seed)
        turned = few @ self.rotation
        residuals = turned - self.centers[cells_of(turned, self.centers)]
        self.quantizer = ProductQuantizer.trained(residuals, self.parts, seed=seed)

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
        turned = rows @ self.rotation
        cells = cells_of(turned, self.centers)
        self.rows.add(numbers, cells, self._columns(rows, turned, cells))
        return numbers

    def _columns(
        self, rows: Floats, turned: Floats | None = None, cells: Ids | None = None
    ) -> dict[str, NDArray[Any]]:
        """Return codes with what is kept beside them; without cells, columns without rows."""
        found: dict[str, NDArray[Any]] = {"vectors": rows} if self.rerank else {}
        if turned is None or cells is None:
            codes, extra = np.empty((0, self.parts), np.uint8), np.empty(0, np.float32)
            return {**found, "codes": codes, "extra": extra}
        centers = self.centers[cells]
        codes = self.quantizer.encode(turned - centers)
        residuals = self.quantizer.decode(codes)
        extra = np.zeros(len(rows), np.float32)
        if self.metric == "l2":
            extra = np.einsum("nd,nd->n", residuals, residuals + 2 * centers)
        return {**found, "codes": codes, "extra": extra.astype(np.float32)}

    def remove(self, ids: Ids) -> None:
        """Remove vectors.

        Args:
            ids: their numbers.

        Raises:
            DataError: a number is not there; then nothing is removed.
        """
        self.rows.remove(np.atleast_1d(np.asarray(ids, dtype=np.int64)))

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
            rerank: candidates per neighbour that are compared again; the index's own number where
                none is given.

        Yields:
            What was found so far.

        Raises:
            ConfigError: k or nprobe is below 1, or whole vectors are wanted that are not kept.
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
        """Return the nearest vectors of each query, by codes or after comparing the best again.

        Args:
            queries: [Q, D].
            k: neighbours that are wanted.
            nprobe: cells to look into; the index's own number where none is given.
            rerank: candidates per neighbour that are compared again; the index's own number where
                none is given.

        Returns:
            The hits.

        Raises:
            ConfigError: k or nprobe is below 1, or whole vectors are wanted that are not kept.
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
        if wanted < 1 or again < 0 or (again and not self.rerank):
            raise ConfigError(
                f"{wanted} cells, {again} candidates compared again",
                hint="look into 1 cell or more; only an index made with rerank keeps whole vectors",
            )
        self.rows.settle()
        is_l2 = self.metric == "l2"
        turned = asked @ self.rotation
        probes = nearest_cells(turned, self.centers, wanted, is_l2=is_l2)
        heap, ids = new_heap(len(asked), checked_k(k) * max(again, 1))
        scanned = done = 0
        while done < probes.cells.shape[1]:
            upto = max(1, 2 * done) if steps else probes.cells.shape[1]
            cells = np.ascontiguousarray(probes.cells[:, done:upto])
            bases = np.ascontiguousarray(probes.distances[:, done:upto])
            columns = self.rows.columns
            # Where whole vectors follow, a heap keeps rows, otherwise numbers.
            numbers = self.rows.places if again else self.rows.ids
            scanned += _scan_cells(
                turned,
                self.quantizer.centers,
                cells,
                bases,
                self.rows.starts,
                columns["codes"],
                columns["extra"],
                numbers,
                np.float32(-2.0 if is_l2 else -1.0),
                heap,
                ids,
            )
            done += cells.shape[1]
            yield self._hits(asked, heap, ids, k, again, (scanned, done * len(asked)))

    def _hits(
        self, asked: Floats, heap: Floats, ids: Ids, k: int, again: int, seen: tuple[int, int]
    ) -> Hits:
        """Return what heaps hold, compared again where that is wanted."""
        reranked = 0
        if again:
            _, rows = sorted_heap(heap, ids)
            reranked = int((rows >= 0).sum())
            heap, ids = new_heap(len(asked), k)
            vectors = self.rows.columns["vectors"]
            compare_rows(asked, rows, vectors, self.rows.ids, self.metric == "l2", heap, ids)
        distances, numbers = sorted_heap(heap, ids)
        stats = SearchStats(scanned=seen[0], probed=seen[1], reranked=reranked)
        if self.metric == "ip":
            distances = -distances
        return Hits(ids=numbers, distances=distances, stats=stats)

    def memory_bytes(self) -> dict[str, int]:
        """Return bytes by part."""
        return {
            **self.rows.memory_bytes(),
            "centers": self.centers.nbytes + self.quantizer.centers.nbytes,
            "rotation": self.rotation.nbytes if self.rotate else 0,
        }

    def save(self, path: Path) -> None:
        """Write the index to a file.

        Args:
            path: the file; an older one is replaced at once.

        Raises:
            CapacityError: the disk is full; an older file stays.
        """
        learned = {
            "centers": self.centers,
            "parts": self.quantizer.centers,
            "rotation": self.rotation,
        }
        write_index(path, self.kind, self.settings(), self.rows, learned)

    def settings(self) -> dict[str, Any]:
        """Return what the index was made with."""
        names = ("dim", "nlist", "parts", "nprobe", "metric", "rotate", "rerank")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def restored(
        cls, settings: Mapping[str, Any], rows: CellRows, learned: Mapping[str, NDArray[Any]]
    ) -> "IVFPQ":
        """Return the index that was written with these parts."""
        made = cls(**settings)
        made.centers, made.rotation = learned["centers"], learned["rotation"]
        made.quantizer, made.rows = ProductQuantizer(learned["parts"]), rows
        return made


@njit()
def _scan_cells(
    queries: np.ndarray,
    centers: np.ndarray,
    cells: np.ndarray,
    bases: np.ndarray,
    starts: np.ndarray,
    codes: np.ndarray,
    extra: np.ndarray,
    numbers: np.ndarray,
    factor: Any,
    distances: np.ndarray,
    ids: np.ndarray,
) -> Any:
    """Scan codes in cells of each query; return the codes that were compared."""
    scanned = 0
    for row in range(len(queries)):
        tables = inner_tables(queries[row], centers)
        tables *= factor
        for place in range(cells.shape[1]):
            cell = cells[row, place]
            first, last = starts[cell], starts[cell + 1]
            scan_codes(
                tables,
                bases[row, place],
                codes,
                extra,
                numbers,
                first,
                last,
                distances[row],
                ids[row],
            )
            scanned += last - first
    return scanned

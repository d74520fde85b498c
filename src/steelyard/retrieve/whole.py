"""Whole vectors in cells. One cell is exact."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError
from steelyard.jit import njit
from steelyard.retrieve.cells import CellRows, Probes
from steelyard.retrieve.codec import CodeArrays
from steelyard.retrieve.distance import scan_vectors
from steelyard.retrieve.index import Metric

__all__ = ["WholeVectors"]

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
VectorKind = Literal["float32", "uint8"]


class WholeVectors:
    """Vectors as they are, as floats or bytes."""

    def __init__(self, store: VectorKind) -> None:
        """Take what vectors are kept as.

        Args:
            store: kind of number.
        """
        self.store: VectorKind = store

    def train(self, sample: Floats, *, seed: int) -> None:
        """Learn nothing."""

    def turned(self, vectors: Floats) -> Floats:
        """Return vectors as they are."""
        return vectors

    def train_codes(self, turned: Floats, centers: Floats, *, seed: int) -> None:
        """Learn nothing."""

    def columns(self, turned: Floats, cells: Ids, centers: Floats) -> dict[str, NDArray[Any]]:
        """Return vectors as they are kept.

        Args:
            turned: vectors [N, D].
            cells: not looked at.
            centers: not looked at.

        Returns:
            One column.

        Raises:
            ConfigError: bytes cannot keep them; the row is named.
        """
        if self.store == "float32":
            return {"vectors": turned}
        narrow = turned.astype(np.uint8)
        if (narrow != turned).any():
            row = int((narrow != turned).any(axis=1).argmax())
            raise ConfigError(
                f"row {row} is not of whole numbers from 0 to 255", hint="keep vectors as float32"
            )
        return {"vectors": narrow}

    def scanner(self, rows: CellRows, metric: Metric) -> "WholeScanner":
        """Return a scanner of rows."""
        return WholeScanner(rows, is_l2=metric == "l2")

    def settings(self) -> dict[str, Any]:
        """Return what the codec was made with."""
        return {"store": self.store}

    def learned(self) -> dict[str, NDArray[Any]]:
        """Return nothing: there is nothing to learn."""
        return {}

    def restore(self, learned: Mapping[str, NDArray[Any]]) -> None:
        """Take nothing."""


class WholeScanner:
    """Scans of whole vectors."""

    def __init__(self, rows: CellRows, *, is_l2: bool) -> None:
        """Take the rows.

        Args:
            rows: settled rows.
            is_l2: squared distances, else inner products.
        """
        self._rows, self._is_l2 = rows, is_l2

    def scan(
        self, queries: Floats, probes: Probes, numbers: Ids, distances: Floats, ids: Ids
    ) -> None:
        """Compare queries with all vectors of their cells."""
        vectors, starts = self._rows.columns["vectors"], self._rows.starts
        _scan_cells(queries, probes.cells, starts, vectors, numbers, self._is_l2, distances, ids)

    def native(self) -> CodeArrays:
        """Return nothing beside the vectors themselves."""
        return CodeArrays()

    def memory_bytes(self) -> dict[str, int]:
        """Return nothing: rows are scanned where they lie."""
        return {}


@njit()
def _scan_cells(
    queries: np.ndarray,
    cells: np.ndarray,
    starts: np.ndarray,
    vectors: np.ndarray,
    numbers: np.ndarray,
    is_l2: bool,
    distances: np.ndarray,
    ids: np.ndarray,
) -> None:
    """Scan cells of each query."""
    for row in range(len(queries)):
        for cell in cells[row]:
            first, last = starts[cell], starts[cell + 1]
            scan_vectors(
                queries[row], vectors, numbers, first, last, is_l2, distances[row], ids[row]
            )

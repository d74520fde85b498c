"""Vectors in cells, each as a short code of what is left beside its cell's center."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError
from steelyard.jit import njit
from steelyard.retrieve.cells import CellRows, Probes, cells_of
from steelyard.retrieve.codec import CodeArrays
from steelyard.retrieve.distance import scan_codes
from steelyard.retrieve.index import Metric
from steelyard.retrieve.pq import ProductQuantizer, inner_tables, train_rotation

__all__ = ["ResidualCodes"]

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


class ResidualCodes:
    """Product codes of what is left of a vector beside its cell's center.

    A squared distance to a code is |q - c|^2 + (|r|^2 + 2 c.r) - 2 q.r, with the cell's center c
    and the residual r that the code stands for. The bracket does not depend on the query: it is
    kept beside the code as one number, so that one table per query serves all cells.

    Attributes:
        parts: bytes of a code.
        rotate: whether vectors are rotated first.
        rotation: applied as `vectors @ rotation` [D, D].
        quantizer: centers of the codes.
    """

    def __init__(self, dim: int, *, parts: int, rotate: bool, metric: Metric) -> None:
        """Make a codec that is not trained.

        Args:
            dim: numbers in a vector.
            parts: bytes of a code.
            rotate: rotate vectors first.
            metric: "l2" or "ip".

        Raises:
            ConfigError: parts do not divide the numbers.
        """
        if dim < 1 or parts < 1 or dim % parts:
            raise ConfigError(
                f"{dim} numbers in codes of {parts} bytes", hint="give a divisor of the numbers"
            )
        self.parts, self.rotate, self.metric = parts, rotate, metric
        self.rotation = np.eye(dim, dtype=np.float32)
        self.quantizer = ProductQuantizer(np.empty((0, 256, dim // parts), np.float32))

    def train(self, sample: Floats, *, seed: int) -> None:
        """Find the rotation, where one is wanted."""
        if self.rotate:
            self.rotation, _ = train_rotation(sample, self.parts, seed=seed)

    def turned(self, vectors: Floats) -> Floats:
        """Return vectors rotated."""
        return vectors @ self.rotation if self.rotate else vectors

    def train_codes(self, turned: Floats, centers: Floats, *, seed: int) -> None:
        """Place the centers of the codes of residuals."""
        residuals = turned - centers[cells_of(turned, centers)]
        self.quantizer = ProductQuantizer.trained(residuals, self.parts, seed=seed)

    def columns(self, turned: Floats, cells: Ids, centers: Floats) -> dict[str, NDArray[Any]]:
        """Return codes, and what is added to their distances.

        Args:
            turned: vectors [N, D].
            cells: cell of each [N].
            centers: centers of the cells.

        Returns:
            Two columns.
        """
        if not len(turned):
            codes, extra = np.empty((0, self.parts), np.uint8), np.empty(0, np.float32)
            return {"codes": codes, "extra": extra}
        own = centers[cells]
        codes = self.quantizer.encode(turned - own)
        residuals = self.quantizer.decode(codes)
        extra = np.zeros(len(turned), np.float32)
        if self.metric == "l2":
            extra = np.einsum("nd,nd->n", residuals, residuals + 2 * own)
        return {"codes": codes, "extra": extra.astype(np.float32)}

    def scanner(self, rows: CellRows, metric: Metric) -> "CodeScanner":
        """Return a scanner of rows."""
        factor = np.float32(-2.0 if metric == "l2" else -1.0)
        return CodeScanner(rows, self.quantizer.centers, factor)

    def settings(self) -> dict[str, Any]:
        """Return what the codec was made with."""
        return {"parts": self.parts, "rotate": self.rotate}

    def learned(self) -> dict[str, NDArray[Any]]:
        """Return the centers of the codes and the rotation."""
        return {"parts": self.quantizer.centers, "rotation": self.rotation}

    def restore(self, learned: Mapping[str, NDArray[Any]]) -> None:
        """Take centers and rotation of an earlier training."""
        self.quantizer = ProductQuantizer(learned["parts"])
        self.rotation = learned["rotation"]


class CodeScanner:
    """Scans of codes by tables."""

    def __init__(self, rows: CellRows, centers: Floats, factor: np.float32) -> None:
        """Take the rows.

        Args:
            rows: settled rows.
            centers: centers of the codes.
            factor: of inner products in distances.
        """
        self._rows, self._centers, self._factor = rows, centers, factor

    def scan(
        self, queries: Floats, probes: Probes, numbers: Ids, distances: Floats, ids: Ids
    ) -> None:
        """Add the distances of parts up for all codes in cells."""
        _scan_cells(
            queries,
            self._centers,
            probes.cells,
            probes.distances,
            self._rows.starts,
            self._rows.columns["codes"],
            self._rows.columns["extra"],
            numbers,
            self._factor,
            distances,
            ids,
        )

    def native(self) -> CodeArrays:
        """Return codes, and what is added to their distances."""
        codes, extra = self._rows.columns["codes"], self._rows.columns["extra"]
        return CodeArrays(
            codec=1,
            codes=codes,
            centers=self._centers,
            extra=np.asarray(extra, np.float32),
            factor=float(self._factor),
        )

    def memory_bytes(self) -> dict[str, int]:
        """Return nothing: rows are scanned where they lie."""
        return {}


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
) -> None:
    """Scan codes in cells of each query."""
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

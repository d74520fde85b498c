"""What a cell keeps of its vectors, and how cells are scanned: the part in which indexes differ."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from steelyard.retrieve.cells import CellRows, Probes
from steelyard.retrieve.index import Metric

__all__ = ["CellCodec", "CellScanner", "CodeArrays"]

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
Columns = Mapping[str, NDArray[np.generic]]


def _nothing() -> NDArray[np.generic]:
    return np.empty(0, np.float32)


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeArrays:
    """What a codec keeps of rows, for native scans.

    Attributes:
        codec: 0 for whole vectors, 1 for codes of bytes, 2 for codes of half bytes.
        codes: uint8 [N, parts], or blocks of 32 rows.
        block_starts: first block of each cell and the end of the last, for half bytes.
        centers: centers of codes [parts, 256 or 16, width].
        extra: added to the distance of each row [N], or to each entry of a table [parts, 16].
        factor: of inner products in tables.
    """

    codec: int = 0
    codes: NDArray[np.generic] = field(default_factory=_nothing)
    block_starts: NDArray[np.generic] = field(default_factory=_nothing)
    centers: NDArray[np.generic] = field(default_factory=_nothing)
    extra: NDArray[np.generic] = field(default_factory=_nothing)
    factor: float = 0.0


class CellScanner(Protocol):
    """The rows of an index, arranged for scans."""

    def scan(
        self, queries: Floats, probes: Probes, numbers: Ids, distances: Floats, ids: Ids
    ) -> None:
        """Compare queries with all rows of their cells.

        Args:
            queries: queries as cells see them [Q, D].
            probes: cells of each query, with the distances of their centers.
            numbers: what a heap keeps for each row [N].
            distances: heaps [Q, K].
            ids: heaps [Q, K].
        """
        ...

    def native(self) -> CodeArrays:
        """Return what is scanned, for native code."""
        ...

    def memory_bytes(self) -> dict[str, int]:
        """Return bytes that are held beside the rows themselves, by part."""
        ...


class CellCodec(Protocol):
    """What cells keep of vectors."""

    def train(self, sample: Floats, *, seed: int) -> None:
        """Learn what comes before cells: how vectors are turned."""
        ...

    def turned(self, vectors: Floats) -> Floats:
        """Return vectors as cells see them [N, D]."""
        ...

    def train_codes(self, turned: Floats, centers: Floats, *, seed: int) -> None:
        """Learn what vectors are kept as, from turned ones and the centers of cells."""
        ...

    def columns(self, turned: Floats, cells: Ids, centers: Floats) -> Columns:
        """Return what is kept of vectors that lie in some cells [N, ...], by name."""
        ...

    def scanner(self, rows: CellRows, metric: Metric) -> CellScanner:
        """Arrange rows for scans; called again after rows have changed."""
        ...

    def settings(self) -> dict[str, Any]:
        """Return what the codec was made with."""
        ...

    def learned(self) -> dict[str, NDArray[Any]]:
        """Return arrays from training by name."""
        ...

    def restore(self, learned: Mapping[str, NDArray[Any]]) -> None:
        """Take arrays from an earlier training."""
        ...

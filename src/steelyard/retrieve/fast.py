"""Vectors in cells with codes of half bytes: many are ranked fast, the best compared again."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError
from steelyard.retrieve.cells import CellRows, Probes
from steelyard.retrieve.codec import CodeArrays
from steelyard.retrieve.index import Metric
from steelyard.retrieve.pq import ProductQuantizer
from steelyard.retrieve.shuffled import CodeBlocks, byte_tables

__all__ = ["HalfByteCodes"]

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
_CENTERS = 16
_MOST_PARTS = 256
"""Sums of that many entries of a byte stay below 65,536."""


class HalfByteCodes:
    """Codes of 16 centers per part, of vectors, not of residuals: one table serves all cells.

    Attributes:
        parts: half bytes of a code.
        quantizer: centers of the codes.

    Source: Andre et al. 2015 (fast scan); Guo et al. 2020 (blocks of 32 codes of 4 bits).
    """

    def __init__(self, dim: int, *, parts: int) -> None:
        """Make a codec that is not trained.

        Args:
            dim: numbers in a vector.
            parts: half bytes of a code.

        Raises:
            ConfigError: parts are odd, too many, or do not divide the numbers.
        """
        if not 2 <= parts <= _MOST_PARTS or parts % 2 or dim % parts:
            raise ConfigError(
                f"{dim} numbers in codes of {parts} half bytes",
                hint=f"an even number of half bytes up to {_MOST_PARTS} must divide the numbers",
            )
        self.parts = parts
        self.quantizer = ProductQuantizer(np.empty((0, _CENTERS, dim // parts), np.float32))

    def train(self, sample: Floats, *, seed: int) -> None:
        """Learn nothing before cells."""

    def turned(self, vectors: Floats) -> Floats:
        """Return vectors as they are."""
        return vectors

    def train_codes(self, turned: Floats, centers: Floats, *, seed: int) -> None:
        """Place the centers of the codes."""
        self.quantizer = ProductQuantizer.trained(turned, self.parts, seed=seed, centers=_CENTERS)

    def columns(self, turned: Floats, cells: Ids, centers: Floats) -> dict[str, NDArray[Any]]:
        """Return codes, a half byte in each byte."""
        if not len(turned):
            return {"codes": np.empty((0, self.parts), np.uint8)}
        return {"codes": self.quantizer.encode(turned)}

    def scanner(self, rows: CellRows, metric: Metric) -> "BlockScanner":
        """Arrange codes in blocks."""
        return BlockScanner(rows, self.quantizer.centers, is_l2=metric == "l2")

    def settings(self) -> dict[str, Any]:
        """Return what the codec was made with."""
        return {"parts": self.parts}

    def learned(self) -> dict[str, NDArray[Any]]:
        """Return the centers of the codes."""
        return {"parts": self.quantizer.centers}

    def restore(self, learned: Mapping[str, NDArray[Any]]) -> None:
        """Take centers of an earlier training."""
        self.quantizer = ProductQuantizer(learned["parts"])


class BlockScanner:
    """Scans of codes in blocks; heaps get sums of table entries, with rows for numbers."""

    def __init__(self, rows: CellRows, centers: Floats, *, is_l2: bool) -> None:
        """Arrange the rows.

        Args:
            rows: settled rows.
            centers: centers of the codes.
            is_l2: squared distances, else inner products.
        """
        codes = np.asarray(rows.columns["codes"], dtype=np.uint8)
        self._blocks = CodeBlocks.of(codes, rows.starts)
        self._centers = centers
        self._offsets = np.einsum("pcd,pcd->pc", centers, centers) * np.float32(is_l2)
        self._factor = np.float32(-2.0 if is_l2 else -1.0)

    def scan(
        self, queries: Floats, probes: Probes, numbers: Ids, distances: Floats, ids: Ids
    ) -> None:
        """Add table entries up for all codes in cells; what a heap keeps is the row."""
        for place, query in enumerate(queries):
            table = byte_tables(query, self._centers, self._offsets, self._factor)
            self._blocks.scan(probes.cells[place], table, distances[place], ids[place])

    def native(self) -> CodeArrays:
        """Return the blocks, and what is added to entries of tables."""
        return CodeArrays(
            codec=2,
            codes=self._blocks.blocks,
            block_starts=self._blocks.block_starts,
            centers=self._centers,
            extra=self._offsets,
            factor=float(self._factor),
        )

    def memory_bytes(self) -> dict[str, int]:
        """Return bytes of the blocks: codes count once as rows and once here."""
        return {"blocks": self._blocks.blocks.nbytes}

"""What an index of vectors holds, and the units of work of a query and of a build."""

import math
from dataclasses import dataclass
from typing import Literal

from steelyard.cost.vector_search.options import expected_scan_ratio
from steelyard.errors import ConfigError

__all__ = [
    "IndexKind",
    "IndexShape",
    "adding_work",
    "build_work",
    "query_work",
    "training_work",
]

IndexKind = Literal["flat", "ivf", "ivfpq", "fastscan"]
_KINDS = ("flat", "ivf", "ivfpq", "fastscan")
_CODE_CENTERS = {"ivfpq": 256, "fastscan": 16}
_SAMPLE_PER_CELL, _CELL_STEPS = 64, 12
"""Vectors per cell that centers are placed with, and passes over them."""
_CODE_SAMPLE, _CODE_STEPS = 65_536, 15
_ROTATION_ROUNDS, _ROTATION_STEPS = 20, 3
_CENTERS_CACHED, _ROWS_CACHED = (0.5e6, 4e6), (8e6, 128e6)
"""Bytes up to which a set is read from the near caches, and from which on from the next level: of
centers, which every query reads, and of rows, of which each reads other ones."""
_BLOCK_ROWS = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexShape:
    """An index, told by its sizes alone.

    Attributes:
        kind: "flat" compares all vectors; "ivf" those of some cells; "ivfpq" codes of bytes in
            cells; "fastscan" codes of half bytes in cells.
        num_vectors: vectors.
        dim: numbers of a vector.
        nlist: cells; 1 for "flat".
        parts: bytes of a code of "ivfpq", half bytes of one of "fastscan".
        rerank: candidates per neighbour that are compared again by whole vectors; with 0 they are
            not kept beside codes.
        number_bytes: bytes of a number of a whole vector, 4 or 1.
        rotate: whether vectors are rotated before they become codes.
        scan_ratio: rows that a query meets in its cells over those of cells of mean size; what was
            published for the number of cells when 0.
    """

    kind: IndexKind
    num_vectors: int
    dim: int
    nlist: int = 1
    parts: int = 0
    rerank: int = 0
    number_bytes: int = 4
    rotate: bool = False
    scan_ratio: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what no index can be; fill the parts of codes in."""
        if self.kind not in _KINDS:
            raise ConfigError(f"an index of kind {self.kind!r}", hint=f"kinds: {', '.join(_KINDS)}")
        if min(self.num_vectors, self.dim, self.nlist) < 1 or self.rerank < 0:
            raise ConfigError(
                f"{self.num_vectors} vectors of {self.dim} numbers in {self.nlist} cells, "
                f"{self.rerank} candidates compared again",
                hint="give at least 1 vector, number and cell",
            )
        if self.nlist > self.num_vectors:
            raise ConfigError(
                f"{self.nlist:,} cells for {self.num_vectors:,} vectors", hint="give fewer cells"
            )
        if self.kind == "flat" and self.nlist != 1:
            raise ConfigError(f"a flat index of {self.nlist} cells", hint="take kind ivf")
        if self.kind in _CODE_CENTERS and not self.parts:
            object.__setattr__(self, "parts", 16 if self.kind == "ivfpq" else self.dim // 2)
        if self.kind in _CODE_CENTERS and (self.parts < 1 or self.dim % self.parts):
            raise ConfigError(
                f"vectors of {self.dim} numbers in {self.parts} parts",
                hint="give a divisor of the numbers",
            )

    @property
    def code_centers(self) -> int:
        """Centers of each part of a code; 0 without codes."""
        return _CODE_CENTERS.get(self.kind, 0)

    @property
    def row_bytes(self) -> float:
        """Bytes of a row that a scan reads."""
        if self.kind == "ivfpq":
            return self.parts + 4.0
        if self.kind == "fastscan":
            return self.parts / 2
        return float(self.dim * self.number_bytes)

    def rows_scanned(self, nprobe: int) -> float:
        """Return how many rows a query meets in so many cells."""
        if nprobe >= self.nlist:
            return float(self.num_vectors)
        ratio = self.scan_ratio or expected_scan_ratio(self.nlist)
        return min(ratio * self.num_vectors * nprobe / self.nlist, float(self.num_vectors))

    @property
    def memory_bytes(self) -> float:
        """Bytes of everything that the index holds in memory."""
        centers = self.nlist * self.dim * 4.0
        lanes = -(-self.nlist // 16) * 16 * self.dim * 4.0
        total = centers + lanes + 8.0 * (self.nlist + 1) + 8.0 * self.num_vectors
        if self.kind in ("flat", "ivf") or self.rerank:
            total += float(self.num_vectors) * self.dim * self.number_bytes
        if self.code_centers:
            total += self.code_centers * self.dim * 4.0
        if self.kind == "ivfpq":
            total += self.num_vectors * (self.parts + 4.0) + 4.0 * self.dim**2
        if self.kind == "fastscan":
            # Codes lie there twice, as rows and in blocks, whose last one of a cell is half empty.
            blocks = self.num_vectors / _BLOCK_ROWS + self.nlist / 2
            total += self.num_vectors * self.parts + blocks * _BLOCK_ROWS * self.parts / 2
        return total


def query_work(shape: IndexShape, nprobe: int, k: int) -> dict[str, float]:
    """Count the work of one query.

    Args:
        shape: the index.
        nprobe: cells that are looked into; all where there are fewer.
        k: neighbours.

    Returns:
        Units by part: "call" 1; "centers, near" and "centers, far" numbers of centers compared,
        from the nearest caches or from further away; "cells" cells; "tables" entries times numbers;
        "scan, near" and "scan, far" bytes of rows; "rows" rows; "inserts" values put on heaps,
        times the logarithm of their size; "again, near" and "again, far" bytes compared again.

    Raises:
        ConfigError: nprobe or k is below 1.
    """
    if nprobe < 1 or k < 1:
        raise ConfigError(f"{nprobe} cells for {k} neighbours", hint="give 1 or more of each")
    cells = min(nprobe, shape.nlist)
    rows = shape.rows_scanned(cells)
    held = k * max(shape.rerank, 1) if shape.code_centers else k
    compared = float(shape.nlist * shape.dim)
    centers_far = _far(4 * compared, _CENTERS_CACHED)
    scanned = rows * shape.row_bytes
    rows_far = _far(shape.num_vectors * shape.row_bytes, _ROWS_CACHED)
    again = float(held * shape.dim * shape.number_bytes) if shape.rerank else 0.0
    whole_far = _far(shape.num_vectors * shape.dim * shape.number_bytes, _ROWS_CACHED)
    return {
        "call": 1.0,
        "centers, near": compared * (1 - centers_far),
        "centers, far": compared * centers_far,
        "cells": float(cells),
        "tables": float(shape.code_centers * shape.dim),
        "scan, near": scanned * (1 - rows_far),
        "scan, far": scanned * rows_far,
        "rows": rows,
        "inserts": _inserts(shape.nlist, cells) + _inserts(rows, held),
        "again, near": again * (1 - whole_far),
        "again, far": again * whole_far,
    }


def build_work(shape: IndexShape) -> dict[str, float]:
    """Count the work of a build: of training with all vectors, and of adding them.

    Args:
        shape: the index.

    Returns:
        Units by part: "assign" numbers of centers of cells that vectors are compared with, and
        "nearest cells" the distances among which the least is looked for; "codes" and "nearest
        codes" the same for centers of codes; "code parts" parts of vectors that become codes;
        "rows" numbers of vectors that are copied and sorted.
    """
    learned = training_work(shape, shape.num_vectors)
    return {part: count + learned[part] for part, count in adding_work(shape).items()}


def training_work(shape: IndexShape, sample: int) -> dict[str, float]:
    """Count the work of placing centers and learning codes.

    Args:
        shape: the index.
        sample: vectors that it is trained with.

    Returns:
        Units by part, as of `build_work`.
    """
    passes = _CELL_STEPS * min(sample, _SAMPLE_PER_CELL * shape.nlist) if shape.nlist > 1 else 0
    codes = 0.0
    if shape.code_centers:
        few = min(sample, _CODE_SAMPLE)
        passes += few if shape.nlist > 1 else 0
        codes = float(_CODE_STEPS * few)
        if shape.rotate:
            codes += (_CODE_STEPS + _ROTATION_ROUNDS * _ROTATION_STEPS) * few
    return _build_units(shape, passes, codes, 0)


def adding_work(shape: IndexShape) -> dict[str, float]:
    """Count the work of adding all vectors to a trained index; units as of `build_work`."""
    rows = shape.num_vectors
    passes = rows if shape.nlist > 1 else 0
    return _build_units(shape, passes, float(rows) if shape.code_centers else 0.0, rows)


def _build_units(shape: IndexShape, passes: int, codes: float, rows: int) -> dict[str, float]:
    """Return units of vectors put into cells, made codes of, and copied."""
    return {
        "assign": float(passes) * shape.nlist * shape.dim,
        "nearest cells": float(passes) * shape.nlist,
        "codes": codes * shape.code_centers * shape.dim,
        "nearest codes": codes * shape.code_centers * shape.parts,
        "code parts": codes * shape.parts,
        "rows": float(rows * shape.dim),
    }


def _far(set_bytes: float, cached: tuple[float, float]) -> float:
    """Return the share of a set that is not read from the near caches."""
    near, far = cached
    return min(max(math.log(max(set_bytes, 1.0) / near) / math.log(far / near), 0.0), 1.0)


def _inserts(values: float, held: float) -> float:
    """Return how many of values in random order a heap takes, times the depth it has."""
    taken = held * (1 + math.log(max(values / held, 1.0))) if values > held else values
    return taken * math.log2(held + 1)

"""Shapes of lines with their counts: a state that does not depend on the order of lines."""

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.logs.shapes import Shape, line_hashes, shape_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ShapeCounts", "ShapeReader"]

_MOST_SHAPES = 50_000
_MOST_HASHES = 200_000


class ShapeReader:
    """Reads the shapes of lines; a line is cut into words where its hash was not met before."""

    def __init__(self) -> None:
        """Start without shapes."""
        self._known: dict[int, Shape] = {}

    def read(self, column: "pa.Array") -> tuple[list[Shape], NDArray[np.intp], NDArray[np.intp]]:
        """Return the shapes of some lines.

        Args:
            column: Arrow text without missing values, [lines].

        Returns:
            Some shapes, not all different; which of them each line has, [lines]; lines of each.
        """
        if len(self._known) > _MOST_HASHES:
            self._known.clear()
        hashes, first, places, repeats = np.unique(
            line_hashes(column), return_index=True, return_inverse=True, return_counts=True
        )
        found = []
        for code, line in zip(hashes.tolist(), first.tolist(), strict=True):
            shape = self._known.get(code)
            if shape is None:
                shape = self._known[code] = shape_of(column[line].as_py())
            found.append(shape)
        return found, places, repeats


class ShapeCounts:
    """How many lines have each shape, for a bounded number of shapes.

    Shapes are ordered by the rank of their hash among those of one length and first word, equal
    ranks by the hash; the first ones are kept. Which these are depends on the set of shapes alone,
    however it was split: in a part of the lines a shape's rank is never higher. Counts are exact,
    for a shape that is kept at the end was never let go before.

    Attributes:
        counts: lines by shape.
        lines: all lines that were taken in.
    """

    def __init__(self, most_shapes: int = _MOST_SHAPES) -> None:
        """Start without lines.

        Args:
            most_shapes: shapes to keep.
        """
        self.counts: dict[Shape, int] = {}
        self.lines = 0
        self._most = most_shapes
        self._reader = ShapeReader()

    def update(self, column: "pa.Array") -> None:
        """Take lines in.

        Args:
            column: lines without their headers; missing ones are passed over.
        """
        present = column.drop_null()
        shapes, _, repeats = self._reader.read(present)
        for shape, count in zip(shapes, repeats.tolist(), strict=True):
            self._add(shape, count)
        self.lines += len(present)
        self._trim(2)

    def merge(self, other: "ShapeCounts") -> None:
        """Take in the lines of another state."""
        for shape, count in other.counts.items():
            self._add(shape, count)
        self.lines += other.lines
        self._trim(2)

    def _add(self, shape: Shape, count: int) -> None:
        self.counts[shape] = self.counts.get(shape, 0) + count

    def _trim(self, slack: int = 1) -> None:
        """Let shapes go where there are too many."""
        if len(self.counts) <= slack * self._most:
            return
        buckets: dict[tuple[int, Shape], list[tuple[bytes, Shape]]] = {}
        for shape in self.counts:
            entry = hashlib.blake2b("\n".join(shape).encode(), digest_size=8).digest(), shape
            buckets.setdefault((len(shape), shape[:1]), []).append(entry)
        ranked = [
            (rank, code, shape)
            for members in buckets.values()
            for rank, (code, shape) in enumerate(sorted(members))
        ]
        kept = sorted(ranked)[: self._most]
        self.counts = {shape: self.counts[shape] for _, _, shape in kept}

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the state as arrays by name, the same for the same lines in any order."""
        self._trim()
        shapes = sorted(self.counts)
        text = json.dumps([list(shape) for shape in shapes], ensure_ascii=False)
        return {
            "shapes": np.frombuffer(text.encode(), np.uint8),
            "counts": np.array([self.counts[shape] for shape in shapes], np.int64),
            "lines": np.array([self.lines, self._most], np.int64),
        }

    @classmethod
    def of(cls, sections: dict[str, NDArray[Any]]) -> "ShapeCounts":
        """Return the state of such arrays."""
        lines, most = map(int, sections["lines"])
        found = cls(most)
        shapes = map(tuple, json.loads(sections["shapes"].tobytes()))
        found.counts = dict(zip(shapes, sections["counts"].tolist(), strict=True))
        found.lines = lines
        return found

    @property
    def kept(self) -> dict[Shape, int]:
        """Lines by shape, of the shapes that are kept."""
        self._trim()
        return self.counts

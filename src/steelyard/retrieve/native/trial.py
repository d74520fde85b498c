"""Native searches beside those of the other way, on vectors whose arithmetic is exact."""

import ctypes
import itertools

import numpy as np

from steelyard.retrieve.cells import CellRows
from steelyard.retrieve.engine import SteppedCells
from steelyard.retrieve.fast import HalfByteCodes
from steelyard.retrieve.ivfpq import ResidualCodes
from steelyard.retrieve.native.cells import NativeCells
from steelyard.retrieve.pq import ProductQuantizer
from steelyard.retrieve.whole import WholeVectors

__all__ = ["difference"]

_DIM, _ROWS, _CELLS = 40, 600, 70


def difference(library: ctypes.CDLL) -> float:
    """Return how many results of native searches differ from those of the other way.

    Numbers are small and whole, so that sums are exact in any order.

    Args:
        library: compiled code.

    Returns:
        Numbers and distances that differ, over all kinds of codes and both metrics.
    """
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 16, (_ROWS, _DIM)).astype(np.float32)
    asked = rng.integers(0, 16, (6, _DIM)).astype(np.float32)
    centers = rows[:_CELLS] // 2 * 2
    cells = np.sort(rng.integers(0, _CELLS, _ROWS))
    wrong = 0
    for metric, place in itertools.product(("l2", "ip"), range(4)):
        codec = (
            WholeVectors("float32"),
            WholeVectors("uint8"),
            ResidualCodes(_DIM, parts=10, rotate=False, metric=metric),
            HalfByteCodes(_DIM, parts=10),
        )[place]
        if isinstance(codec, ResidualCodes):
            codec.quantizer = ProductQuantizer(rows[:256].reshape(256, 10, 4).swapaxes(0, 1))
        if isinstance(codec, HalfByteCodes):
            codec.quantizer = ProductQuantizer(rows[:16].reshape(16, 10, 4).swapaxes(0, 1))
        kept = {"vectors": rows, **codec.columns(rows, cells, centers)}
        settled = CellRows.empty(_CELLS, kept)
        settled.add(rng.permutation(_ROWS), cells, kept)
        settled.settle()
        scanner = codec.scanner(settled, metric)
        ways = (
            SteppedCells(settled, centers, scanner, metric),
            NativeCells(library, settled, centers, scanner.native(), metric),
        )
        for again, nprobe in itertools.product((0, 3), (1, 9, _CELLS)):
            if isinstance(codec, HalfByteCodes) and not again:
                continue
            one, two = (way.search(asked, asked, nprobe, 7, again) for way in ways)
            wrong += int((one.ids != two.ids).sum() + (one.distances != two.distances).sum())
            wrong += (one.scanned, one.reranked) != (two.scanned, two.reranked)
    return float(wrong)

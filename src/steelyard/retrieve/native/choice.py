"""Native searches of cells, where they find what the other way finds."""

import ctypes
from functools import cache

import numpy as np
from numpy.typing import NDArray

from steelyard.retrieve.cells import CellRows
from steelyard.retrieve.codec import CodeArrays
from steelyard.retrieve.index import Metric
from steelyard.retrieve.native.cells import NativeCells
from steelyard.retrieve.native.library import trusted_library
from steelyard.retrieve.native.trial import difference

__all__ = ["native_cells"]

Floats = NDArray[np.float32]


def native_cells(
    rows: CellRows, centers: Floats, codes: CodeArrays, metric: Metric
) -> NativeCells | None:
    """Return native searches of settled rows.

    Args:
        rows: settled rows; whole vectors are floats or bytes.
        centers: centers of cells.
        codes: what the codec keeps.
        metric: "l2" or "ip".

    Returns:
        The searches; None without a compiler, where native code is switched off, or where the
        library once differed from the other way on this machine.
    """
    library = _library()
    return NativeCells(library, rows, centers, codes, metric) if library else None


@cache
def _library() -> ctypes.CDLL | None:
    """Load the library; None without a compiler, switched off, or where it finds others."""
    return trusted_library("search", difference)

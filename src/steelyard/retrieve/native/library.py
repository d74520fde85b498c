"""The compiled library of cell searches, and what its functions take."""

import ctypes
from pathlib import Path

from steelyard.native import NativeCode, load, typed

__all__ = ["CellFields", "load_library"]

_FOLDER = Path(__file__).parent
_SOURCES = ("cell_search.cpp", "half_bytes.h", "nearest.h", "vectors.h")
_CODE = NativeCode(name="cell_search", sources=tuple(_FOLDER / name for name in _SOURCES))
_PLACE, _SIZE = ctypes.c_void_p, ctypes.c_int64


class CellFields(ctypes.Structure):
    """The fields of `Cells` in cell_search.cpp, in its order."""

    _fields_ = [
        ("dim", _SIZE),
        ("nlist", _SIZE),
        ("is_l2", _SIZE),
        ("codec", _SIZE),
        ("centers", _PLACE),
        ("row_starts", _PLACE),
        ("ids", _PLACE),
        ("vectors", _PLACE),
        ("number_bytes", _SIZE),
        ("codes", _PLACE),
        ("block_starts", _PLACE),
        ("code_centers", _PLACE),
        ("extra", _PLACE),
        ("parts", _SIZE),
        ("factor", ctypes.c_float),
    ]


_SIGNATURES = {
    "steelyard_nearest_cells": (_PLACE, _PLACE, _SIZE, _SIZE, _PLACE, _PLACE),
    "steelyard_scan_cells": (
        *(_PLACE, _PLACE, _SIZE, _PLACE, _PLACE, _SIZE),
        *(_SIZE, _PLACE, _PLACE, _SIZE),
    ),
    "steelyard_search_cells": (
        *(_PLACE, _PLACE, _PLACE, _SIZE, _SIZE, _SIZE, _SIZE),
        *(_PLACE, _PLACE, _PLACE),
    ),
    "steelyard_compare_again": (
        *(_PLACE, _PLACE, _SIZE, _PLACE, _SIZE, _SIZE),
        *(_PLACE, _PLACE, _PLACE),
    ),
}


def load_library() -> ctypes.CDLL:
    """Load the library, compiling it where that was not done yet.

    Returns:
        The library.

    Raises:
        BackendError: there is no compiler, or it failed.
    """
    return typed(load(_CODE), _SIGNATURES)

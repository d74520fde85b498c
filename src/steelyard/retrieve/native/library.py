"""The compiled library of searches, and what its functions take."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from steelyard.errors import BackendError
from steelyard.native import NativeCode, load, switched_off, typed, verdict

__all__ = ["CellFields", "ListFields", "QuestionFields", "TreeFields", "address", "trusted_library"]

_FOLDER = Path(__file__).parent
_SOURCES = ("cell_search.cpp", "exact_scan.cpp", "tenant_search.cpp")
_HEADERS = ("half_bytes.h", "nearest.h", "sign_codes.h", "vectors.h")
_CODE = NativeCode(
    name="vector_search", sources=tuple(_FOLDER / name for name in (*_SOURCES, *_HEADERS))
)
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


class TreeFields(ctypes.Structure):
    """The fields of `Tree` in tenant_search.cpp, in its order."""

    _fields_ = [
        ("dim", _SIZE),
        ("is_l2", _SIZE),
        ("centers", _PLACE),
        ("first_child", _PLACE),
        ("num_children", _PLACE),
        ("last_leaf", _PLACE),
        ("spread", _PLACE),
        ("vectors", _PLACE),
        ("leaves", _PLACE),
        ("numbers", _PLACE),
        ("records", _PLACE),
        ("rotation", _PLACE),
        ("shortlist", _SIZE),
        ("whole", _SIZE),
        ("coded_whole", _SIZE),
        ("boost", ctypes.c_float),
        ("errors", ctypes.c_float),
    ]


class ListFields(ctypes.Structure):
    """The fields of `Lists` in tenant_search.cpp, in its order."""

    _fields_ = [
        ("rows", _PLACE),
        ("lengths", _PLACE),
        ("places", _PLACE),
        ("chunks", _PLACE),
        ("keys", _PLACE),
    ]


class QuestionFields(ctypes.Structure):
    """The fields of `Question` in tenant_search.cpp, in its order."""

    _fields_ = [
        ("tree", _PLACE),
        ("lists", _PLACE),
        ("queries", _PLACE),
        ("num_queries", _SIZE),
        ("k", _SIZE),
        ("distances", _PLACE),
        ("ids", _PLACE),
        ("counts", _PLACE),
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
    "steelyard_exact_search": (
        *(_PLACE, _PLACE, _PLACE, _PLACE, _PLACE, _SIZE, _SIZE, _PLACE, _SIZE, _SIZE),
        *(_PLACE, _PLACE, _PLACE, _SIZE, _SIZE, _PLACE, _PLACE, _PLACE),
    ),
    "steelyard_search_tenant": (_PLACE, _SIZE, _SIZE, _SIZE),
}


def _load() -> ctypes.CDLL:
    """Load the library, compiling it where that was not done yet.

    Returns:
        The library.

    Raises:
        BackendError: there is no compiler, or it failed.
    """
    return typed(load(_CODE), _SIGNATURES, {"steelyard_search_tenant": _SIZE})


def trusted_library(label: str, difference: Callable[[ctypes.CDLL], float]) -> ctypes.CDLL | None:
    """Load the library where it finds what the other way finds.

    Args:
        label: which of its searches are meant; what was found of them is kept under it.
        difference: returns how many results differ; called where that is not known.

    Returns:
        The library; None without a compiler, switched off, or where it once found others.
    """
    if switched_off():
        return None
    try:
        library = _load()
    except BackendError:
        return None
    return library if not verdict(library, label, lambda: difference(library), 0.5) else None


def address(values: NDArray[Any]) -> int:
    """Return where an array lies.

    Args:
        values: an array that the caller keeps.

    Returns:
        The address; `values.ctypes.data` makes an object first and takes three times as long.
    """
    return values.__array_interface__["data"][0]

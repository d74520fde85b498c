"""Retrieval: the nearest vectors, exactly, by cells, or by short codes.

Importing this package loads nothing yet: what it offers is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steelyard.retrieve.index import Hits, SearchStats, VectorIndex
    from steelyard.retrieve.ivf import IVF
    from steelyard.retrieve.kinds import IVFPQ, IVFFastScan, IVFFlat
    from steelyard.retrieve.opening import open_index
    from steelyard.retrieve.pq import ProductQuantizer

_PLACES = {
    "IVF": "ivf",
    "Hits": "index",
    "IVFFastScan": "kinds",
    "IVFFlat": "kinds",
    "IVFPQ": "kinds",
    "ProductQuantizer": "pq",
    "SearchStats": "index",
    "VectorIndex": "index",
    "open_index": "opening",
}
"""What this package offers, and in which of its modules it stands."""


def __getattr__(name: str) -> Any:
    """Import what is asked for: kernels bring a compiler, which a help text does not need."""
    if name in _PLACES:
        return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "IVF",
    "IVFPQ",
    "Hits",
    "IVFFastScan",
    "IVFFlat",
    "ProductQuantizer",
    "SearchStats",
    "VectorIndex",
    "open_index",
]

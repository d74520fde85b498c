"""Compiled code of searches of tenants, where it finds what the other way finds."""

import ctypes
from functools import cache

from steelyard.errors import BackendError
from steelyard.native import switched_off, verdict
from steelyard.retrieve.native.library import load_library
from steelyard.retrieve.tenants.trial import difference

__all__ = ["tenant_library"]


@cache
def tenant_library() -> ctypes.CDLL | None:
    """Load the library; None without a compiler, switched off, or where it finds others."""
    if switched_off():
        return None
    try:
        library = load_library()
    except BackendError:
        return None
    return library if not verdict(library, "tenants", lambda: difference(library), 0.5) else None

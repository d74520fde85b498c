"""Compiled code of searches of tenants, where it finds what the other way finds."""

import ctypes
from functools import cache

from steelyard.retrieve.native.library import trusted_library
from steelyard.retrieve.tenants.trial import difference

__all__ = ["tenant_library"]


@cache
def tenant_library() -> ctypes.CDLL | None:
    """Load the library; None without a compiler, switched off, or where it finds others."""
    return trusted_library("tenants", difference)

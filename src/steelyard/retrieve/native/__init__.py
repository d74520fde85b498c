"""Searches of cells in C++, compiled on this machine when they are first used."""

from steelyard.retrieve.native.cells import NativeCells
from steelyard.retrieve.native.choice import native_cells

__all__ = ["NativeCells", "native_cells"]

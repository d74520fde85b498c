"""Formats of tables: what their columns are like, how small and fast each format is, steelpack."""

from steelyard.data.formats.steelpack import Steelpack
from steelyard.data.formats.writer import write_steelpack

__all__ = ["Steelpack", "write_steelpack"]

"""Formats of tables: what their columns are like, how small and fast each format is, steelpack."""

from steelyard.data.formats.generator import PRESETS, generate, preset
from steelyard.data.formats.properties import ColumnProperties, PropertiesFold, profile
from steelyard.data.formats.steelpack import Steelpack
from steelyard.data.formats.writer import write_steelpack

__all__ = [
    "PRESETS",
    "ColumnProperties",
    "PropertiesFold",
    "Steelpack",
    "generate",
    "preset",
    "profile",
    "write_steelpack",
]

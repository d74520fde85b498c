"""Steelyard weighs big AI work with small means: forecast, plan, run, operate, check.

The package is a set of rooms (`steelyard.catalog`, `steelyard.cost`, `steelyard.laws`, ...); a room
imports only rooms on lower floors. This module holds the version and the exceptions, and imports
nothing heavy.
"""

from steelyard.errors import SteelyardError, SteelyardWarning

__all__ = ["SteelyardError", "SteelyardWarning", "__version__"]

__version__ = "0.1.0"

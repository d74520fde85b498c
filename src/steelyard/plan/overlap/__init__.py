"""Overlap of operations that occupy different resources of one device, by cutting the batch."""

from steelyard.plan.overlap.interference import (
    InterferenceTable,
    PairTiming,
    published_interference,
)
from steelyard.plan.overlap.operations import Operation, OperationGraph, Rewrite, TokenTimes
from steelyard.plan.overlap.schedule import OverlapSchedule
from steelyard.plan.overlap.search import search

__all__ = [
    "InterferenceTable",
    "Operation",
    "OperationGraph",
    "OverlapSchedule",
    "PairTiming",
    "Rewrite",
    "TokenTimes",
    "published_interference",
    "search",
]

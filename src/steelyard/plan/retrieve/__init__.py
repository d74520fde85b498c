"""Plans of vector search: index and hardware together."""

from steelyard.plan.retrieve.codesign import Codesign, SearchDesign, codesign
from steelyard.plan.retrieve.recall import RecallTable

__all__ = ["Codesign", "RecallTable", "SearchDesign", "codesign"]

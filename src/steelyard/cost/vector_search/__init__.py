"""Vector search as stages: what each takes on a kind of hardware."""

from steelyard.cost.vector_search.fpga import FpgaStages
from steelyard.cost.vector_search.options import (
    SearchPoint,
    StageModel,
    StageOptions,
    expected_scan_ratio,
)
from steelyard.cost.vector_search.queues import queue_cycles, queue_levels

__all__ = [
    "FpgaStages",
    "SearchPoint",
    "StageModel",
    "StageOptions",
    "expected_scan_ratio",
    "queue_cycles",
    "queue_levels",
]

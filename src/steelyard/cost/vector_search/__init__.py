"""Vector search as stages: what each takes on a kind of hardware."""

from steelyard.cost.vector_search.fpga import FpgaStages
from steelyard.cost.vector_search.options import (
    SearchPoint,
    StageModel,
    StageOptions,
    expected_scan_ratio,
)
from steelyard.cost.vector_search.prediction import IndexForecast, predict, stage_seconds
from steelyard.cost.vector_search.processors import CpuStages, GpuStages, shape_of
from steelyard.cost.vector_search.queues import queue_cycles, queue_levels
from steelyard.cost.vector_search.work import (
    IndexKind,
    IndexShape,
    adding_work,
    build_work,
    query_work,
    training_work,
)

__all__ = [
    "CpuStages",
    "FpgaStages",
    "GpuStages",
    "IndexForecast",
    "IndexKind",
    "IndexShape",
    "SearchPoint",
    "StageModel",
    "StageOptions",
    "adding_work",
    "build_work",
    "expected_scan_ratio",
    "predict",
    "query_work",
    "queue_cycles",
    "queue_levels",
    "shape_of",
    "stage_seconds",
    "training_work",
]

"""Serving: paged KV cache, continuous batching, an OpenAI-compatible server.

Importing this package loads no PyTorch: the policies here know no tensors, and `LLM`, the engine,
is imported when it is first used. `serve.simulate` drives the same scheduler in virtual time;
`serve.front.launch.serve` puts an engine behind HTTP.
"""

from typing import TYPE_CHECKING

from steelyard.serve.kv.blocks import BlockPool, BlockTable
from steelyard.serve.kv.prefix import PrefixIndex
from steelyard.serve.scheduling.config import SchedulerConfig
from steelyard.serve.scheduling.params import SamplingParams
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.scheduler import Scheduler
from steelyard.serve.scheduling.step import StepPlan
from steelyard.serve.traces import (
    TraceRequest,
    load_trace,
    make_request,
    synthetic_rows,
    with_prompts,
)

if TYPE_CHECKING:
    from steelyard.serve.engine import LLM
else:

    def __getattr__(name: str) -> type:
        """Import the engine, and PyTorch with it, when it is first asked for."""
        if name != "LLM":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from steelyard.serve.engine import LLM

        return LLM


__all__ = [
    "LLM",
    "BlockPool",
    "BlockTable",
    "PrefixIndex",
    "Request",
    "SamplingParams",
    "Scheduler",
    "SchedulerConfig",
    "StepPlan",
    "TraceRequest",
    "load_trace",
    "make_request",
    "synthetic_rows",
    "with_prompts",
]

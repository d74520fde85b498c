"""Serving: paged KV cache, continuous batching, an OpenAI-compatible server.

The policies here know no tensors. The parts that need PyTorch stay in their modules:
`serve.engine.LLM`, `serve.running.runner.TorchRunner`, `serve.running.sampling`, `serve.profile`;
the HTTP face is `serve.front.launch.serve`.
"""

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

__all__ = [
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

"""Serving: paged KV cache, continuous batching, an OpenAI-compatible server.

The policies here know no tensors. The parts that need PyTorch stay in their modules: `serve.engine.LLM`,
`serve.runner.TorchRunner`, `serve.sampling`, `serve.profile`; the HTTP face is `serve.server`.
"""

from steelyard.serve.blocks import BlockPool, BlockTable
from steelyard.serve.prefix import PrefixIndex
from steelyard.serve.request import Request, SamplingParams
from steelyard.serve.scheduler import Scheduler, SchedulerConfig
from steelyard.serve.step import StepPlan
from steelyard.serve.trace import TraceRequest, load_trace, make_request, synthetic_trace

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
    "synthetic_trace",
]

"""Serving: paged KV cache, continuous batching, an OpenAI-compatible server.

Importing this package loads nothing yet: what it offers is imported when it is first used. The
policies know no tensors; `LLM`, the engine, brings PyTorch. `serve.simulate` drives the same
scheduler in virtual time; `serve.front.launch.serve` puts an engine behind HTTP.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steelyard.serve.engine import LLM
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
    from steelyard.serve.weight_choice import choose_weights

_PLACES = {
    "engine": ("LLM",),
    "kv.blocks": ("BlockPool", "BlockTable"),
    "kv.prefix": ("PrefixIndex",),
    "scheduling.config": ("SchedulerConfig",),
    "scheduling.params": ("SamplingParams",),
    "scheduling.request": ("Request",),
    "scheduling.scheduler": ("Scheduler",),
    "scheduling.step": ("StepPlan",),
    "traces": ("TraceRequest", "load_trace", "make_request", "synthetic_rows", "with_prompts"),
    "weight_choice": ("choose_weights",),
}
"""Modules of this package, and what it offers of each."""


def __getattr__(name: str) -> Any:
    """Import what is asked for: a server that starts needs little of it in each process."""
    for place, names in _PLACES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{place}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
    "choose_weights",
    "load_trace",
    "make_request",
    "synthetic_rows",
    "with_prompts",
]

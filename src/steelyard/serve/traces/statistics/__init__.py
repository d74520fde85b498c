"""What a trace is like: its rates and bursts, its lengths, what prompts share, who sends."""

from steelyard.serve.traces.statistics.bursts import Burstiness, burstiness
from steelyard.serve.traces.statistics.describe import (
    TraceDescription,
    describe_trace,
    length_quantiles,
)
from steelyard.serve.traces.statistics.sharing import PrefixSharing, prefix_sharing

__all__ = [
    "Burstiness",
    "PrefixSharing",
    "TraceDescription",
    "burstiness",
    "describe_trace",
    "length_quantiles",
    "prefix_sharing",
]

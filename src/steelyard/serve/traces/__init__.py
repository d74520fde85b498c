"""Request traces from files, client mixes, conversations and synthetic loads.

Rows hold lengths; prompts are made when they are needed.
"""

from steelyard.serve.traces.clients import ClientStatistics, client_mix, read_clients
from steelyard.serve.traces.lengths import LengthStatistics
from steelyard.serve.traces.prompts import PromptMaker, with_prompts
from steelyard.serve.traces.read import load_rows, load_trace, read_rows
from steelyard.serve.traces.record import TraceRequest, TraceRow, make_request
from steelyard.serve.traces.reshape import (
    draw_arrivals,
    gamma_gaps,
    rate_of,
    rescale_rate,
    scale_lengths,
)
from steelyard.serve.traces.sessions import make_sessions
from steelyard.serve.traces.synthetic import synthetic_rows
from steelyard.serve.traces.write import write_rows

__all__ = [
    "ClientStatistics",
    "LengthStatistics",
    "PromptMaker",
    "TraceRequest",
    "TraceRow",
    "client_mix",
    "draw_arrivals",
    "gamma_gaps",
    "load_rows",
    "load_trace",
    "make_request",
    "make_sessions",
    "rate_of",
    "read_clients",
    "read_rows",
    "rescale_rate",
    "scale_lengths",
    "synthetic_rows",
    "with_prompts",
    "write_rows",
]

"""Request traces under their first name; they live in `steelyard.serve.traces`."""

from steelyard.serve.traces.read import load_trace
from steelyard.serve.traces.record import TraceRequest, make_request
from steelyard.serve.traces.synthetic import synthetic_trace

__all__ = ["TraceRequest", "load_trace", "make_request", "synthetic_trace"]

"""Models of traces: fitted to one, judged on time that was held out, and drawn from."""

from steelyard.serve.traces.models.arrivals import ArrivalModel, fit_arrivals
from steelyard.serve.traces.models.model import TraceModel, fit_trace

__all__ = ["ArrivalModel", "TraceModel", "fit_arrivals", "fit_trace"]

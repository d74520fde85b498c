"""What a server tells Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from steelyard.serve.engine import LLM

__all__ = ["ServerMetrics"]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class ServerMetrics:
    """Counters, gauges and histograms of one server, in a registry of their own.

    Attributes:
        requests: by finish reason.
        prompt_tokens: taken in.
        output_tokens: given out.
        ttft: arrival to first token, seconds.
        tpot: mean time per further token of a request, seconds.
    """

    def __init__(self) -> None:
        """Start at zero."""
        self._registry = CollectorRegistry()
        self.requests = Counter("steelyard_requests", "Requests ended.", ["finish_reason"], registry=self._registry)
        self.prompt_tokens = Counter("steelyard_prompt_tokens", "Prompt tokens taken in.", registry=self._registry)
        self.output_tokens = Counter("steelyard_output_tokens", "Output tokens given out.", registry=self._registry)
        self.ttft = Histogram("steelyard_ttft_seconds", "Arrival to first token.", buckets=_SECONDS, registry=self._registry)
        self.tpot = Histogram("steelyard_tpot_seconds", "Mean time per further token.", buckets=_SECONDS, registry=self._registry)
        self._gauges = {
            name: Gauge(f"steelyard_{name}", text, registry=self._registry)
            for name, text in (
                ("running", "Requests with blocks."),
                ("waiting", "Requests without blocks."),
                ("preemptions", "Times a request lost its blocks."),
                ("blocks_in_use", "Blocks held."),
                ("num_blocks", "Blocks in the pool."),
                ("steps", "Steps run."),
            )
        }

    def render(self, llm: LLM) -> bytes:
        """Give the text exposition format, gauges as the engine stands now."""
        stats = llm.stats()
        for name, gauge in self._gauges.items():
            gauge.set(getattr(stats, name))
        return generate_latest(self._registry)

"""Counters and histograms of a gateway in Prometheus' format."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from steelyard.serve.front.engine.wire import Step

__all__ = ["GatewayMetrics"]

_SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
)
_STAGE_SECONDS = (0.0001, 0.00025, 0.0005, *_SECONDS)


class GatewayMetrics:
    """Counters, gauges and histograms of one gateway, in a registry of their own.

    Attributes:
        requests: requests by route and status or finish reason.
        prompt_tokens: tokens taken in.
        output_tokens: tokens sent out.
        ttft: arrival to the first text handed to the network, seconds.
        tpot: mean time per further token of a request, seconds.
        duration: arrival to the end of the answer, seconds.
        stages: seconds by stage.
        in_flight: requests in flight.
        predicted_tokens: prompt and expected output tokens in flight.
        restarts: times the engine was started again.
        spares: engines that are ready to take over.
        start: seconds of the latest engine's start by stage.
    """

    def __init__(self) -> None:
        """Start at zero."""
        registry = self._registry = CollectorRegistry()
        self.requests = Counter(
            "steelyard_requests", "Requests ended.", ["route", "outcome"], registry=registry
        )
        self.prompt_tokens = Counter(
            "steelyard_prompt_tokens", "Prompt tokens taken in.", registry=registry
        )
        self.output_tokens = Counter(
            "steelyard_output_tokens", "Output tokens of the engine.", registry=registry
        )
        self.ttft = Histogram(
            "steelyard_ttft_seconds", "Arrival to first text.", buckets=_SECONDS, registry=registry
        )
        self.tpot = Histogram(
            "steelyard_tpot_seconds",
            "Mean time per further token.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.duration = Histogram(
            "steelyard_request_seconds", "Arrival to end.", buckets=_SECONDS, registry=registry
        )
        self.stages = Histogram(
            "steelyard_stage_seconds",
            "Time by stage.",
            ["stage"],
            buckets=_STAGE_SECONDS,
            registry=registry,
        )
        self.in_flight = Gauge(
            "steelyard_requests_in_flight", "Requests in flight.", registry=registry
        )
        self.predicted_tokens = Gauge(
            "steelyard_predicted_tokens", "Predicted tokens in flight.", registry=registry
        )
        self.restarts = Counter(
            "steelyard_engine_restarts", "Times the engine was started again.", registry=registry
        )
        self.spares = Gauge(
            "steelyard_spare_engines", "Engines ready to take over.", registry=registry
        )
        self.start = Gauge(
            "steelyard_start_seconds",
            "Start of the latest engine by stage.",
            ["stage"],
            registry=registry,
        )
        self._engine: dict[str, Gauge] = {}

    def note_start(self, stages: dict[str, float]) -> None:
        """Keep where the time of an engine's start went, seconds by stage."""
        for name, seconds in stages.items():
            self.start.labels(name).set(seconds)

    def count_step(self, step: Step) -> None:
        """Count a step's tokens."""
        self.output_tokens.inc(sum(len(update.tokens) for update in step.updates))

    def render(self, engine: dict[str, float]) -> bytes:
        """Return the text exposition format.

        Args:
            engine: counters of the engine by name; empty leaves the last known ones.

        Returns:
            UTF-8 text.
        """
        for name, value in engine.items():
            # Counters of an engine differ by its kind, so they are made when first seen.
            gauge = self._engine.get(name)
            if gauge is None:
                gauge = self._engine[name] = Gauge(
                    f"steelyard_{name}",
                    f"Engine: {name.replace('_', ' ')}.",
                    registry=self._registry,
                )
            gauge.set(value)
        return generate_latest(self._registry)

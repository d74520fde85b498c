"""Pairs of forecast and measurement of this package's own engine: models, loads and seeds."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from benchmarks.serve._processor_clock import ProcessorClock
from benchmarks.serve._replica import SHAPE

from steelyard.catalog.architecture import Architecture
from steelyard.cost.phase_time import PhaseStepTime
from steelyard.nn.transformer import build
from steelyard.quantity import Check, Measurement, check
from steelyard.serve import SchedulerConfig, synthetic_rows, with_prompts
from steelyard.serve.engine import LLM
from steelyard.serve.forecast import forecast_replay, simulate_replay
from steelyard.serve.profile import profile
from steelyard.serve.traces import TraceRequest
from steelyard.sim.timeline import Timeline

__all__ = ["LOADS", "TUNED", "UNSEEN", "EngineCase", "ServedPair"]

LOADS = (0.25, 0.45, 0.6, 0.75, 0.9)
"""Rates as shares of what the engine is forecast to carry at most."""
_PROBE_S = 2.0
"""Seconds for which the engine is timed again before each load."""
QUANTITIES = ("serve.ttft", "serve.tpot", "serve.throughput", "serve.slo_attainment")


def _shape(name: str, hidden: int, layers: int, vocab: int) -> Architecture:
    """Return a decoder of a width and a depth."""
    return Architecture(
        name=name,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=hidden // 64,
        num_kv_heads=hidden // 128,
        head_dim=64,
        intermediate_size=hidden * 11 // 4,
        vocab_size=vocab,
        max_positions=1024,
        tied_embeddings=False,
    )


TUNED = (SHAPE, _shape("narrow", 256, 6, 4096), _shape("deep", 384, 10, 8192))
UNSEEN = (
    _shape("flat", 640, 3, 4096),
    _shape("small", 256, 4, 16384),
    _shape("tall", 384, 6, 2048),
    _shape("broad", 512, 5, 8192),
)
"""Shapes that nobody looked at while intervals were chosen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedPair:
    """A forecast beside its measurement, with the model and the load."""

    model: str
    load: float
    check: Check


class EngineCase:
    """One engine of one thread with its profile, in processor time."""

    def __init__(self, shape: Architecture, seed: int, profile_s: float = 12.0) -> None:
        """Make the engine and time its steps."""
        config = SchedulerConfig(
            num_blocks=1200,
            max_model_len=704,
            max_num_seqs=32,
            token_budget=256,
            prefix_caching=False,
        )
        self.shape = shape
        self.llm = LLM(build(shape, seed=0).eval(), config, clock=ProcessorClock())
        samples = profile(self.llm, generator=np.random.default_rng(seed), limit_s=profile_s)
        self.steps: PhaseStepTime = samples.fit()
        every_s = simulate_replay(self.llm, self.trace(1e6, seed + 99, 300), self.steps)
        self.most_per_s = every_s.summary()["serve.request_rate"]

    def trace(self, rate: float, seed: int, count: int) -> list[TraceRequest]:
        """Draw requests of chat-like lengths."""
        generator = np.random.default_rng(seed)
        rows = synthetic_rows(
            generator,
            num_requests=count,
            rate_per_s=rate,
            mean_prompt=120,
            mean_output=48,
            max_prompt=384,
            max_output=256,
        )
        return list(with_prompts(rows, generator, vocab_size=self.shape.vocab_size))

    def replay(self, load: float, seed: int, count: int) -> Timeline:
        """Serve a load for real."""
        return self.llm.replay(self.trace(load * self.most_per_s, seed, count)).timeline

    def pairs(self, seed: int, count: int) -> Iterator[ServedPair]:
        """Forecast every load, then serve it."""
        for index, load in enumerate(LOADS):
            trace = self.trace(load * self.most_per_s, seed + index, count)
            steps, drift = self.anchored(seed + index)
            slo = self._slo()
            said = forecast_replay(self.llm, trace, steps, drift=drift, slo=slo)
            seen = self.llm.replay(trace)
            measured = [
                *seen.measurements(),
                Measurement(
                    quantity="serve.slo_attainment",
                    value=float(seen.timeline.within(*slo).mean()),
                ),
            ]
            for item in check(said, measured):
                if item.forecast.quantity in QUANTITIES:
                    yield ServedPair(model=self.shape.name, load=load, check=item)

    def anchored(self, seed: int) -> tuple[PhaseStepTime, float]:
        """Return the profile's step times at the machine's present speed, and its drift."""
        probe = profile(self.llm, generator=np.random.default_rng(seed), limit_s=_PROBE_S)
        steps = probe.anchor(self.steps)
        return steps, probe.drift(steps)

    def _slo(self) -> tuple[float, float]:
        """Return limits that a busy engine keeps for some requests only."""
        prompt = [1.0, 1.0, 120.0, 7260.0, 0.0, 0.0, 8.0]
        decode = [1.0, 4.0, 0.0, 0.0, 4.0, 600.0, 4.0]
        return 3 * float(self.steps.predict(prompt)), 2 * float(self.steps.predict(decode))

"""Colocated replicas of the compiled loop against this package's own engine on this machine.

Profile and loads are timed in processor time of the one thread, on an idle machine the same as wall
time, so that other programs on a shared machine do not count.
"""

import numpy as np
from benchmarks.common import Check
from benchmarks.serve._processor_clock import ProcessorClock
from benchmarks.serve._replica import SHAPE

from steelyard.cost.phase_time import PhaseStepTime
from steelyard.nn.transformer import build
from steelyard.parallel import torch_threads
from steelyard.serve import SchedulerConfig, make_request, synthetic_rows, with_prompts
from steelyard.serve.engine import LLM
from steelyard.serve.profile import profile
from steelyard.serve.replay import drive_replay
from steelyard.serve.traces import TraceRow
from steelyard.sim.fleet.instance import ReplicaGroup, simulate_fleet
from steelyard.sim.timeline import Timeline

__all__ = ["engine_checks"]

_LOADS = (0.2, 0.4, 0.55, 0.7, 0.85)
"""Rates as shares of what the engine is forecast to carry at most."""
_RUN_S = 7.0
_PROBE_S = 2.0
"""Seconds for which the engine is timed again before each load, to scale the table to the machine's
present speed."""
_CONFIG = SchedulerConfig(
    num_blocks=1200, max_model_len=704, max_num_seqs=32, token_budget=256, prefix_caching=False
)


def engine_checks() -> list[Check]:
    """Forecast five loads from a table of step times that was measured before, then run them."""
    with torch_threads(1):
        llm = LLM(build(SHAPE, seed=0).eval(), _CONFIG, clock=ProcessorClock())
        model = profile(llm, generator=np.random.default_rng(0)).fit()
        most = _most(model)
        pairs = [_pair(llm, model, share * most, seed) for seed, share in enumerate(_LOADS)]
    errors: dict[str, list[float]] = {}
    print(f"{'load':>6s} {'quantity':10s} {'forecast':>10s} {'measured':>10s} {'error':>8s}")
    for share, (forecast, measured) in zip(_LOADS, pairs, strict=True):
        for name, value in _points(measured).items():
            said = _points(forecast)[name]
            errors.setdefault(name, []).append(abs(said / value - 1))
            print(f"{share:6.2f} {name:10s} {said:10.4g} {value:10.4g} {said / value - 1:+8.1%}")
    return [
        Check(
            f"3 colocated, processor time, worst error of {name} over five loads",
            max(values),
            0.1,
            "lower",
        )
        for name, values in errors.items()
    ]


def _rows(rate: float, seed: int, count: int) -> list[TraceRow]:
    """Draw requests of chat-like lengths."""
    return synthetic_rows(
        np.random.default_rng(seed),
        num_requests=count,
        rate_per_s=rate,
        mean_prompt=120,
        mean_output=48,
        max_prompt=384,
        max_output=256,
    )


def _forecast(model: PhaseStepTime, rows: list[TraceRow]) -> Timeline:
    """Simulate requests under the engine's limits."""
    group = ReplicaGroup(
        step_time=model,
        blocks=_CONFIG.num_blocks,
        block_size=_CONFIG.block_size,
        token_budget=_CONFIG.token_budget,
        max_num_seqs=_CONFIG.max_num_seqs,
    )
    columns = np.array([(row.arrival_s, row.input_tokens, row.output_tokens) for row in rows]).T
    return simulate_fleet([group], *columns).timeline


def _most(model: PhaseStepTime) -> float:
    """Return the rate that the engine is forecast to carry when all requests come at once."""
    return _forecast(model, _rows(1e6, 99, 1000)).summary()["serve.request_rate"]


def _pair(llm: LLM, model: PhaseStepTime, rate: float, seed: int) -> tuple[Timeline, Timeline]:
    """Forecast a load at the machine's present speed, then measure it."""
    rows = _rows(rate, seed, max(int(rate * _RUN_S), 60))
    generator = np.random.default_rng(seed)
    trace = with_prompts(rows, generator, vocab_size=SHAPE.vocab_size)
    requests = [make_request(item, row) for row, item in enumerate(trace)]
    probe = profile(llm, generator=generator, limit_s=_PROBE_S)
    forecast = _forecast(probe.anchor(model), rows)
    measured = drive_replay(llm.driver, requests).timeline
    return forecast, measured


def _points(timeline: Timeline) -> dict[str, float]:
    """Return the median and the ninetieth percentile of both times."""
    return {
        f"{name} P{level}": float(np.percentile(values, level))
        for name, values in (("TTFT", timeline.ttft_s), ("TPOT", timeline.tpot_s))
        for level in (50, 90)
    }

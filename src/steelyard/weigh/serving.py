"""Serve the trained model: profile its steps, simulate a trace, replay it for real."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from steelyard.cost.phase_time import PhaseStepTime
from steelyard.cost.step_time import FEATURES, step_features
from steelyard.nn.checkpoint import load
from steelyard.nn.transformer import Transformer
from steelyard.parallel import torch_threads
from steelyard.quantity import Forecast, Measurement
from steelyard.runs.progress import Advance
from steelyard.serve.engine import LLM, default_config
from steelyard.serve.forecast import forecast_replay
from steelyard.serve.profile import profile
from steelyard.serve.traces import TraceRequest, synthetic_rows, with_prompts
from steelyard.sim.timeline import Timeline
from steelyard.weigh.pace import Pace, Pacer, drift

__all__ = ["ServingOutcome", "make_trace", "weigh_serving"]

CHECKED = ("serve.ttft", "serve.tpot", "serve.throughput", "serve.e2e_latency")
"""Quantities of a replay that are forecast and checked."""

_MAX_LENGTH = 448
_LOAD = 0.4
_THREADED_WIDTH = 256
"""Below it, products of a few rows are shorter than the meeting of two threads: one is as fast, and
its times repeat better."""
_PROFILE_SHARE = 0.5
_WARM_SHARE = 0.25
_MEAN_PROMPT = 96.0
_MEAN_OUTPUT = 48.0
_PACE_S = 0.5
_STALL = 5.0
"""Times the usual that one step may count for the scale."""

_LEAST_DRIFT = 0.1
"""A machine strays this far within a minute even where none of it was seen; assumed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingOutcome:
    """What was said of a trace and what came.

    Attributes:
        forecasts: forecasts simulated before the replay.
        measurements: measurements of the replay.
        num_requests: requests of the trace.
        rate_per_s: mean arrivals per second.
    """

    forecasts: list[Forecast]
    measurements: list[Measurement]
    num_requests: int
    rate_per_s: float


def make_trace(
    step_time: PhaseStepTime, *, seconds: float, vocab_size: int, seed: int
) -> tuple[list[TraceRequest], float]:
    """Draw a trace that keeps the engine at about 40 % of its capacity.

    Args:
        step_time: model fitted to the engine; capacity is what it says of 16 sequences at once.
        seconds: time over which requests arrive.
        vocab_size: vocabulary of the model.
        seed: seed of arrivals, lengths and tokens.

    Returns:
        The trace and its rate, requests per second.
    """
    batch = 16
    context = _MEAN_PROMPT + _MEAN_OUTPUT / 2  # tokens cached half-way through a request's output
    decode = step_features(
        sequences=batch,
        prefill_tokens=0,
        prefill_kv=0,
        decode_tokens=batch,
        decode_kv=batch * context,
    )
    decode_s = float(step_time.predict(decode))
    pairs = _MEAN_PROMPT * (_MEAN_PROMPT + 1) / 2
    prefill_s = float(step_time.predict(np.array([0.0, 1.0, _MEAN_PROMPT, pairs, 0.0, 0.0, 0.0])))
    per_request_s = decode_s / batch * _MEAN_OUTPUT + prefill_s
    rate = _LOAD / per_request_s
    generator = np.random.default_rng(seed)
    rows = synthetic_rows(
        generator,
        num_requests=max(int(rate * seconds), 8),
        rate_per_s=rate,
        mean_prompt=_MEAN_PROMPT,
        mean_output=_MEAN_OUTPUT,
        sigma=0.6,
        max_prompt=_MAX_LENGTH - 192,
        max_output=192,
    )
    trace = list(with_prompts(rows, generator, vocab_size=vocab_size))
    return trace, rate


def weigh_serving(
    model: Path, *, seconds: float, seed: int, threads: int, seen: Pace, advance: Advance
) -> ServingOutcome:
    """Forecast how the engine on this machine serves a trace, then let it, and keep both.

    Step times come from a profile of the engine, scaled once to what the steps of a short other
    trace take: requests that come and go leave caches and threads colder than equal batches do.

    Args:
        model: folder of the weights.
        seconds: length of the trace.
        seed: seed of the trace.
        threads: CPU threads for models from width 256 on; 0 leaves torch's choice. Narrower ones
            are served with one.
        seen: speed of the machine in the minutes before.
        advance: callback for progress.

    Returns:
        Simulated forecasts beside real measurements.
    """
    network = load(model)
    is_lone = network.architecture.hidden_size < _THREADED_WIDTH
    strayed = max(drift(seen.lone_windows_s if is_lone else seen.windows_s), _LEAST_DRIFT)
    with torch_threads(1 if is_lone else threads):
        return _weigh(network, seconds, seed, strayed, advance)


def _weigh(
    network: Transformer, seconds: float, seed: int, strayed: float, advance: Advance
) -> ServingOutcome:
    """Profile, forecast and replay with the threads that are set."""
    llm = LLM(network, default_config(network, pool_bytes=64 * 2**20, max_model_len=_MAX_LENGTH))
    advance(0.05, "timing the engine's steps")
    step_time = profile(
        llm, generator=np.random.default_rng(seed), rounds=3, limit_s=_PROFILE_SHARE * seconds
    ).fit()
    vocab_size = network.architecture.vocab_size
    advance(0.25, "a short trace under the same load")
    short, _ = make_trace(
        step_time, seconds=_WARM_SHARE * seconds, vocab_size=vocab_size, seed=seed + 2
    )
    before, during = Pacer(every_s=_PACE_S), Pacer(every_s=_PACE_S)
    warm = llm.replay(short, before.tick).timeline
    # Another seed than the trace below: the scale may not be learnt from what it is checked on.
    step_time = _rescaled(step_time, warm)
    trace, rate = make_trace(step_time, seconds=seconds, vocab_size=vocab_size, seed=seed + 1)
    is_lone = torch.get_num_threads() == 1
    advance(0.4, f"simulating {len(trace)} requests")
    forecasts = [
        replace(item, pace_s=_mean_s(before.pace(), is_lone))
        for item in forecast_replay(llm, trace, step_time, drift=strayed)
        if item.quantity in CHECKED
    ]
    advance(0.5, f"serving {len(trace)} requests at {rate:.1f} per s")
    measurements = [
        replace(item, pace_s=_mean_s(during.pace(), is_lone))
        for item in llm.replay(trace, during.tick).measurements()
        if item.quantity in CHECKED
    ]
    return ServingOutcome(
        forecasts=forecasts,
        measurements=measurements,
        num_requests=len(trace),
        rate_per_s=rate,
    )


def _rescaled(model: PhaseStepTime, replay: Timeline) -> PhaseStepTime:
    """Scale a profiled model to the steps of a replay, prompts apart from the rest.

    Requests that come and go cost prompts more than decoding: they find caches cold.
    """
    features, measured_s = replay.step_features, replay.step_s
    predicted_s = model.predict(features)
    # A pause of the whole process says nothing of the steps to come.
    measured_s = np.minimum(measured_s, _STALL * np.median(measured_s / predicted_s) * predicted_s)
    has_prompt = features[:, FEATURES.index("prefill_tokens")] > 0
    decodes = ~has_prompt
    if not (has_prompt.any() and decodes.any()):
        return model.scaled(float(measured_s.sum() / predicted_s.sum()))
    factor = float(measured_s[decodes].sum() / predicted_s[decodes].sum())
    rest_s = model.scaled(factor, prefill=0.0).predict(features[has_prompt]).sum()
    prompts_s = model.scaled(0.0, prefill=1.0).predict(features[has_prompt]).sum()
    prefill = float(measured_s[has_prompt].sum() - rest_s) / max(float(prompts_s), 1e-12)
    return model.scaled(factor, prefill=max(prefill, factor))


def _mean_s(pace: Pace, is_lone: bool) -> float:
    """Return the mean of the fixed work that serving with so many threads resembles."""
    return pace.lone_mean_s if is_lone else pace.mean_s

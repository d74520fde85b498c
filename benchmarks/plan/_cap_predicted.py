"""Predicted context and rate of exact techniques against the engine, in one run.

Context: bytes of weights and of keys and values from cost, against the longest request that the
engine takes, runs and refuses to exceed. Rate: step times fitted to a profile of the dense engine,
under the engine's own scheduler in virtual time, against the same requests run; nothing of the
techniques themselves is fitted. Profile and runs alternate, and each rate is the median of rounds.
"""

import statistics
from dataclasses import replace

import numpy as np
from benchmarks.common import Check
from benchmarks.plan._cap_advice import DEVICE
from benchmarks.plan._cap_model import Subject

from steelyard.catalog.architecture import Architecture
from steelyard.cost.phase_time import PhaseStepTime
from steelyard.errors import ConfigError
from steelyard.plan.tradeoff.cells import MeasurePlan
from steelyard.plan.tradeoff.configuration import (
    Configuration,
    positioned,
    standard_configurations,
)
from steelyard.plan.tradeoff.predicted import Goals, predict
from steelyard.plan.tradeoff.running import Bench, ProcessorClock, weight_bytes
from steelyard.serve.build import make_engine
from steelyard.serve.engine import LLM
from steelyard.serve.profile import profile
from steelyard.serve.scheduling.params import SamplingParams
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.scheduler import Scheduler
from steelyard.serve.simulate import simulate

__all__ = ["predicted_checks"]

_EXACT = ("dense", "chunked prefill", "prefix cache")


def predicted_checks(made: Subject, plan: MeasurePlan, quick: bool) -> list[Check]:
    """Compare predictions with what the engine does; without rates in a quick run."""
    bench = Bench(
        model=made.model,
        text=made.text,
        encode=made.encode,
        begins=made.begins,
        plan=plan,
        clock="processor",
    )
    exact = [item for item in standard_configurations() if item.name in _EXACT]
    contexts = [_context_error(bench, item) for item in exact]
    found = [Check("3 context of exact techniques, worst error", max(contexts), 0.15, "lower")]
    if quick:  # seconds on a machine that other programs share are judged in the full run alone
        differ = [_other_tokens(bench, exact[0], item) for item in exact[1:]]
        name = "3 tokens of exact techniques that differ from the dense model's"
        return [*found, Check(name, sum(differ), 0, "lower")]
    rates = _rate_errors(bench, exact, plan)
    return [
        *found,
        Check("3 rate of exact techniques, median error", statistics.median(rates), 0.15, "lower"),
        Check("3 rate, worst error", max(rates), 0.15, "lower"),
    ]


def _other_tokens(bench: Bench, dense: Configuration, chosen: Configuration) -> int:
    """Return how many tokens of answers differ between two configurations."""
    asked = bench.asked(bench.plan.reference[-1], 0)
    params = SamplingParams(max_tokens=bench.plan.output_tokens, ignore_end=True)
    rows = []
    for item in (dense, chosen):
        model = positioned(bench.model, item, bench.longest)
        llm = make_engine(model, item.options(1 << 24, bench.longest))
        done = llm.generate([[*one.context, *one.question] for one in asked], params)
        rows.append(np.array([one.tokens for one in done]))
        llm.close()
    return int((rows[0] != rows[1]).sum())


def _context_error(bench: Bench, chosen: Configuration) -> float:
    """Compare the longest request that cost predicts with the one that the engine runs."""
    model = positioned(bench.model, chosen, 1 << 14)
    pool = int(bench.plan.memory_bytes - weight_bytes(bench.model, chosen.weights))
    llm = make_engine(model, chosen.options(pool))
    goals = Goals(context=bench.plan.reference[-1])
    said = predict(
        chosen,
        goals,
        _endless(model.architecture),
        DEVICE,
        dtype="fp32",
        memory_bytes=bench.plan.memory_bytes,
    ).context_tokens
    try:
        ran = _longest_run(llm)
    finally:
        llm.close()
    print(f"{chosen.name}: context {said:.0f} predicted, {ran} run")
    return abs(said / ran - 1)


def _endless(arch: Architecture) -> Architecture:
    """Return an architecture whose positions do not end before the memory."""
    return replace(arch, max_positions=1 << 30)


def _longest_run(llm: LLM) -> int:
    """Return the tokens of the longest request that an engine accepts, after running it."""
    low, high = 1, 1 << 14
    while low + 1 < high:
        middle = (low + high) // 2
        try:
            llm.check(_request(middle))
        except ConfigError:
            high = middle
        else:
            low = middle
    done = llm.generate([[0] * (low - 1)], SamplingParams(max_tokens=1, ignore_end=True))
    assert len(done[0].tokens) == 1
    return low


def _request(tokens: int) -> Request:
    """Return a request of so many tokens, its output included."""
    params = SamplingParams(max_tokens=1, ignore_end=True)
    return Request(id="probe", prompt=[0] * (tokens - 1), params=params)


def _rate_errors(bench: Bench, exact: list[Configuration], plan: MeasurePlan) -> list[float]:
    """Compare rates at each reference length with the scheduler in virtual time."""
    dense = exact[0]
    pool = int(plan.memory_bytes - weight_bytes(bench.model, dense.weights))
    said: dict[tuple[str, int], list[float]] = {}
    ran: dict[tuple[str, int], list[float]] = {}
    for repeat in range(2):
        llm = make_engine(positioned(bench.model, dense, bench.longest), dense.options(pool))
        # Both sides count the processor's seconds, as the table does.
        llm.clock = ProcessorClock()
        samples = profile(llm, generator=np.random.default_rng(repeat), limit_s=8.0)
        llm.close()
        step_time = samples.fit()
        for chosen in exact:
            cell = bench.speed(chosen, 100 + repeat)
            for length, rate in zip(plan.reference, cell.tokens_per_s, strict=True):
                ran.setdefault((chosen.name, length), []).append(rate)
                found = _simulated(bench, chosen, length, 100 + repeat, pool, step_time)
                said.setdefault((chosen.name, length), []).append(found)
    errors = []
    for key, rates in ran.items():
        one, other = statistics.median(said[key]), statistics.median(rates)
        errors.append(abs(one / other - 1))
        print(f"{key[0]} at {key[1]}: {one:.0f} token/s predicted, {other:.0f} measured")
    return errors


def _simulated(
    bench: Bench,
    chosen: Configuration,
    length: int,
    repeat: int,
    pool: int,
    step_time: PhaseStepTime,
) -> float:
    """Return the rate of the same requests under the engine's scheduler in virtual time."""
    llm = make_engine(positioned(bench.model, chosen, bench.longest), chosen.options(pool))
    config = llm.config
    llm.close()
    params = SamplingParams(max_tokens=bench.plan.output_tokens, ignore_end=True)
    prompts = [[*item.context, *item.question] for item in bench.asked(length, repeat)]
    replay = simulate(
        Scheduler(config),
        prompts,
        lambda step: float(step_time.predict(step.features())),
        lambda prompt, row: Request(id=f"{row}", prompt=prompt, params=params),
    )
    tokens = len(prompts) * bench.plan.output_tokens
    return tokens / float(replay.timeline.last_token_s.max())

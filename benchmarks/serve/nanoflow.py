"""NanoFlow: the optimum of a serving device, overlap within a step, and planning one step ahead."""

import time
from unittest import mock

import torch
from benchmarks.common import Check, median_spread
from benchmarks.serve._nano_overlap import planned_checks, run_checks
from benchmarks.serve._peer_engine import Ours
from benchmarks.serve._peer_race import llama, make_trace

from steelyard import catalog
from steelyard.cost import Efficiencies, Machine, optimal_throughput
from steelyard.nn.transformer import build
from steelyard.serve import SamplingParams, TraceRequest
from steelyard.serve.engine import LLM
from steelyard.serve.scheduling.step import StepOutput, StepPlan

PAPER = ["54-nanoflow"]

_BATCH = 64


def run(quick: bool) -> list[Check]:
    """Compare the formula with the paper, schedules with none, and both ways of planning steps."""
    return [
        *_optimum_checks(),
        *planned_checks(),
        *run_checks(quick),
        *_asynchronous_checks(quick),
    ]


def _optimum_checks() -> list[Check]:
    """Compare the formula with the paper's figure and its two classifications."""
    a100 = Machine.from_accelerator(
        catalog.accelerator("A100-SXM4-80GB"), efficiencies=Efficiencies.peak()
    )
    large, small = (
        catalog.architecture_by_name("llama-2-70b"),
        catalog.architecture_by_name("llama-3-8b"),
    )
    rate = 260e12
    found = optimal_throughput(
        large,
        a100,
        prompt_tokens=512,
        output_tokens=512,
        tensor_parallel=8,
        gemm_flops_per_s=rate,
        parameters=70e9,
        max_dense_tokens=2048,
    )
    decode = optimal_throughput(
        small,
        a100,
        prompt_tokens=512,
        output_tokens=512,
        gemm_flops_per_s=rate,
        requests=32,
        phase="decode",
    )
    print(
        f"Llama-2-70B on 8 A100: {found.tokens_per_s_per_device:.0f} tokens/s per device, "
        f"{found.bottleneck}-bound"
    )
    print(f"Llama-3-8B decoding a batch of 32: {decode.bottleneck}-bound")
    error = abs(found.tokens_per_s_per_device / 1857 - 1)
    return [
        Check(
            "1 error of the optimum against the published 1857 tokens/s per device",
            error,
            0.01,
            "lower",
        ),
        Check(
            "1 Llama-2-70B on 8 A100 is compute-bound",
            float(found.bottleneck == "compute"),
            1.0,
            "higher",
        ),
        Check(
            "1 Llama-3-8B decoding a batch of 32 is memory-bound",
            float(decode.bottleneck == "memory"),
            1.0,
            "higher",
        ),
    ]


def _asynchronous_checks(quick: bool) -> list[Check]:
    """Serve the same 64 requests with both ways of scheduling, in turn, on small models."""
    found: list[Check] = []
    for name in ["9M"] if quick else ["9M", "35M"]:
        model = build(llama(name)).eval()
        engines = {
            kind: Ours(model, concurrency=_BATCH, asynchronous=kind == "asynchronous").llm
            for kind in ("synchronous", "asynchronous")
        }
        trace = make_trace(_BATCH, prompt_tokens=16, output_tokens=32 if quick else 128)
        tokens = sum(item.output_tokens for item in trace)
        outputs = {kind: _serve(engine, trace)[0] for kind, engine in engines.items()}
        seconds: dict[str, list[float]] = {kind: [] for kind in engines}
        for _ in range(3 if quick else 7):
            for kind, engine in engines.items():
                seconds[kind].append(_serve(engine, trace)[1])
        outside = _outside_runner(engines["synchronous"], trace)
        print(
            f"{name} batch {_BATCH}: {outside:.1%} of the time is planning, so that a step ahead "
            f"gains at most {1 / (1 - outside):.3f}"
        )
        for kind, samples in seconds.items():
            spread = median_spread([tokens / item for item in samples])
            print(
                f"{name} batch {_BATCH} {kind:13s} {spread.median:8.0f} output tokens/s "
                f"[{spread.low:.0f}, {spread.high:.0f}]"
            )
        gain = median_spread(
            [a / b for a, b in zip(seconds["synchronous"], seconds["asynchronous"], strict=True)]
        ).median
        found.append(
            Check(
                f"4 asynchronous over synchronous scheduling, tokens/s, {name} parameters, "
                f"batch {_BATCH}",
                gain,
                1.15,
                "higher",
            )
        )
        same = float(outputs["synchronous"] == outputs["asynchronous"])
        found.append(
            Check(
                f"5 outputs of both ways of scheduling identical, {name} parameters",
                same,
                1.0,
                "higher",
            )
        )
    return found


def _outside_runner(engine: LLM, trace: list[TraceRequest]) -> float:
    """Return the share of the time in which a synchronous engine runs no step."""
    runner = engine.driver.runner
    spent_s = 0.0

    def timed(plan: StepPlan) -> StepOutput:
        nonlocal spent_s
        start = time.perf_counter()
        output = execute(plan)
        spent_s += time.perf_counter() - start
        return output

    execute = runner.execute
    with mock.patch.object(runner, "execute", timed):
        whole_s = _serve(engine, trace)[1]
    return 1 - spent_s / whole_s


def _serve(engine: LLM, trace: list[TraceRequest]) -> tuple[list[list[int]], float]:
    """Run all requests and return outputs and seconds."""
    asked = [SamplingParams(max_tokens=item.output_tokens, ignore_end=True) for item in trace]
    start = time.perf_counter()
    with torch.inference_mode():
        done = engine.generate([item.prompt for item in trace], asked)
    return [item.tokens for item in done], time.perf_counter() - start

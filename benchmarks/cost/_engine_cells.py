"""Prompts, decoding steps and swaps of the engine over contexts, beside their predictions.

Calibration and measurement both take the smallest of their repeats, the time without other work on
the machine.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from benchmarks.common import Check

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.hardware import Accelerator
from steelyard.cost import ServeStepTime, forward_flops, kv_bytes_per_token, serve_point
from steelyard.cost.held import parameter_count
from steelyard.cost.longcontext import Bound
from steelyard.data.tiers.transfers import Transfer
from steelyard.nn.transformer import build
from steelyard.serve import SamplingParams, SchedulerConfig, TraceRequest
from steelyard.serve.engine import LLM
from steelyard.serve.forecast import simulate_replay
from steelyard.serve.kv.tiers import TieredKV, make_store
from steelyard.serve.profile import profile

_BLOCK = 16
_DECODES = 8
_REST_S = 0.3
_CALIBRATED = (0.042, 0.054, 0.075, 0.105, 0.155, 0.21, 0.31, 0.42, 0.63, 0.86)
"""Contexts whose swaps are timed, as shares of the longest; none is one of those predicted."""


@dataclass(frozen=True)
class Cell:
    """One quantity at one context: predicted and measured seconds, predicted and measured bound."""

    quantity: str
    context: int
    predicted_s: float
    measured_s: float
    said: Bound
    seen: Bound

    @property
    def error(self) -> float:
        """|predicted / measured - 1|."""
        return abs(self.predicted_s / self.measured_s - 1)


def engine_checks(quick: bool) -> list[Check]:
    """Calibrate once, predict, measure."""
    torch.set_num_threads(min(torch.get_num_threads(), 2))
    contexts = (512, 1024) if quick else (512, 1024, 2048, 4096, 8000)
    llm = _engine(max(contexts), quick)
    swap = _Swap(llm)
    rounds, limit_s = (2, 8.0) if quick else (4, 200.0)
    samples = profile(llm, generator=np.random.default_rng(0), rounds=rounds, limit_s=limit_s)
    steps = ServeStepTime.fit(samples.features, samples.round_seconds.min(axis=1))
    swap.calibrate(max(contexts) // _BLOCK)
    machine = _machine(
        2
        * max(contexts)
        * kv_bytes_per_token(llm.model.architecture, 4.0)
        / swap.predict(max(contexts) // _BLOCK)
    )
    cells = [
        cell
        for context in contexts
        for cell in _cells(llm, swap, steps, machine, context, 3 if quick else 7)
    ]
    print(
        f"\n{'quantity':9s} {'context':>8s} {'predicted':>10s} {'measured':>10s} {'error':>7s} "
        f"bound by"
    )
    for cell in cells:
        label = cell.said if cell.said == cell.seen else f"{cell.seen}, not {cell.said}"
        print(
            f"{cell.quantity:9s} {cell.context:8d} {cell.predicted_s:10.4f} "
            f"{cell.measured_s:10.4f} {cell.error:7.1%} {label}"
        )
    checks = []
    for name in ("prefill", "decode", "swap"):
        worst = max(cell.error for cell in cells if cell.quantity == name)
        checks.append(Check(f"2 worst error of {name} on this machine", worst, 0.15, "lower"))
    wrong = sum(cell.said != cell.seen for cell in cells) / len(cells)
    return [
        *checks,
        Check(
            "2 share of times whose bound, compute or bandwidth, is named wrongly",
            wrong,
            0.0,
            "lower",
        ),
    ]


def _engine(longest: int, quick: bool) -> LLM:
    """Make an engine whose weights exceed the caches: 8M parameters when quick, else 44M."""
    width, layers = (256, 4) if quick else (768, 6)
    arch = Architecture(
        name="long-context-llama",
        hidden_size=width,
        num_layers=layers,
        num_heads=width // 64,
        num_kv_heads=width // 128,
        head_dim=64,
        intermediate_size=11 * width // 4,
        vocab_size=8192,
        max_positions=longest + 512,
        tied_embeddings=False,
    )
    blocks = 2 * longest // _BLOCK + 64
    config = SchedulerConfig(
        num_blocks=blocks,
        block_size=_BLOCK,
        max_model_len=longest + 256,
        max_num_seqs=8,
        prefix_caching=False,
    )
    return LLM(build(arch, seed=0).eval(), config)


class _Swap:
    """Moves the blocks of one context out of the engine's pool and back."""

    def __init__(self, llm: LLM) -> None:
        self.pool = llm.runner.kv
        self.blocks = llm.config.num_blocks // 2
        self.tiers = TieredKV(self.pool, make_store(self.pool, self.blocks))
        self.moves = 0
        self.sizes, self.times = np.empty(0), np.empty(0)

    def calibrate(self, most: int) -> None:
        """Time sizes between those that are predicted later.

        Small copies stay in the processor's caches and cost less per block, so one rate for all
        sizes would not do, and where the caches end is found by sizes close to each other only.
        Two passes over all sizes: what disturbs the machine for a second spoils one of them.
        """
        sizes = np.unique([round(most * share) for share in _CALIBRATED if most * share >= 1])
        passes = [[self.seconds(int(size)) for size in sizes] for _ in range(2)]
        self.sizes, self.times = np.log(sizes), np.log(np.min(passes, axis=0))

    def predict(self, count: int) -> float:
        """Interpolate between calibrated sizes in log space; beyond them the last slope holds."""
        at = float(np.log(count))
        index = int(np.clip(np.searchsorted(self.sizes, at), 1, len(self.sizes) - 1))
        slope = (self.times[index] - self.times[index - 1]) / (
            self.sizes[index] - self.sizes[index - 1]
        )
        return float(np.exp(self.times[index] + slope * (at - self.sizes[index])))

    def seconds(self, count: int, repeats: int = 9) -> float:
        """Return the least time of `count` blocks out and in."""
        runs = np.array([[0, 0, min(count, self.blocks)]], dtype=np.int64)
        times = []
        # Threads of a step before spin for a fifth of a second, on the cores that copies need.
        time.sleep(_REST_S)
        for _ in range(repeats + 1):
            start = time.perf_counter()
            for direction in ("out", "in"):
                self.moves += 1
                self.tiers.submit(
                    [Transfer(id=self.moves, request_id="user", direction=direction, runs=runs)]
                )
                self.tiers.wait([self.moves])
                self.tiers.landed()
            times.append(time.perf_counter() - start)
        return min(times)


def _cells(
    llm: LLM, swap: _Swap, steps: ServeStepTime, machine: Accelerator, context: int, repeats: int
) -> list[Cell]:
    """Predict and measure the three quantities at one context."""
    arch = llm.model.architecture
    said = serve_point(arch, machine, context=context, dtype="fp32").bounds
    prompt = np.random.default_rng(context).integers(0, arch.vocab_size, context).tolist()
    predicted = simulate_replay(
        llm, [TraceRequest(arrival_s=0.0, prompt=prompt, output_tokens=1)], steps
    ).summary()["serve.ttft"]
    prefill_s = min(_prefill_s(llm, prompt) for _ in range(repeats))
    decode_s, features = _decode_s(llm, prompt, repeats)
    blocks = -(-context // _BLOCK)
    chunks = -(-context // llm.config.token_budget)
    weights, cache = sum(parameter_count(arch)) * 4.0, context * kv_bytes_per_token(arch, 4.0)
    seen_prefill = _binding(
        machine,
        prefill_s,
        forward_flops(arch, context, convention="causal"),
        chunks * weights + chunks * cache / 2,
    )
    seen_decode = _binding(
        machine, decode_s, forward_flops(arch, 1) + 2 * cache / 4, weights + cache
    )
    return [
        Cell("prefill", context, predicted, prefill_s, said["prefill"], seen_prefill),
        Cell(
            "decode",
            context,
            float(np.asarray(steps.predict(features))),
            decode_s,
            said["decode"],
            seen_decode,
        ),
        Cell("swap", context, swap.predict(blocks), swap.seconds(blocks), said["switch"], "link"),
    ]


def _binding(machine: Accelerator, seconds: float, flops: float, num_bytes: float) -> Bound:
    """Name the resource that was used to the larger share of its measured rate."""
    compute, bandwidth = (
        flops / machine.peak_flops_per_s["fp32"],
        num_bytes / machine.memory_bytes_per_s,
    )
    return "compute" if compute / seconds >= bandwidth / seconds else "bandwidth"


def _prefill_s(llm: LLM, prompt: list[int]) -> float:
    """Return the seconds from a prompt to its first token."""
    llm.reset()
    start = time.perf_counter()
    llm.generate([prompt], SamplingParams(max_tokens=1, ignore_end=True))
    return time.perf_counter() - start


def _decode_s(llm: LLM, prompt: list[int], repeats: int) -> tuple[float, np.ndarray]:
    """Time decoding steps after a prompt; the prompt's steps happen in the books only."""
    times, features = [], np.empty(0)
    for _ in range(repeats):
        llm.reset()
        llm.add_request(prompt, SamplingParams(max_tokens=_DECODES + 1, ignore_end=True))
        while llm.scheduler.has_work:
            start = time.perf_counter()
            plan = llm.scheduler.schedule(0.0)
            if plan is None:
                break
            if plan.num_decodes == 0:
                llm.scheduler.complete(plan, plan.blank_output(), 0.0)
                continue
            output = llm.runner.execute(plan)
            llm.scheduler.complete(plan, output, 0.0)
            times.append(time.perf_counter() - start)
            features = plan.features()
    return min(times), features


def _machine(copy_bytes_per_s: float) -> Accelerator:
    """Measure the rates that name the bound: matrix products, memory, copies between the tiers."""
    a = torch.randn(1024, 1024)
    seconds = _best_s(lambda: a @ a)
    big = torch.ones(2**25)
    other = torch.empty_like(big)
    stream_s = _best_s(lambda: other.copy_(big))
    return Accelerator(
        name="this machine",
        vendor="",
        kind="cpu",
        year=2024,
        peak_flops_per_s={"fp32": 2 * 1024**3 / seconds},
        memory_bytes=8e9,
        memory_bytes_per_s=2 * big.numel() * 4 / stream_s,
        host_link_bytes_per_s=copy_bytes_per_s,
    )


def _best_s(work: Callable[[], object]) -> float:
    """Return the least time of several calls."""
    times = []
    for _ in range(8):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)

"""Memory of keys and values under load: what allocators waste and yield, what sharing saves.

Simulated parts drive the engine's own scheduler with the paper's set-up, OPT-13B on one A100-40G:
15.7K slots, 2,048 tokens at most, step times from a roofline. They use true lengths of ShareGPT.
Parts that run a model use lengths divided by 8.
"""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from benchmarks.common import Check
from benchmarks.laws._shared import shared
from benchmarks.serve._contiguous import ContiguousMemory, contiguous_limits
from benchmarks.serve._equal_outputs import RESERVATIONS, equality_checks, small_model

from steelyard import catalog
from steelyard.cost.roofline import Machine
from steelyard.cost.step_time import ServeStepTime
from steelyard.errors import DataError
from steelyard.serve import (
    Request,
    SamplingParams,
    Scheduler,
    SchedulerConfig,
    TraceRequest,
    make_request,
)
from steelyard.serve.engine import LLM
from steelyard.serve.scheduling.memory import KVMemory
from steelyard.serve.scheduling.usage import KVUsage
from steelyard.serve.simulate import simulate

__all__ = ["checks", "lengths", "load_run"]

Allocator = Literal["contiguous-max", "contiguous-pow2", "contiguous-oracle", "paged"]

_PARTS: dict[Allocator, float] = {
    "contiguous-max": 0.25,
    "contiguous-pow2": 0.35,
    "contiguous-oracle": 0.5,
    "paged": 1.0,
}
"""Share of the requests that each allocator gets: a smaller batch is in its steady state sooner."""
_SLOTS, _LONGEST, _BLOCK = 15_700, 2048, 16


@dataclass(frozen=True)
class LoadRun:
    """What one allocator did under load.

    Attributes:
        utilization: token states over the slots that no idle prefix takes, mean over steps with a
            request waiting.
        shares: parts of the pool that were stored, cached, reserved, internal and external, mean
            over the same steps.
        batched: sequences running, mean over time; when all arrive at once, over the time in which
            requests wait.
        tokens_per_s: output tokens per simulated second while requests waited.
        queued: share of steps with a request waiting.
    """

    utilization: float
    shares: tuple[float, ...]
    batched: float
    tokens_per_s: float
    queued: float


@dataclass
class _Log:
    """Samples of each step."""

    usage: list[KVUsage] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)


class _Watched(Scheduler):
    """A scheduler that logs its pool after every step."""

    def __init__(
        self, config: SchedulerConfig, log: _Log, *, memory: KVMemory | None = None
    ) -> None:
        super().__init__(config, memory=memory)
        self.log = log

    def kv_utilization(self) -> float:
        """Log, and leave the rest to the engine's own."""
        self.log.usage.append(self.usage())
        self.log.waiting.append(len(self.waiting))
        self.log.running.append(len(self.running))
        return super().kv_utilization()


def lengths(count: int, seed: int = 0) -> np.ndarray:
    """Draw (input, output) tokens of ShareGPT conversations that fit in 2,048 tokens.

    Args:
        count: conversations.
        seed: seed of the draws.

    Returns:
        int64 [count, 2].

    Raises:
        DataError: the data set is not on this machine.
    """
    with gzip.open(shared("llm-traces") / "sharegpt_lengths.csv.gz", "rt") as file:
        rows = np.array(
            [(int(row["input_tokens"]), int(row["output_tokens"])) for row in csv.DictReader(file)]
        )
    fitting = rows[(rows.sum(axis=1) <= _LONGEST) & (rows.min(axis=1) >= 4)]
    return fitting[np.random.default_rng(seed).integers(0, len(fitting), count)]


def load_run(
    allocator: Allocator, sizes: np.ndarray, *, rate_per_s: float, prefix_caching: bool = False
) -> LoadRun:
    """Serve Poisson arrivals with one allocator, in simulation.

    Args:
        allocator: name of the pool's allocator.
        sizes: (input, output) tokens, int64 [R, 2].
        rate_per_s: mean arrivals per second; infinity for all at once.
        prefix_caching: whether blocks that nobody holds keep their tokens until space is needed; no
            two prompts are alike, so only preempted requests find theirs again.

    Returns:
        Means over its steps.
    """
    gaps = np.random.default_rng(1).exponential(1.0 / rate_per_s, len(sizes))
    trace = [
        TraceRequest(
            arrival_s=float(arrival), prompt=[row] * int(prompt), output_tokens=int(output)
        )
        for row, (arrival, (prompt, output)) in enumerate(zip(np.cumsum(gaps), sizes, strict=True))
    ]
    config = SchedulerConfig(
        num_blocks=_SLOTS // _BLOCK,
        block_size=_BLOCK,
        token_budget=2048,
        max_num_seqs=256,
        max_model_len=_LONGEST,
        prefix_caching=prefix_caching,
    )
    log, model = _Log(), _step_time()
    memory = None
    if allocator != "paged":
        config = contiguous_limits(config)
        memory = ContiguousMemory(config, RESERVATIONS[allocator])
    replay = simulate(
        _Watched(config, log, memory=memory),
        trace,
        lambda plan: float(model.predict(plan.features())),
        make_request,
    )
    queued = np.array(log.waiting) > 0
    sampled = np.array([len(plan.sampled) for plan in replay.plans])
    parts = np.array(
        [
            (item.stored, item.cached, item.reserved, item.internal, item.external)
            for item in log.usage
        ]
    )
    filled = np.array([item.utilization for item in log.usage])
    seconds = replay.timeline.step_s
    return LoadRun(
        utilization=float(filled[queued].mean()),
        shares=tuple((parts[queued].mean(axis=0) / (config.num_blocks * _BLOCK)).tolist()),
        batched=float(
            np.average(log.running, weights=seconds * queued if np.isinf(rate_per_s) else seconds)
        ),
        tokens_per_s=float(sampled[queued].sum() / max(seconds[queued].sum(), 1e-9)),
        queued=float(queued.mean()),
    )


def _step_time() -> ServeStepTime:
    """Return step times of the paper's set-up."""
    machine = Machine.from_accelerator(catalog.accelerator("A100-SXM4-40GB"), dtype="fp16")
    return ServeStepTime.from_roofline(catalog.architecture_by_name("opt-13b"), machine)


def checks(quick: bool) -> list[Check]:
    """Compare allocators, outputs and sharing, and print what was found."""
    found = []
    try:
        found += _load_checks(quick)
    except DataError as error:
        print(f"no comparison of allocators: {error}; {error.hint}")
    return [*found, *equality_checks(quick), *_sharing_checks(quick)]


def _load_checks(quick: bool) -> list[Check]:
    """Compare the allocators at saturation, and at the paper's 2 requests per second."""
    sizes = lengths(130 if quick else 800)
    print(
        f"simulated: OPT-13B on A100-40G, {_SLOTS} slots, {len(sizes)} ShareGPT requests at true "
        f"lengths, mean {sizes.mean(axis=0)}"
    )
    print(
        "allocator             stored   cached reserved internal external  batched  output "
        "tokens/s (all requests at once)"
    )
    full: dict[str, LoadRun] = {
        name: load_run(name, sizes[: int(len(sizes) * part)], rate_per_s=float("inf"))
        for name, part in _PARTS.items()
    }
    full["paged + cache"] = load_run("paged", sizes, rate_per_s=float("inf"), prefix_caching=True)
    for name, item in full.items():
        shares = " ".join(f"{share:8.1%}" for share in item.shares)
        print(
            f"{name:18s} {shares} {item.batched:8.2f} {item.tokens_per_s:10.0f}  utilization "
            f"{item.utilization:.1%}"
        )
    steady: tuple[Allocator, ...] = () if quick else ("contiguous-max", "paged")
    for name in steady:
        item = load_run(name, sizes, rate_per_s=2.0)
        print(
            f"{name:18s} at 2 requests/s: {item.batched:.2f} batched, requests waiting in "
            f"{item.queued:.0%} of steps"
        )
    paged, whole = full["paged"], full["contiguous-max"]
    return [
        Check(
            "1 slots wasted, paged with the default prefix cache (simulated)",
            1 - full["paged + cache"].utilization,
            0.04,
            "lower",
        ),
        Check("1 slots wasted, contiguous-max (simulated)", 1 - whole.utilization, 0.60, "higher"),
        Check(
            "1 throughput over contiguous-max (simulated)",
            paged.tokens_per_s / whole.tokens_per_s,
            2.0,
            "higher",
        ),
        Check(
            "1 throughput over contiguous-oracle (simulated)",
            paged.tokens_per_s / full["contiguous-oracle"].tokens_per_s,
            1.3,
            "higher",
        ),
        Check(
            "2 batched requests over contiguous-max (simulated)",
            paged.batched / whole.batched,
            3.5,
            "higher",
        ),
    ]


def _sharing_checks(quick: bool) -> list[Check]:
    """Count the blocks that beams share, and time prompts that begin with the same examples."""
    saved = _beam_saving(3 if quick else 40)
    found = [
        Check("4 share of blocks saved by beam width 6 (real)", saved, 0.37, "higher"),
        Check(
            "4 throughput with a shared 5-shot prefix over without (simulated)",
            _simulated_prefix_ratio(),
            2.5,
            "higher",
        ),
    ]
    if not quick:
        found.append(
            Check(
                "4 throughput with a shared 5-shot prefix over without (real)",
                _shared_prefix_ratio(48, 3),
                2.5,
                "higher",
            )
        )
    return found


def _simulated_prefix_ratio() -> float:
    """Compare output tokens per second with and without sharing in the paper's set-up.

    Returns:
        The ratio for prompts of 341 + 40 tokens and outputs of 40 (Kwon et al. 2023, section 6.4).
    """
    generator, model = np.random.default_rng(5), _step_time()
    examples = generator.integers(0, 50_000, 341).tolist()
    prompts = [examples + generator.integers(0, 50_000, 40).tolist() for _ in range(400)]
    trace = [TraceRequest(arrival_s=0.0, prompt=prompt, output_tokens=40) for prompt in prompts]
    rates = {}
    for shares in (False, True):
        config = SchedulerConfig(
            num_blocks=_SLOTS // _BLOCK,
            token_budget=2048,
            max_num_seqs=256,
            max_model_len=_LONGEST,
            prefix_caching=shares,
        )
        scheduler = Scheduler(config)
        if shares:
            scheduler.pin_prefix(examples)
        replay = simulate(
            scheduler, trace, lambda plan: float(model.predict(plan.features())), make_request
        )
        rates[shares] = replay.summary()["serve.throughput"]
    print(
        f"simulated OPT-13B, prefix of 341 tokens, 400 requests: "
        f"{rates[True] / rates[False]:.2f}x the throughput without sharing"
    )
    return rates[True] / rates[False]


def _beam_saving(count: int) -> float:
    """Return the share of blocks that beams of width 6 save, with ShareGPT lengths over 8."""
    try:
        sizes = np.maximum(lengths(count, seed=3) // 8, 2)
        source = "ShareGPT lengths / 8"
    except DataError:
        sizes = np.random.default_rng(3).integers(4, 64, (count, 2))
        source = "uniform lengths"
    sizes[:, 1] = np.minimum(sizes[:, 1], 64)
    llm = LLM(
        small_model(),
        SchedulerConfig(
            num_blocks=4096, block_size=2, token_budget=128, max_num_seqs=48, max_model_len=320
        ),
    )
    generator = np.random.default_rng(4)
    for prompt, output in sizes.tolist():
        tokens = generator.integers(0, 512, min(prompt, 240)).tolist()
        llm.add_request(tokens, SamplingParams(max_tokens=output, beam_width=6, ignore_end=True))
    shares = []
    while llm.scheduler.has_work:
        llm.step()
        shares += [
            _saving(request) for request in llm.scheduler.running if len(request.sequences) > 1
        ]
    print(
        f"beam width 6, blocks of 2 tokens, {source}: {np.mean(shares):.1%} of blocks saved "
        f"(paper 44-66 % at true lengths)"
    )
    return float(np.mean(shares))


def _saving(request: Request) -> float:
    """Return the share of a family's table entries that need no block of their own."""
    blocks = np.concatenate([item.table.blocks for item in request.sequences])
    return 1 - len(np.unique(blocks)) / len(blocks)


def _shared_prefix_ratio(count: int, rounds: int) -> float:
    """Time requests of 341 + 40 prompt tokens and 40 output tokens, with and without sharing."""
    model = small_model(vocab_size=2048, width=384, layers=4)
    generator = np.random.default_rng(5)
    examples = generator.integers(0, 2048, 341).tolist()
    prompts = [examples + generator.integers(0, 2048, 40).tolist() for _ in range(count)]
    params = SamplingParams(max_tokens=40, ignore_end=True)
    engines = {
        shares: LLM(
            model,
            SchedulerConfig(
                num_blocks=200,
                token_budget=512,
                max_num_seqs=64,
                max_model_len=448,
                prefix_caching=shares,
            ),
        )
        for shares in (False, True)
    }
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for shares, llm in engines.items():
            llm.reset()
            if shares:
                llm.scheduler.pin_prefix(examples)
            start = llm.clock.now_s()
            llm.generate(prompts, params)
            seconds[shares].append(llm.clock.now_s() - start)
    ratio = float(np.median(seconds[False]) / np.median(seconds[True]))
    print(
        f"prefix of 341 tokens, {count} requests, pool of 3,200 slots: {ratio:.2f}x the "
        f"throughput without sharing (paper 3.58x)"
    )
    return ratio

"""Types of weights on the CPU: speed of each, beside what memory and multipliers allow.

Bounds are measured here: the rate at which both cores stream memory, and the best rate of large
products in each type that PyTorch or our own kernels reach. A step can be no faster than the larger
of its bytes over the one and its operations over the other, those of attention among both; how far
it is from that of its weights alone is printed beside.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from benchmarks.common import Check
from benchmarks.serve._shapes import llama_shape
from benchmarks.serve._weight_products import product_checks

from steelyard.cost.eager import matrix_elements
from steelyard.cost.engine_step import decode_features, part_works
from steelyard.nn.transformer import build
from steelyard.serve import SamplingParams, SchedulerConfig
from steelyard.serve.engine import LLM
from steelyard.serve.running.runner import TorchRunner
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.step import StepPlan

PAPER = ["87-pagedattention"]

_KINDS = ("fp32", "bf16", "int8", "int4")
_CONTEXT = 64
_PROMPT = 1500


def run(quick: bool) -> list[Check]:
    """Time every type on models of random weights; `weight_quality` weighs what they lose."""
    found = product_checks(quick)
    for name in ["8x512"] if quick else ["8x512", "16x1024"]:
        found += _Shape(name).checks(quick)
    return found


@dataclass(frozen=True)
class _Bounds:
    """What this machine allows.

    Attributes:
        stream_bytes_per_s: rate at which memory is read.
        flops_per_s: rate of products, by type.
    """

    stream_bytes_per_s: float
    flops_per_s: dict[str, float]

    def seconds(self, num_bytes: float, *operations: tuple[str, float]) -> float:
        """Return the larger of both bounds, of operations with their types."""
        compute_s = sum(flops / self.flops_per_s[kind] for kind, flops in operations)
        return max(num_bytes / self.stream_bytes_per_s, compute_s)


def _best(work: Callable[[], object], turns: int) -> float:
    """Return the shortest of several runs, after one that is not timed."""
    work()
    seconds = []
    for _ in range(turns):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _measured_bounds(turns: int) -> _Bounds:
    """Measure memory with a sum over 256 MiB, and products of 1,024 rows."""
    memory = torch.zeros(64 * 2**20)
    stream = memory.nbytes / _best(memory.sum, turns)
    rates = {}
    for kind, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("int8", torch.int8)):
        left, right = (torch.ones(1024, 1024).to(dtype) for _ in range(2))
        multiply = torch.ops.aten._int_mm if kind == "int8" else torch.mm
        seconds = _best(lambda left=left, right=right, run=multiply: run(left, right), turns)
        rates[kind] = 2 * 1024**3 / seconds
    return _Bounds(stream, rates | {"int4": rates["int8"]})


class _Shape:
    """Engines of one shape, one for each type of weights."""

    def __init__(self, name: str) -> None:
        """Build the model once and pack it in every type."""
        self.name, self.architecture = name, llama_shape(name)
        model = build(self.architecture)
        config = SchedulerConfig(
            num_blocks=512, max_model_len=2048, token_budget=512, max_num_seqs=32
        )
        self.engines = {kind: LLM(model, config, weights=kind) for kind in _KINDS}
        for kind in _KINDS:
            # The first steps of an engine also take pages of the pool, one by one.
            self._runner(kind).kv.zero_()

    def checks(self, quick: bool) -> list[Check]:
        """Print the table and return what has a bar."""
        turns = 5 if quick else 15
        bounds = _measured_bounds(turns)
        rates = ", ".join(f"{k} {r / 1e9:.0f}" for k, r in bounds.flops_per_s.items())
        print(
            f"{self.name}: memory {bounds.stream_bytes_per_s / 1e9:.1f} GB/s; products, GFLOP/s: "
            f"{rates}"
        )
        steps = self._step_seconds((1, 4, 8, 16, 32), turns)
        prompts = self._prompt_seconds(2 if quick else 3)
        tokens = self._tokens_per_s(quick)
        found = []
        for kind in _KINDS:
            found += self._show(kind, steps, prompts[kind], tokens[kind], bounds)
        for kind in _KINDS[1:]:
            gain = steps["fp32", 1] / steps[kind, 1]
            found.append(
                Check(f"1 {self.name} {kind}: decoding, fp32's time over its", gain, 1.0, "higher")
            )
        return found

    def _runner(self, kind: str) -> TorchRunner:
        """Return what runs the steps of an engine."""
        runner = self.engines[kind].runner
        assert isinstance(runner, TorchRunner)
        return runner

    def _step_seconds(self, rows: tuple[int, ...], turns: int) -> dict[tuple[str, int], float]:
        """Time decoding steps, types in turn."""
        best: dict[tuple[str, int], float] = {}
        for count in rows:
            plan = _decode_plan(count)
            for _ in range(turns + 1):
                for kind in _KINDS:
                    start = time.perf_counter()
                    self._runner(kind).execute(plan)
                    seconds = time.perf_counter() - start
                    best[kind, count] = min(best.get((kind, count), seconds), seconds)
        return best

    def _prompt_seconds(self, turns: int) -> dict[str, float]:
        """Time a prompt to its first token."""
        best: dict[str, float] = dict.fromkeys(_KINDS, float("inf"))
        draw = np.random.default_rng(0)
        for _ in range(turns):
            prompt = draw.integers(0, 8192, _PROMPT).tolist()  # new, so that no prefix is found
            for kind in _KINDS:
                start = time.perf_counter()
                self.engines[kind].generate([prompt], SamplingParams(max_tokens=1))
                best[kind] = min(best[kind], time.perf_counter() - start)
        return best

    def _tokens_per_s(self, quick: bool) -> dict[str, float]:
        """Serve requests of mixed lengths, 32 at once, and count output tokens."""
        draw = np.random.default_rng(1)
        count = 16 if quick else 64
        prompts = [draw.integers(0, 8192, size).tolist() for size in draw.integers(64, 512, count)]
        asked = [
            SamplingParams(max_tokens=int(size), ignore_end=True)
            for size in draw.integers(16, 32 if quick else 128, count)
        ]
        total = sum(item.max_tokens for item in asked)
        best: dict[str, float] = dict.fromkeys(_KINDS, 0.0)
        for _ in range(1 if quick else 3):
            for kind in _KINDS:
                self.engines[kind].reset()
                start = time.perf_counter()
                self.engines[kind].generate(prompts, asked)
                best[kind] = max(best[kind], total / (time.perf_counter() - start))
        return best

    def _show(
        self,
        kind: str,
        steps: dict[tuple[str, int], float],
        prompt_s: float,
        tokens: float,
        bounds: _Bounds,
    ) -> list[Check]:
        """Print one type's line and return its checks."""
        elements, size = matrix_elements(self.architecture), self._runner(kind).packed_bytes
        found, words = [], []
        for (name, rows), seconds in steps.items():
            if name != kind:
                continue
            kv = "fp32" if kind == "fp32" else "bf16"
            read = part_works(self.architecture, decode_features(rows, _CONTEXT), kv)["decode"]
            products = kind, 2 * rows * elements
            alone = seconds / bounds.seconds(size, products)
            over = seconds / bounds.seconds(size + read.num_bytes, products, (kv, read.flops))
            words.append(f"{rows}: {seconds * 1e3:.1f} ({over:.2f}x, weights alone {alone:.2f}x)")
            label = f"2 {self.name} {kind}: step of {rows} rows over its bound"
            found.append(Check(label, over, 1.25, "lower"))
        layers = elements - self.architecture.vocab_size * self.architecture.hidden_size
        rate = 2 * _PROMPT * layers / prompt_s / bounds.flops_per_s[kind]
        print(
            f"{self.name} {kind:4s} {self._runner(kind).kernel}, {size / 2**20:.0f} MiB packed: "
            f"{tokens:.0f} tokens/s; prompt {prompt_s:.3f} s ({rate:.2f} of the product rate); "
            f"ms of a step by rows (over its bound): {', '.join(words)}"
        )
        found.append(
            Check(f"2 {self.name} {kind}: prompt's share of the product rate", rate, 0.7, "higher")
        )
        return found


def _decode_plan(rows: int) -> StepPlan:
    """Let `rows` sequences decode the last position of their contexts."""
    each = _CONTEXT // 16
    tables = np.arange(rows * each, dtype=np.int64).reshape(rows, each)
    ones = np.ones(rows, dtype=np.int64)
    return StepPlan(
        request_ids=[str(row) for row in range(rows)],
        num_decodes=rows,
        token_ids=np.arange(rows, dtype=np.int64),
        positions=ones * (_CONTEXT - 1),
        slot_mapping=tables[:, -1] * 16 + 15,
        query_lengths=ones,
        context_lengths=ones * _CONTEXT,
        block_tables=tables,
        sample_rows=np.arange(rows, dtype=np.int64),
        sampled=[Request(id=str(row), prompt=[0]) for row in range(rows)],
        output_positions=ones,
    )

"""Measures what the engine's kernels reach on this machine: the rates its forecasts stand on."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.engine_rates import EngineRates, LinearTime, PartRate
from steelyard.catalog.probes.memory import last_level_cache_bytes
from steelyard.cost.engine_step import EngineStepTime, part_works
from steelyard.cost.step_time import FEATURES, relative_nnls
from steelyard.errors import BackendError, ConfigError
from steelyard.nn.transformer import build
from steelyard.serve.engine import LLM
from steelyard.serve.product_rates import product_times
from steelyard.serve.running.native.library import compiled_library
from steelyard.serve.scheduling.config import SchedulerConfig
from steelyard.serve.step_parts import (
    StepParts,
    own_core,
    time_chunks,
    time_decoding,
    typical_step,
)

__all__ = ["measure_engine"]

_KV_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}
_PARTS = ("embedding", "norms", "rope", "activation", "sampling", "python")
_CHUNK = 256
_STEPS = 7
_POOL_TOKENS = 8192


@dataclass(frozen=True, kw_only=True, slots=True)
class _Subject:
    """A model of random weights on which the parts of a step are timed.

    Attributes:
        layers: its layers, of 512 inputs.
        vocab: rows of its head.
        weights: type of its weights.
        shapes: batches and contexts of its steps.
    """

    layers: int
    vocab: int
    weights: str
    shapes: tuple[tuple[int, int], ...]


_SUBJECTS = (
    # A few megabytes, and more than the last-level cache has: what a step finds in the caches, its
    # own code too, depends on what the step before walked.
    _Subject(
        layers=4,
        vocab=512,
        weights="int8",
        shapes=((1, 64), (8, 64), (32, 64), (1, 512), (8, 512), (1, 2048)),
    ),
    _Subject(
        layers=16,
        vocab=16384,
        weights="fp32",
        shapes=((1, 64), (8, 64), (32, 64), (1, 512), (8, 512), (1, 2048)),
    ),
)


def measure_engine(
    tell: Callable[[float], None] = lambda _: None, *, quick: bool = False
) -> EngineRates | None:
    """Time products of every type, and the other parts of a step on models of random weights.

    Args:
        tell: receives the fraction done, 0 to 1.
        quick: about 15 s instead of about 35.

    Returns:
        The rates; None where the native kernels do not run, as there is no compiler, or the
        processor is of a kind on which they were not measured.
    """
    begin = time.perf_counter()
    try:
        samples = _Samples()
        for index in range(1 if quick else 2):
            samples.add(lambda done, index=index: tell(0.3 * (index + done)))
        limit_s = 1.0 if quick else 6.0
        products = product_times(compiled_library(), torch.get_num_threads(), limit_s=limit_s)
    except BackendError:
        return None
    tell(1.0)
    cache = float(last_level_cache_bytes("cpu"))
    rates = EngineRates(
        products=tuple(products),
        decode={},
        prefill={},
        parts={},
        warm_bytes=0.5 * cache,
        cold_bytes=3.0 * cache,
    )
    first = next(iter(_KV_TYPES))
    return replace(
        rates,
        decode={kv: samples.fitted(rates, "decode", kv) for kv in samples.kv_types},
        prefill={kv: samples.fitted(rates, "prefill", kv) for kv in samples.kv_types},
        parts={name: samples.fitted(rates, name, first) for name in _PARTS},
        duration_s=time.perf_counter() - begin,
    )


class _Samples:
    """Measured steps with what they held."""

    def __init__(self) -> None:
        """Start without a step."""
        self._steps: dict[tuple[int, str, int], tuple[Architecture, str, StepParts]] = {}

    def add(self, tell: Callable[[float], None]) -> None:
        """Run every step once more, and keep the quicker one of each shape."""
        runs = list(itertools.product(enumerate(_SUBJECTS), _KV_TYPES))
        for done, ((place, subject), kv) in enumerate(runs):
            tell(done / len(runs))
            arch = _architecture(subject)
            # A type that this engine's pool does not take has no rates.
            with contextlib.suppress(ConfigError):
                for index, step in enumerate(_run(arch, subject, _KV_TYPES[kv])):
                    found = arch, subject.weights, step
                    old = self._steps.setdefault((place, kv, index), found)
                    if step.step_s < old[2].step_s:
                        self._steps[place, kv, index] = found

    @property
    def kv_types(self) -> tuple[str, ...]:
        """Types of keys and values that ran."""
        return tuple(dict.fromkeys(kv for _, kv, _ in self._steps))

    def fitted(self, rates: EngineRates, part: str, kv: str) -> PartRate:
        """Fit a part over its calls, rows and units, in full caches and beyond them."""
        rows, seconds = [], []
        for (_, kind, _), (arch, weights, step) in self._steps.items():
            is_prompt = bool(step.features[FEATURES.index("prefill_tokens")])
            # Chunks before the last one sample nothing.
            if kind != kv or part in (("decode", "sampling") if is_prompt else ("prefill",)):
                continue
            timed = EngineStepTime(arch=arch, rates=rates, weights=weights, kv=kind)
            works = part_works(arch, step.features, kind)
            share = rates.coldness(timed.weight_bytes + works["decode"].num_bytes)
            work = works[part]
            terms = np.array((work.calls, work.rows, work.units))
            rows.append(np.concatenate([(1 - share) * terms, share * terms]))
            seconds.append(step.seconds["attention" if part in ("decode", "prefill") else part])
        found = relative_nnls(np.array(rows), np.array(seconds)).tolist()
        return PartRate(warm=LinearTime(*found[:3]), cold=LinearTime(*found[3:]))


def _run(arch: Architecture, subject: _Subject, kv_dtype: torch.dtype) -> Iterator[StepParts]:
    """Time decoding steps and chunks of a prompt, each shape by the median of each part."""
    config = SchedulerConfig(
        num_blocks=_POOL_TOKENS // 16,
        max_model_len=4096,
        token_budget=_CHUNK,
        max_num_seqs=max(batch for batch, _ in subject.shapes),
        prefix_caching=False,
    )
    llm = LLM(build(arch), config, kv_dtype=kv_dtype, weights=subject.weights)
    with own_core():
        for batch, context in subject.shapes:
            yield typical_step(time_decoding(llm, batch=batch, context=context, steps=_STEPS))
        yield from time_chunks(llm, context=3 * _CHUNK)


def _architecture(subject: _Subject) -> Architecture:
    """Describe a subject."""
    return Architecture(
        name="rates",
        hidden_size=512,
        num_layers=subject.layers,
        num_heads=8,
        num_kv_heads=4,
        head_dim=64,
        intermediate_size=512,
        vocab_size=subject.vocab,
        max_positions=4096,
    )

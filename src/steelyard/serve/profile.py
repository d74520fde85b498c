"""Times an engine's steps over a grid of shapes, so that a step-time model can be fitted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from steelyard.errors import ConfigError
from steelyard.serve.request import SamplingParams

if TYPE_CHECKING:
    from steelyard.cost.step_time import ServeStepTime
    from steelyard.serve.engine import LLM

__all__ = ["StepSamples", "profile"]

_DECODES = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSamples:
    """Measured steps.

    Attributes:
        features: [n, F] in the order of `steelyard.cost.step_time.FEATURES`.
        seconds: [n] median over rounds.
        relative_spread: [n] (largest - smallest) / median over rounds.
    """

    features: np.ndarray
    seconds: np.ndarray
    relative_spread: np.ndarray

    def fit(self) -> ServeStepTime:
        """Fit a step-time model to the samples."""
        from steelyard.cost.step_time import ServeStepTime

        return ServeStepTime.fit(self.features, self.seconds)


def profile(llm: LLM, *, generator: np.random.Generator, rounds: int = 3, limit_s: float = 20.0) -> StepSamples:
    """Run batches of equal prompts to their end and time every step of them.

    Cases grow from one short prompt to a full batch; each gives prefill steps, mixed steps when its prompts exceed the token
    budget, and decoding steps. The median over rounds is kept.

    Args:
        llm: an idle engine; its cached prefixes are forgotten.
        generator: draws the prompts.
        rounds: timed repeats of each case, at least 1.
        limit_s: seconds after which no new case begins.

    Returns:
        One sample per step of each case.

    Raises:
        ConfigError: the engine is busy or `rounds` is below 1.
    """
    if llm.scheduler.has_work or rounds < 1:
        raise ConfigError("profiling needs an idle engine and rounds >= 1", hint="finish or abort its requests first")
    start, features, times = time.perf_counter(), [], []
    for batch, prompt in _cases(llm):
        if len(times) >= 8 and time.perf_counter() - start > limit_s:
            break
        repeats = [_run_case(llm, batch, prompt, generator) for _ in range(rounds + 1)][1:]
        features += repeats[0][0]
        times += np.array([seconds for _, seconds in repeats]).T.tolist()
    llm.reset()
    table = np.array(times)
    median = np.median(table, axis=1)
    return StepSamples(features=np.array(features), seconds=median, relative_spread=(table.max(1) - table.min(1)) / median)


def _cases(llm: LLM) -> Iterator[tuple[int, int]]:
    """Give (batch, prompt length), cheap ones first, each fitting the pool without preemption."""
    config = llm.config
    lengths = [length for length in (8, 32, 128, 320, 768, 1536) if length + _DECODES <= config.max_model_len]
    batches = [2**power for power in range(12) if 2**power <= config.max_num_seqs]
    cases = [(batch, length) for length in lengths or [1] for batch in batches]
    for batch, length in sorted(cases, key=lambda case: case[0] * case[1]):
        blocks = batch * -(-(length + _DECODES) // config.block_size)
        if blocks < 0.9 * config.num_blocks and batch * length <= 16 * config.token_budget:
            yield batch, length


def _run_case(llm: LLM, batch: int, prompt: int, generator: np.random.Generator) -> tuple[list[np.ndarray], list[float]]:
    """Run one batch to its end; features and seconds of each step."""
    llm.reset()
    params = SamplingParams(max_tokens=_DECODES, ignore_end=True)
    for tokens in generator.integers(0, llm.model.architecture.vocab_size, (batch, prompt)).tolist():
        llm.add_request(tokens, params)
    features, seconds = [], []
    while llm.scheduler.has_work:
        begin = llm.clock.now_s()
        plan, _, _ = llm.step()
        seconds.append(llm.clock.now_s() - begin)
        assert plan is not None
        features.append(plan.features())
    return features, seconds

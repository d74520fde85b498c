"""Times an engine's steps over a grid of shapes, so that a step-time model can be fitted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from steelyard.errors import ConfigError
from steelyard.serve.scheduling.params import SamplingParams

if TYPE_CHECKING:
    from steelyard.cost.step_time import ServeStepTime
    from steelyard.serve.engine import LLM

__all__ = ["StepSamples", "profile"]

_DECODES = 6
_HICCUP = 4.0


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSamples:
    """Measured steps.

    Attributes:
        features: [n, F] in the order of `steelyard.cost.step_time.FEATURES`.
        round_seconds: [n, rounds] of each step in each round.
    """

    features: np.ndarray
    round_seconds: np.ndarray

    @property
    def seconds(self) -> np.ndarray:
        """Median over rounds, [n]."""
        return np.median(self.round_seconds, axis=1)

    @property
    def relative_spread(self) -> np.ndarray:
        """(Largest - smallest) / median over rounds, [n]."""
        return np.ptp(self.round_seconds, axis=1) / self.seconds

    def fit(self) -> ServeStepTime:
        """Fit a step-time model to the medians, then scale it to the mean of all rounds.

        A median leaves out what other work on the machine costs now and then, but a trace of thousands of steps pays it on average.
        A single step counts for at most `_HICCUP` times its prediction.
        """
        from steelyard.cost.step_time import ServeStepTime

        shape = ServeStepTime.fit(self.features, self.seconds)
        predicted = shape.predict(self.features)[:, None]
        scale = float(np.minimum(self.round_seconds / predicted, _HICCUP).mean())
        return shape.scaled(scale)


def profile(llm: LLM, *, generator: np.random.Generator, rounds: int = 3, limit_s: float = 20.0) -> StepSamples:
    """Run batches of equal prompts to their end and time every step of them.

    Cases grow from one short prompt to a full batch; each gives prefill steps, mixed steps when its prompts exceed the token
    budget, and decoding steps. A first round over all cases warms up and is not kept; rounds lie apart in time, so that a passing
    disturbance spoils one of them at most.

    Args:
        llm: an idle engine; its cached prefixes are forgotten.
        generator: draws the prompts.
        rounds: timed repeats of each case, at least 1.
        limit_s: seconds for all rounds; cases that no longer fit are left out.

    Returns:
        The steps of each case.

    Raises:
        ConfigError: the engine is busy or `rounds` is below 1.
    """
    if llm.scheduler.has_work or rounds < 1:
        raise ConfigError("profiling needs an idle engine and rounds >= 1", hint="finish or abort its requests first")
    start, features = time.perf_counter(), []
    cases: list[tuple[int, int]] = []
    for case in _cases(llm):
        if len(features) >= 8 and time.perf_counter() - start > limit_s / (rounds + 1):
            break
        features += _run_case(llm, *case, generator)[0]
        cases.append(case)
    times = [[second for case in cases for second in _run_case(llm, *case, generator)[1]] for _ in range(rounds)]
    llm.reset()
    return StepSamples(features=np.array(features), round_seconds=np.array(times).T)


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

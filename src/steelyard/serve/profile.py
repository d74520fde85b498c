"""Times an engine's steps over a grid of shapes; a step-time model is fitted to them and stored."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from steelyard.errors import ConfigError
from steelyard.serve.engine import LLM
from steelyard.serve.heap import frozen_heap
from steelyard.serve.scheduling.config import SchedulerConfig
from steelyard.serve.scheduling.params import SamplingParams
from steelyard.serve.step_parts import pass_over
from steelyard.serve.step_table import StepSamples, StepTable

__all__ = ["profile", "read_table", "write_table"]

_DECODES = 2
"""Decoding steps that are timed after each batch of prompts."""
_BATCHES = (*range(1, 9), 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 80, 96, 128, 192, 256)
"""Batches whose decoding is timed: close where a step goes from waiting for weights to computing,
and where kernels change with the number of rows."""
_CHUNKS = 3
"""Steps of a long prompt that are run: the last computes all layers, those before may leave out
what only logits need."""
_FIRST = 4
"""Cases that are run whatever time they take, so that there is something to fit."""
_TESTS = 24
"""Steps of the mixed case that are run, about."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Case:
    """Requests to send and which of their steps to run.

    Attributes:
        requests: (step at which it comes, prompt tokens, output tokens), by step.
        skip: tokens that are scheduled but not run before the first timed step.
        every: one in so many of the later steps is run and timed.
        decodes: timed steps without a prompt after which the case ends; 0 runs it to its end.
        work: tokens that are run; the cases are sorted by it.
    """

    requests: list[tuple[int, int, int]]
    skip: int = 0
    every: int = 1
    decodes: int = 0
    work: float


def profile(
    llm: LLM, *, generator: np.random.Generator, rounds: int = 3, limit_s: float = 20.0
) -> StepSamples:
    """Send batches of equal prompts and a mix of unequal ones, and time steps of them.

    Each case gives prefill steps, mixed steps when its prompts exceed the token budget, and
    decoding steps. Of long prompts only the end is run: what lies before is scheduled, but not
    computed, as the contents of the pool do not change what later steps cost. A first round over
    all cases warms up and is not kept; rounds lie apart in time, so that a passing disturbance
    spoils one of them at most.

    Args:
        llm: an idle engine that runs one step at a time; its cached prefixes are forgotten.
        generator: source of randomness for the prompts.
        rounds: timed repeats of each case, at least 1.
        limit_s: seconds for all rounds; cases that no longer fit are left out.

    Returns:
        The steps of each case.

    Raises:
        ConfigError: the engine is busy or plans ahead, or `rounds` is below 1.
    """
    if llm.scheduler.has_work or rounds < 1:
        raise ConfigError(
            "profiling needs an idle engine and rounds >= 1",
            hint="finish or abort its requests first",
        )
    if llm.driver.asynchronous:
        raise ConfigError(
            "profiling needs an engine that runs one step at a time",
            hint="make it with asynchronous=False",
        )
    start = llm.clock.now_s()
    features: list[np.ndarray] = []
    cases: list[_Case] = []
    work = 1e-9
    for case in _in_turn([_spread(kind) for kind in _kinds(llm, generator)]):
        spent_s = llm.clock.now_s() - start
        if len(cases) >= _FIRST and spent_s * (1 + case.work / work) > limit_s / (rounds + 1):
            continue
        features += _run_case(llm, case, generator)[0]
        cases.append(case)
        work += case.work
    with frozen_heap():
        times = [
            [second for case in cases for second in _run_case(llm, case, generator)[1]]
            for _ in range(rounds)
        ]
    llm.reset()
    return StepSamples(features=np.array(features), round_seconds=np.array(times).T)


def write_table(
    llm: LLM, path: Path, *, seed: int = 0, rounds: int = 3, limit_s: float = 30.0
) -> StepTable:
    """Profile an engine and store its steps, for the simulator, the forecasts and the cost room.

    After the profile a mix of requests that the fit has not seen is run; the table holds the error
    of the fitted model on its steps.

    Args:
        llm: an idle engine that runs one step at a time; its cached prefixes are forgotten.
        path: JSON file to make or replace.
        seed: seed of prompts and lengths.
        rounds: timed repeats of each case, at least 1.
        limit_s: seconds for the profile.

    Returns:
        The table as stored.

    Raises:
        ConfigError: the engine is busy or `rounds` is below 1.
    """
    generator = np.random.default_rng(seed)
    samples = profile(llm, generator=generator, rounds=rounds, limit_s=limit_s)
    held_out = _mixed_case(llm, np.random.default_rng(seed + 1))
    tests = [_run_case(llm, held_out, generator) for _ in range(min(rounds, 2))]
    llm.reset()
    seconds = np.median([seconds for _, seconds in tests], axis=0)
    table = StepTable.of(llm, samples, test_features=np.array(tests[0][0]), test_seconds=seconds)
    table.save(path)
    return table


def read_table(path: Path, llm: LLM | None = None, *, foreign: bool = False) -> StepTable:
    """Read a stored table, and refuse one that is not whole or not of this machine and engine.

    Args:
        path: JSON file of `write_table`.
        llm: the engine the table must be of; any model and limits are accepted without.
        foreign: accept tables of other machines, thread counts, models and limits.

    Returns:
        The table; its `step_time` predicts steps.

    Raises:
        DataError: the file is missing or not JSON.
        ConfigError: a field is missing, unknown or out of range, or the table is of another machine
            or model.
    """
    table = StepTable.load(path)
    if not foreign:
        table.check(llm, where=str(path))
    return table


def _spread(cases: Iterable[_Case]) -> list[_Case]:
    """Put the cheapest case first and the rest so that any beginning covers the whole range."""
    ordered = sorted(cases, key=lambda case: case.work)
    # Multiples of the golden ratio, modulo 1, fill the unit interval evenly however many are taken.
    places = sorted(range(len(ordered)), key=lambda index: (index * 0.6180339887) % 1)
    return [ordered[place] for place in places]


def _in_turn(kinds: list[list[_Case]]) -> Iterator[_Case]:
    """Return the cases so that in any beginning each kind has about the same work."""
    left = [list(reversed(kind)) for kind in kinds]
    work = [0.0] * len(kinds)
    while any(left):
        kind = min((index for index, rest in enumerate(left) if rest), key=work.__getitem__)
        case = left[kind].pop()
        work[kind] += case.work
        yield case


def _kinds(llm: LLM, generator: np.random.Generator) -> list[list[_Case]]:
    """Return cases of prompts alone, of decoding, of prompts that join, and a mix."""
    lengths = [
        length
        for length in (8, 48, 192, 640, 1536, 4096, 8192, 24576)
        if length + _DECODES <= llm.config.max_model_len
    ] or [1]
    # A short context, a long one, and one between.
    contexts = sorted({lengths[len(lengths) // 4], lengths[len(lengths) // 2], lengths[-1]})
    return [
        list(_equal_cases(llm.config, lengths)),
        [case for length in contexts for case in _decode_cases(llm.config, length)],
        list(_joining_cases(llm.config, lengths[len(lengths) // 2])),
        [_mixed_case(llm, generator)],
    ]


def _decode_cases(config: SchedulerConfig, length: int) -> Iterator[_Case]:
    """Return batches that decode after prompts of which nothing is computed."""
    for batch in _BATCHES:
        tokens = batch * length
        output = 2 * _DECODES + 2 * -(-tokens // config.token_budget)
        if _fits(config, batch, length + output):
            work = _DECODES * (batch + 8 + tokens / 256)
            yield _Case(
                requests=[(0, length, output)] * batch, skip=tokens, decodes=_DECODES, work=work
            )


def _joining_cases(config: SchedulerConfig, length: int) -> Iterator[_Case]:
    """Return prompts that come while others decode; of the others' prompts nothing is computed."""
    for batch in (1, 2, 4, 8, 16, 31):
        tokens = batch * length
        output = 4 + 2 * -(-tokens // config.token_budget)
        for prompt in (4, 16, 64, 160):
            is_short = prompt + batch <= min(config.token_budget, config.max_model_len - 2)
            if is_short and _fits(config, batch + 1, max(length, prompt) + output):
                yield _Case(
                    requests=[(0, length, output)] * batch + [(0, prompt, 2)],
                    skip=tokens,
                    decodes=1,
                    work=prompt + batch + 8,
                )


def _fits(config: SchedulerConfig, batch: int, tokens: int) -> bool:
    """Return whether so many sequences of so many tokens run without preemption."""
    blocks = batch * -(-tokens // config.block_size)
    return (
        batch <= config.max_num_seqs
        and tokens <= config.max_model_len
        and blocks < 0.9 * config.num_blocks
    )


def _equal_cases(config: SchedulerConfig, lengths: Sequence[int]) -> Iterator[_Case]:
    """Return batches of equal prompts that fit the pool without preemption."""
    for length in lengths:
        for batch in (1, 2, 8, 32, 128) if length < 640 else (1, 4, 16):
            tokens = batch * length
            output = 1 + 2 * -(-tokens // config.token_budget)
            if _fits(config, batch, length + output):
                skip = max(tokens - _CHUNKS * config.token_budget, 0)
                work = tokens - skip + batch + 8 + tokens / 256
                yield _Case(requests=[(0, length, output)] * batch, skip=skip, decodes=1, work=work)


def _mixed_case(llm: LLM, generator: np.random.Generator) -> _Case:
    """Return requests of unequal lengths that come and go, filling up to half of the pool."""
    config, requests, step, held = llm.config, [], 0, 0
    space = config.num_blocks * config.block_size
    longest = min(config.max_model_len, space // 4)
    while len(requests) < config.max_num_seqs and held < space // 2:
        prompt = int(np.clip(longest / 16 * generator.lognormal(0, 1), 1, max(longest * 0.9, 1)))
        output = int(np.clip(24 * generator.lognormal(0, 0.7), 1, max(longest - prompt, 1)))
        requests.append((step, prompt, output))
        step += int(generator.integers(0, 6))
        held += prompt + output
    steps = step + held / config.token_budget + max(output for _, _, output in requests)
    every = max(1, round(steps / _TESTS))
    return _Case(requests=requests, every=every, work=held / every)


def _run_case(
    llm: LLM, case: _Case, generator: np.random.Generator
) -> tuple[list[np.ndarray], list[float]]:
    """Run one case to its end; return features and seconds of each timed step."""
    llm.reset(guesses=False)
    features: list[np.ndarray] = []
    seconds: list[float] = []
    waiting = list(case.requests)
    done = count = decodes = 0
    while (waiting or llm.scheduler.has_work) and not 0 < case.decodes <= decodes:
        while waiting and waiting[0][0] <= count:
            _, prompt, output = waiting.pop(0)
            tokens = generator.integers(0, llm.model.architecture.vocab_size, prompt).tolist()
            llm.add_request(tokens, SamplingParams(max_tokens=output, ignore_end=True))
        count += 1
        if done < case.skip or count % case.every:
            plan = pass_over(llm)
            done += plan.num_tokens if plan else 0
            continue
        begin = llm.clock.now_s()
        plan = llm.step().plan
        if plan is not None:
            seconds.append(llm.clock.now_s() - begin)
            features.append(plan.features())
            decodes += plan.num_decodes == len(plan.request_ids)
    return features, seconds

"""Runs steps of a chosen shape in an engine and times their parts."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from steelyard.errors import BackendError, ConfigError
from steelyard.serve.engine import LLM
from steelyard.serve.heap import frozen_heap
from steelyard.serve.running.native.steps import PARTS, NativeSteps
from steelyard.serve.running.runner import TorchRunner
from steelyard.serve.scheduling.params import SamplingParams
from steelyard.serve.scheduling.step import StepOutput, StepPlan

__all__ = ["StepParts", "own_core", "pass_over", "time_chunks", "time_decoding", "typical_step"]


class _TimedRunner:
    """Runs the steps of a driver and remembers how long the last one took."""

    def __init__(self, runner: TorchRunner) -> None:
        """Stand before a runner."""
        self._runner = runner
        self.launch = runner.launch
        self.seconds = 0.0

    def execute(self, plan: StepPlan) -> StepOutput:
        """Run a step and wait for it."""
        begin = time.perf_counter()
        output = self._runner.execute(plan)
        self.seconds = time.perf_counter() - begin
        return output


@dataclass(frozen=True, kw_only=True, slots=True)
class StepParts:
    """One measured step.

    Attributes:
        seconds: seconds of `PARTS` but for "call", "sampling", "python" (planning and whatever else
            is outside the kernels).
        features: what the step held, in the order of `cost.FEATURES`.
    """

    seconds: dict[str, float]
    features: np.ndarray

    @property
    def step_s(self) -> float:
        """Seconds of all parts."""
        return sum(self.seconds.values())


def time_decoding(llm: LLM, *, batch: int, context: int, steps: int) -> list[StepParts]:
    """Time steps in which every sequence decodes one token.

    Prompts are planned but not computed: what lies in the pool does not change what a step costs.

    Args:
        llm: an idle engine in native kernels that runs one step at a time; its cached prefixes are
            forgotten.
        batch: sequences, at most what the engine runs at once.
        context: tokens that the sequence which came last attends, at least 2. Those before it
            attend a token more per step that passed.
        steps: steps to time, at least 1.

    Returns:
        The steps.

    Raises:
        ConfigError: the engine is busy, or the shape is beyond its limits.
        BackendError: the engine does not run in native kernels.
    """
    config = llm.config
    ahead = 2 * -(-batch * context // config.token_budget)
    blocks = batch * -(-(context + ahead + steps + 1) // config.block_size)
    if not 0 < batch <= config.max_num_seqs or context < 2 or blocks > config.num_blocks:
        raise ConfigError(
            f"{batch} sequences of {context} tokens do not run at once: the engine runs at most "
            f"{config.max_num_seqs}, and its pool holds "
            f"{config.num_blocks * config.block_size} tokens",
            hint="take fewer or shorter ones, or give --pool or --max-num-seqs",
        )
    with _metered(llm) as step:
        _send(llm, batch, context - 1, steps + ahead + 2)
        # Prompts end in different steps; timing begins when the last one decodes.
        while (plan := pass_over(llm)) and plan.num_decodes < batch:
            pass
        step()  # not counted: the first one after a pause wakes threads up
        return [step() for _ in range(steps)]


def time_chunks(llm: LLM, *, context: int) -> list[StepParts]:
    """Time the last steps of one prompt, each of the engine's token budget.

    Args:
        llm: model that `time_decoding` takes.
        context: tokens of the prompt; at most three chunks at its end are run.

    Returns:
        The steps; the last one samples a token.

    Raises:
        ConfigError: the engine is busy, or the prompt is beyond its limits.
        BackendError: the engine does not run in native kernels.
    """
    budget = llm.config.token_budget
    with _metered(llm) as step:
        _send(llm, 1, context, 1)
        left = context
        while left > 3 * budget and (plan := pass_over(llm)):
            left -= plan.num_tokens
        return [step() for _ in range(-(-left // budget))]


def typical_step(steps: list[StepParts]) -> StepParts:
    """Return the step of which each part takes its median over equal steps, at least one."""
    names = steps[0].seconds
    middle = {name: float(np.median([step.seconds[name] for step in steps])) for name in names}
    return StepParts(seconds=middle, features=steps[len(steps) // 2].features)


def pass_over(llm: LLM) -> StepPlan | None:
    """Let one step happen in the books only; return its plan, None when there is none."""
    now_s = llm.clock.now_s()
    plan = llm.scheduler.schedule(now_s)
    if plan is not None:
        llm.scheduler.complete(plan, plan.blank_output(), now_s)
    return plan


@contextmanager
def _metered(llm: LLM) -> Iterator[Callable[[], StepParts]]:
    """Yield a function that runs one step and returns the seconds of its parts."""
    native = _native(llm)
    llm.reset()
    runner = _TimedRunner(llm.driver.runner)  # pyright: ignore[reportArgumentType]
    llm.driver.runner = runner

    def step() -> StepParts:
        parts = native.part_seconds = np.zeros(len(PARTS))
        begin = time.perf_counter()
        plan = llm.step().plan
        whole = time.perf_counter() - begin
        found = dict(zip(PARTS, parts.tolist(), strict=True))
        call = found.pop("call")
        inside = sum(found.values())
        sampling = runner.seconds - call
        found |= {"sampling": sampling, "python": whole - inside - sampling}
        assert plan is not None  # requests are waiting, and nothing is away
        return StepParts(seconds=found, features=plan.features())

    try:
        with frozen_heap():
            yield step
    finally:
        native.part_seconds = None
        llm.reset()


@contextmanager
def own_core() -> Iterator[None]:
    """Keep this thread on a core of its own while something is timed.

    Threads of a team meet every few microseconds. Where the system lets two of them share a core,
    as it may while others keep the rest busy, a step takes several times as long until it moves
    one of them away.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    own = threading.get_native_id()
    if len(cores) < 2:
        yield
        return
    # Affinity is set thread by thread: the kernels' team was made before this call.
    threads = [int(item.name) for item in Path("/proc/self/task").iterdir()]
    try:
        for thread in threads:
            _allow(thread, cores[:1] if thread == own else cores[1:])
        yield
    finally:
        for thread in threads:
            _allow(thread, cores)


def _allow(thread: int, cores: list[int]) -> None:
    """Let a thread run on some cores; one that has ended does not mind."""
    with contextlib.suppress(ProcessLookupError):
        os.sched_setaffinity(thread, cores)


def _native(llm: LLM) -> NativeSteps:
    """Return the kernels of an engine, or refuse one that cannot be timed."""
    runner = llm.runner
    native = runner.native_steps if isinstance(runner, TorchRunner) else None
    if native is None:
        raise BackendError(
            f"parts of a step are timed in native kernels; this engine runs in {runner.kernel}"
            + (f" ({runner.kernel_note})" if runner.kernel_note else ""),
            hint="leave --native and --cache out, and have g++ installed",
        )
    if llm.scheduler.has_work or llm.driver.asynchronous:
        raise ConfigError(
            "timing needs an idle engine that runs one step at a time",
            hint="finish its requests first, and make it with asynchronous=False",
        )
    return native


def _send(llm: LLM, batch: int, prompt: int, output: int) -> None:
    """Queue equal requests of random tokens."""
    draw = np.random.default_rng(0)
    for _ in range(batch):
        tokens = draw.integers(0, llm.model.architecture.vocab_size, prompt).tolist()
        llm.add_request(tokens, SamplingParams(max_tokens=output, ignore_end=True))

"""The engine: a scheduler and a runner under the real clock."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from steelyard.errors import ConfigError, TraceError
from steelyard.quantity import Measurement
from steelyard.serve.running.runner import TorchRunner
from steelyard.serve.scheduling.params import SamplingParams
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.scheduler import Scheduler, SchedulerConfig
from steelyard.serve.scheduling.step import StepPlan
from steelyard.serve.traces import TraceRequest, make_request
from steelyard.sim.timeline import Timeline

if TYPE_CHECKING:
    from steelyard.nn.transformer import Transformer

__all__ = ["LLM", "Clock", "Completion", "EngineStats", "ReplayResult", "WallClock", "default_config"]


class Clock(Protocol):
    """Time as an engine sees it."""

    def now_s(self) -> float:
        """Seconds from an arbitrary start, never falling."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        ...


class WallClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        """Give seconds from an arbitrary start."""
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Completion:
    """What a request gave.

    Attributes:
        request_id: of the request.
        prompt: token ids.
        tokens: output token ids.
        finish_reason: "stop", "length" or "abort".
    """

    request_id: str
    prompt: list[int]
    tokens: list[int]
    finish_reason: str


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters of an engine.

    Attributes:
        steps: steps run.
        running: requests with blocks.
        waiting: requests without.
        preemptions: times a request lost its blocks.
        blocks_in_use: blocks held.
        num_blocks: blocks in the pool.
        kv_utilization: token states over slots of held blocks.
    """

    steps: int
    running: int
    waiting: int
    preemptions: int
    blocks_in_use: int
    num_blocks: int
    kv_utilization: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayResult:
    """What a trace saw.

    Attributes:
        timeline: times of requests and steps.
        plans: the steps' plans, in order.
        requests: as finished.
        finished_at_s: wall clock at the end, seconds since 1970 (UTC).
    """

    timeline: Timeline
    plans: list[StepPlan]
    requests: list[Request]
    finished_at_s: float

    def summary(self) -> dict[str, float]:
        """Give the mean of each serving quantity."""
        return self.timeline.summary()

    def measurements(self) -> list[Measurement]:
        """Give each serving quantity with the spread and count of its samples."""
        return [
            Measurement(quantity=name, value=float(values.mean()), spread=float(values.std()), count=len(values), time_s=self.finished_at_s)
            for name, values in self.timeline.samples().items()
        ]


def default_config(
    model: Transformer, *, pool_bytes: int = 256 * 2**20, max_model_len: int = 0, token_budget: int = 512
) -> SchedulerConfig:
    """Derive an engine's limits from a model and the memory of its pool.

    Args:
        model: a decoder.
        pool_bytes: bytes of the key/value pool.
        max_model_len: longest sequence; the model's positions, or what the pool holds if that is less, by default.
        token_budget: most tokens a step runs.

    Returns:
        A configuration with blocks of 16 tokens.

    Raises:
        CapacityError: the pool cannot hold `max_model_len`.
    """
    arch = model.architecture
    slot_bytes = 2 * arch.num_layers * arch.num_kv_heads * arch.head_dim * next(model.parameters()).element_size()
    num_blocks = pool_bytes // (slot_bytes * 16)
    longest = max_model_len or min(arch.max_positions, num_blocks * 16)
    return SchedulerConfig(
        num_blocks=num_blocks, max_model_len=max(longest, 2), token_budget=token_budget, max_num_seqs=min(64, token_budget)
    )


class LLM:
    """A model behind a scheduler.

    Not thread safe: one thread drives it.

    Attributes:
        scheduler: the policy.
        runner: executes its plans.
        clock: time as requests see it.

    Example:
        >>> llm = LLM(model)  # doctest: +SKIP
        >>> llm.generate([[1, 2, 3]], SamplingParams(max_tokens=4))[0].tokens  # doctest: +SKIP
        [7, 7, 7, 7]
    """

    def __init__(
        self,
        model: Transformer,
        config: SchedulerConfig | None = None,
        *,
        end_tokens: tuple[int, ...] = (),
        clock: Clock | None = None,
        compiled: bool | None = None,
    ) -> None:
        """Allocate the pool and compile the kernels.

        Args:
            model: a decoder; it is put in evaluation mode.
            config: limits; derived from the model by default.
            end_tokens: token ids that end any output unless its request ignores them.
            clock: the machine's by default.
            compiled: decode attention by the numba kernel; by default where it can.

        Raises:
            ConfigError: the limits do not fit the model.
            CapacityError: the pool is too small, or there is no memory for it.
        """
        self.model = model
        self.end_tokens = end_tokens
        self.clock: Clock = clock or WallClock()
        self._set_up(config or default_config(model), compiled)

    def _set_up(self, config: SchedulerConfig, compiled: bool | None) -> None:
        """Make scheduler and runner."""
        self.scheduler = Scheduler(config, model_key=self.model.architecture.name)
        self.runner = TorchRunner(self.model, config, compiled=compiled)
        self.runner.warm_up()
        self._steps = 0
        self._names = 0

    @property
    def config(self) -> SchedulerConfig:
        """The limits."""
        return self.scheduler.config

    def reset(self) -> None:
        """Forget all requests, cached prefixes and counters; the pool tensors stay."""
        self.scheduler = Scheduler(self.config, model_key=self.model.architecture.name)
        self._steps = 0

    def add_request(self, prompt: list[int], params: SamplingParams, *, request_id: str = "") -> str:
        """Queue a request.

        Args:
            prompt: token ids, each below the vocabulary's size.
            params: sampling parameters.
            request_id: a name of its own; made up when empty.

        Returns:
            The request's id.

        Raises:
            ConfigError: the request could never finish or has a token id outside the vocabulary.
        """
        self._names += 1
        now_s = self.clock.now_s()
        request = Request(id=request_id or f"request-{self._names}", prompt=prompt, params=params, arrival_s=now_s)
        self.add(request, now_s)
        return request.id

    def add(self, request: Request, now_s: float) -> None:
        """Queue a request object; `check` says what is refused."""
        self.check(request)
        if self.end_tokens:
            request.params = replace(request.params, stop_tokens=(*request.params.stop_tokens, *self.end_tokens))
        self.scheduler.add(request, now_s)

    def check(self, request: Request) -> None:
        """Refuse a request that could never finish; nothing changes.

        Args:
            request: not yet added.

        Raises:
            ConfigError: the prompt is empty or too long, the id is taken, or a token id is outside the vocabulary.
        """
        self.scheduler.check(request)
        size = self.model.architecture.vocab_size
        if not (min(request.prompt) >= 0 and max(request.prompt) < size):
            raise ConfigError(f"token ids must be in [0, {size})", hint="encode the prompt with this model's tokenizer")

    def abort(self, request_id: str) -> bool:
        """Drop a request; False when it is not in flight."""
        return self.scheduler.abort(request_id) is not None

    def step(self) -> tuple[StepPlan | None, dict[str, int], list[Request]]:
        """Run one step.

        Returns:
            The plan (None without work), the sampled tokens by request, and the requests that ended.
        """
        plan = self.scheduler.schedule(self.clock.now_s())
        if plan is None:
            return None, {}, []
        output = self.runner.execute(plan)
        self._steps += 1
        tokens = dict(zip(plan.sampled_ids, output.tokens.tolist(), strict=True))
        return plan, tokens, self.scheduler.complete(plan, output, self.clock.now_s())

    def stats(self) -> EngineStats:
        """Give the counters."""
        policy = self.scheduler
        return EngineStats(
            steps=self._steps,
            running=len(policy.running),
            waiting=len(policy.waiting),
            preemptions=policy.num_preemptions,
            blocks_in_use=policy.pool.num_in_use,
            num_blocks=policy.pool.num_blocks,
            kv_utilization=policy.kv_utilization(),
        )

    def generate(self, prompts: list[list[int]], params: SamplingParams | list[SamplingParams]) -> list[Completion]:
        """Complete prompts, in their order.

        Args:
            prompts: token ids of each.
            params: one for all, or one per prompt.

        Returns:
            One completion per prompt.

        Raises:
            ConfigError: a prompt could never finish; nothing was run.
        """
        each = params if isinstance(params, list) else [params] * len(prompts)
        names: list[str] = []
        try:
            for prompt, item in zip(prompts, each, strict=True):
                names.append(self.add_request(prompt, item))
        except Exception:
            for name in names:
                self.abort(name)
            raise
        done: dict[str, Request] = {}
        while len(done) < len(names) and self.scheduler.has_work:
            done.update({request.id: request for request in self.step()[2]})
        return [Completion(name, done[name].prompt, done[name].output, done[name].finish_reason or "abort") for name in names]

    def replay(self, trace: list[TraceRequest]) -> ReplayResult:
        """Run a trace at the times it says, output lengths forced, and time every request and step.

        The engine must be idle; cached prefixes of earlier work are forgotten first.

        Args:
            trace: requests by arrival.

        Returns:
            Times relative to the start of the replay.

        Raises:
            TraceError: the trace is empty.
            ConfigError: a request could never finish.
        """
        if not trace:
            raise TraceError("the trace has no request", hint="give at least one row")
        self.reset()
        requests = [make_request(item, row) for row, item in enumerate(trace)]
        for request in requests:
            self.check(request)
        order = sorted(range(len(requests)), key=lambda row: requests[row].arrival_s)
        recorder = _Recorder()
        start, arrived = self.clock.now_s(), 0
        while arrived < len(order) or self.scheduler.has_work:
            begin = self.clock.now_s() - start
            while arrived < len(order) and requests[order[arrived]].arrival_s <= begin:
                self.add(requests[order[arrived]], begin)
                arrived += 1
            plan = self.scheduler.schedule(begin)
            if plan is None:
                self.clock.sleep(max(requests[order[arrived]].arrival_s - (self.clock.now_s() - start), 0.0))
                continue
            output = self.runner.execute(plan)
            end = self.clock.now_s() - start
            self.scheduler.complete(plan, output, end)
            recorder.record(plan, begin, self.clock.now_s() - start, self.scheduler.kv_utilization())
        return recorder.result(requests)


class _Recorder:
    """Collects the steps of a replay."""

    def __init__(self) -> None:
        """Start empty."""
        self.plans: list[StepPlan] = []
        self.step_s: list[float] = []
        self.utilization: list[float] = []

    def record(self, plan: StepPlan, begin_s: float, end_s: float, utilization: float) -> None:
        """Keep one step, scheduling included."""
        self.plans.append(plan)
        self.step_s.append(end_s - begin_s)
        self.utilization.append(utilization)

    def result(self, requests: list[Request]) -> ReplayResult:
        """Give the replay's columns."""
        timeline = Timeline(
            arrival_s=np.array([request.arrival_s for request in requests]),
            first_token_s=np.array([request.first_token_s for request in requests]),
            last_token_s=np.array([request.last_token_s for request in requests]),
            output_tokens=np.array([len(request.output) for request in requests]),
            step_features=np.array([plan.features() for plan in self.plans]),
            step_s=np.array(self.step_s),
            kv_utilization=np.array(self.utilization),
        )
        return ReplayResult(timeline=timeline, plans=self.plans, requests=requests, finished_at_s=time.time())

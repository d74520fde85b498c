"""The engine: a scheduler and a runner under the machine's clock."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from steelyard.catalog.parameters import count_parameters
from steelyard.data.tiers.transfers import Tiers
from steelyard.errors import ConfigError
from steelyard.nn.transformer import Transformer
from steelyard.serve.driver import Clock, Driver, WallClock
from steelyard.serve.heap import frozen_heap
from steelyard.serve.pool_size import chosen_pool_bytes
from steelyard.serve.replay import ReplayResult, drive_replay
from steelyard.serve.results import Completion, EngineStats, StepResult, whole_outputs
from steelyard.serve.running.draft_model import make_drafter
from steelyard.serve.running.launcher import EngineRunner
from steelyard.serve.running.pool import slot_bytes
from steelyard.serve.running.runner import TorchRunner
from steelyard.serve.running.sampling import Sampler
from steelyard.serve.running.weights import chosen_weights, kv_type
from steelyard.serve.scheduling.config import SchedulerConfig
from steelyard.serve.scheduling.fairness import OrderPolicy
from steelyard.serve.scheduling.params import SamplingParams
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.scheduler import Scheduler
from steelyard.serve.scheduling.speculation.speculator import Speculator
from steelyard.serve.traces import TraceRequest, make_request

__all__ = ["LLM", "default_config"]

# Both rates are assumed: they only weigh swapping against computing again ("auto" preemption).
_COPY_BYTES_PER_S = 4e9
"""Rate at which one thread copies blocks in memory."""
_PREFILL_FLOPS_PER_S = 50e9
"""Rate of one core in matrix products."""


def default_config(
    model: Transformer,
    *,
    pool_bytes: int = 0,
    max_model_len: int = 0,
    token_budget: int = 512,
    kv_dtype: torch.dtype | None = None,
    weights: str = "auto",
) -> SchedulerConfig:
    """Derive an engine's limits from a model and the memory of its pool.

    Args:
        model: a decoder.
        pool_bytes: bytes of the key/value pool; 0 for `pool_size.chosen_pool_bytes`.
        max_model_len: longest sequence; the model's positions, or what the pool holds if that is
            less, by default.
        token_budget: most tokens a step runs.
        kv_dtype: type of keys and values; `weights.kv_type` by default.
        weights: type in which the model is computed.

    Returns:
        A configuration with blocks of 16 tokens; what "auto" preemption compares is derived from
        assumed rates of this machine.

    Raises:
        CapacityError: the pool cannot hold `max_model_len`.
    """
    arch = model.architecture
    kept = kv_type(model, chosen_weights(model, weights), kv_dtype)
    block_bytes = slot_bytes(arch, kept) * 16
    num_blocks = (pool_bytes or chosen_pool_bytes(model, kept, max_model_len)) // block_bytes
    longest = max_model_len or min(arch.max_positions, num_blocks * 16)
    # What a token is multiplied with: of experts those it visits.
    visited = count_parameters(arch).active_non_embedding + arch.vocab_size * arch.hidden_size
    return SchedulerConfig(
        num_blocks=num_blocks,
        max_model_len=max(longest, 2),
        token_budget=token_budget,
        max_num_seqs=min(64, token_budget),
        swap_s_per_block=block_bytes / _COPY_BYTES_PER_S,
        prefill_s_per_token=2 * visited / _PREFILL_FLOPS_PER_S,
    )


class LLM:
    """A model behind a scheduler.

    Not thread safe: one thread drives it.

    Attributes:
        model: the decoder.
        scheduler: the policy.
        runner: executes its plans.
        driver: runs one step after the other.
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
        asynchronous: bool = False,
        sampler: Sampler | None = None,
        kv_dtype: torch.dtype | None = None,
        native: bool | None = None,
        weights: str = "auto",
        swap_folder: Path | None = None,
        make_policy: Callable[[], OrderPolicy] | None = None,
        runner: EngineRunner | None = None,
        speculate: Transformer | Literal["off", "ngram"] = "off",
    ) -> None:
        """Allocate the pool and compile the kernels.

        Args:
            model: a decoder; it is put in evaluation mode.
            config: limits; derived from the model by default.
            end_tokens: token ids that end any output unless its request ignores them.
            clock: time as requests see it; the machine's by default.
            compiled: packed weights and compiled kernels; by default for float32 and bfloat16 on
                the CPU.
            asynchronous: plan each step while the one before runs; outputs are the same.
            sampler: chooses tokens; one without grammars by default.
            kv_dtype: type of keys and values; float32 beside fp32 weights and bfloat16 beside
                narrower ones by default.
            native: run steps in C++ kernels, or not; by default where they can be compiled and
                prove faster.
            weights: type in which the linear layers are computed, "fp32", "bf16", "int8" or "int4";
                "auto" takes that of the model.
            swap_folder: folder of the file that keeps swapped blocks; they stay in memory by
                default.
            make_policy: makes the order of requests; that of the config by default.
            runner: executes the plans; one made of the model, the limits and the options above by
                default.
            speculate: what guesses tokens, to be checked several at a time as long as it pays:
                "ngram" for what followed the same tokens before, or a small model of the same
                vocabulary; outputs are the same.

        Raises:
            BackendError: native kernels are asked for and cannot be had.
            ConfigError: the limits do not fit the model, the model that guesses has another
                vocabulary, or an asynchronous engine is to guess.
            CapacityError: the pool is too small, or there is no memory for it.
        """
        self.model = model
        self.end_tokens = end_tokens
        self.clock: Clock = clock or WallClock()
        self._make_policy = make_policy
        limits = config or default_config(model, kv_dtype=kv_dtype, weights=weights)
        self.runner: EngineRunner = runner or TorchRunner(
            model,
            limits,
            compiled=compiled,
            sampler=sampler,
            kv_dtype=kv_dtype,
            native=native,
            weights=weights,
        )
        self.runner.warm_up()
        self._drafter = make_drafter(
            speculate, model.architecture, limits, asynchronous=asynchronous
        )
        self._names = 0
        tiers = self._make_tiers(limits, swap_folder)
        self.driver = Driver(
            self._make_scheduler(limits),
            self.runner,
            self.clock,
            tiers=tiers,
            asynchronous=asynchronous,
        )

    def _make_scheduler(self, config: SchedulerConfig, *, guesses: bool = True) -> Scheduler:
        """Make a scheduler without requests."""
        return Scheduler(
            config,
            model_key=self.model.architecture.name,
            policy=self._make_policy() if self._make_policy else None,
            speculator=self._make_speculator() if guesses else None,
        )

    def _make_speculator(self) -> Speculator | None:
        """Make what lets steps check guesses, with nothing learnt."""
        return Speculator(self._drafter) if self._drafter else None

    def _make_tiers(self, config: SchedulerConfig, folder: Path | None) -> Tiers:
        """Make what carries out transfers, if there can be any."""
        if config.preemption == "recompute":
            return Tiers()
        from steelyard.serve.kv.tiers import TieredKV, make_store

        return TieredKV(self.runner.kv, make_store(self.runner.kv, config.host_blocks, folder))

    @property
    def scheduler(self) -> Scheduler:
        """The policy."""
        return self.driver.scheduler

    @property
    def config(self) -> SchedulerConfig:
        """The limits."""
        return self.scheduler.config

    def reset(self, *, guesses: bool = True) -> None:
        """Forget all requests, cached prefixes and counters; the pool tensor stays.

        Args:
            guesses: whether tokens are guessed from now on, in an engine that can.
        """
        self.driver.settle()
        old = self.driver
        fresh = self._make_scheduler(self.config, guesses=guesses)
        self.driver = Driver(
            fresh, self.runner, self.clock, tiers=old.tiers, asynchronous=old.asynchronous
        )

    def close(self) -> None:
        """Wait for what is in flight and give the second tier back."""
        self.driver.settle()
        self.driver.tiers.close()

    def add_request(
        self,
        prompt: list[int],
        params: SamplingParams,
        *,
        request_id: str = "",
        priority: int = 0,
        client: str = "default",
    ) -> str:
        """Queue a request.

        Args:
            prompt: token ids, each below the vocabulary's size.
            params: sampling parameters.
            request_id: a name of its own; made up when empty.
            priority: smaller runs first under the priority policy.
            client: the client who pays for it under a fair policy.

        Returns:
            The request's id.

        Raises:
            ConfigError: the request could never finish or has a token id outside the vocabulary.
        """
        self._names += 1
        now_s = self.driver.now_s()
        name = request_id or f"request-{self._names}"
        self.add(
            Request(
                id=name,
                prompt=prompt,
                params=params,
                arrival_s=now_s,
                priority=priority,
                client=client,
            ),
            now_s,
        )
        return name

    def add(self, request: Request, now_s: float) -> None:
        """Queue a request object unless `check` refuses it."""
        self._check_tokens(request)
        if self.end_tokens:
            request.params = replace(
                request.params, stop_tokens=(*request.params.stop_tokens, *self.end_tokens)
            )
        self.scheduler.add(request, now_s)

    def check(self, request: Request) -> None:
        """Refuse a request that could never finish; nothing changes.

        Args:
            request: not yet added.

        Raises:
            ConfigError: the prompt is empty or too long, the id is taken, a token id is outside the
                vocabulary, or the grammar cannot be followed.
        """
        self.scheduler.check(request)
        self._check_tokens(request)

    def _check_tokens(self, request: Request) -> None:
        """Refuse what only the model and the sampler know; the scheduler checks the rest."""
        size = self.model.architecture.vocab_size
        if not (min(request.prompt, default=0) >= 0 and max(request.prompt, default=0) < size):
            raise ConfigError(
                f"token ids must be in [0, {size})",
                hint="encode the prompt with this model's tokenizer",
            )
        self.runner.sampler.check(request.params, size)

    def abort(self, request_id: str) -> bool:
        """Drop a request and all its sequences; False when it is not in flight."""
        return self.scheduler.abort(request_id) is not None

    def step(self) -> StepResult:
        """Run one step; an asynchronous engine launches it and takes the results of the one before.

        Returns:
            What is new; it unpacks into the plan (None without results), the sampled tokens by
            sequence, and the requests that ended.
        """
        step = self.driver.step()
        return StepResult.of(step) if step else StepResult()

    def stats(self) -> EngineStats:
        """Return the counters."""
        policy = self.scheduler
        guesser = policy.speculator
        return EngineStats(
            steps=self.driver.num_steps,
            running=len(policy.running),
            waiting=len(policy.waiting),
            preemptions=policy.num_preemptions,
            blocks_in_use=policy.pool.num_in_use,
            num_blocks=policy.pool.num_blocks,
            kv_utilization=policy.kv_utilization(),
            swapped=len(policy.swapped),
            swaps=policy.num_swaps,
            cached_prompt_tokens=policy.num_cached_tokens,
            admitted_prompt_tokens=policy.num_prompt_tokens,
            drafted_tokens=guesser.num_drafted if guesser else 0,
            accepted_tokens=guesser.num_accepted if guesser else 0,
        )

    def generate(
        self, prompts: list[list[int]], params: SamplingParams | list[SamplingParams]
    ) -> list[Completion]:
        """Complete prompts, in their order.

        Args:
            prompts: token ids of each.
            params: one for all, or one per prompt.

        Returns:
            One completion per prompt, of `n` outputs each.

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
            done.update({request.id: request for request in self.step().finished})
        if self.driver.asynchronous:
            # The step planned before the last end was seen has only rows to drop; an engine that
            # is asked next, or profiled, must not find it in flight.
            while self.scheduler.has_work and not self.scheduler.num_requests:
                self.step()
        return [
            Completion(name, done[name].prompt, whole_outputs(done[name]), done[name].num_cached)
            for name in names
        ]

    def replay(
        self, trace: list[TraceRequest], between: Callable[[], None] = lambda: None
    ) -> ReplayResult:
        """Run a trace at the times it says, output lengths forced, and time every request and step.

        The engine must be idle; cached prefixes of earlier work are forgotten first. Tokens are not
        guessed: those of a trace's prompts are made up, so what guesses gain on them says nothing.

        Args:
            trace: requests by arrival.
            between: called after each step; its time belongs to none.

        Returns:
            Times relative to the start of the replay.

        Raises:
            TraceError: the trace is empty.
            ConfigError: a request could never finish.
        """
        self.reset(guesses=False)
        requests = [make_request(item, row) for row, item in enumerate(trace)]
        for request in requests:
            self.check(request)
        with frozen_heap():
            result = drive_replay(self.driver, requests, between)
        self.scheduler.speculator = self._make_speculator()
        return result

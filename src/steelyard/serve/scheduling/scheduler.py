"""Iteration-level scheduling: who runs in the next step, under a token and a block budget."""

import sys
from collections import deque
from collections.abc import Iterable

from steelyard.errors import ConfigError
from steelyard.serve.kv.blocks import BlockPool
from steelyard.serve.scheduling.config import SchedulerConfig
from steelyard.serve.scheduling.fairness import FCFS, OrderPolicy
from steelyard.serve.scheduling.flight import Flight, take_tokens
from steelyard.serve.scheduling.memory import KVMemory
from steelyard.serve.scheduling.planner import Chunk, lay_out
from steelyard.serve.scheduling.policies import make_policy, make_swapper
from steelyard.serve.scheduling.queues import Queues
from steelyard.serve.scheduling.request import Family, Request
from steelyard.serve.scheduling.speculation.speculator import Speculator
from steelyard.serve.scheduling.step import StepOutput, StepPlan
from steelyard.serve.scheduling.usage import KVUsage, measure_usage

__all__ = ["Scheduler", "SchedulerConfig"]


class Scheduler(Queues):
    """Continuous batching with chunked prefill and preemption.

    Each step, decoding sequences go first, one token each; the rest of the token budget goes to
    prompts in order, the last of them in part. When no block is left for a decoding sequence, the
    request that comes last gives its blocks back and waits again, in its original place: its prompt
    and output so far are prefilled once more, or its blocks go to the host and return. While one is
    away, no request that comes after it is admitted. The sequences of one request are admitted and
    preempted together.

    `schedule` counts what it plans as done, so the next step may be planned before `complete` is
    told of the one in flight; at most one may be in flight then. Blocks of a request that ended are
    given back when no step in flight writes them.

    Deterministic: equal calls yield equal plans.

    Attributes:
        policy: order of requests.
        speculator: lets steps check guessed tokens; None for no guesses.

    Source: Kwon et al. 2023 (arXiv 2309.06180), section 4.5; token budget as in Agrawal et al. 2024
        (arXiv 2403.02310); planning ahead as in Zhu et al. 2024 (arXiv 2408.12757), section 4.2.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        model_key: str = "",
        policy: OrderPolicy | None = None,
        memory: KVMemory | None = None,
        speculator: Speculator | None = None,
    ) -> None:
        """Start with an empty pool and no request.

        Args:
            config: limits.
            model_key: name of the weights, for the prefix index.
            policy: order of requests; that of the config by default.
            memory: an unused pool with the rules by which requests take from it; that of the config
                by default.
            speculator: lets steps check guessed tokens, which must be completed before the next is
                planned; None for no guesses.
        """
        memory = memory or KVMemory(config, model_key=model_key)
        super().__init__(config, memory, make_swapper(config, memory))
        self.policy = policy or make_policy(config, memory)
        self.speculator = speculator
        self._requests: dict[str, Request] = {}
        self._flights: deque[Flight] = deque()
        self._arrivals = 0
        self._rounds = 0
        self._has_advanced = True
        self._is_fcfs = isinstance(self.policy, FCFS)

    @property
    def pool(self) -> BlockPool:
        """The blocks."""
        return self.memory.pool

    @property
    def has_work(self) -> bool:
        """Whether any request or step is in flight, or a transfer has to be started."""
        return bool(self._requests or self._flights or self.swapper.has_fresh)

    @property
    def num_requests(self) -> int:
        """Requests that have not ended."""
        return len(self._requests)

    def check(self, request: Request) -> None:
        """Refuse a request that could never finish.

        Args:
            request: request that was not added yet.

        Raises:
            ConfigError: the prompt is empty or too long, the id is taken, or its sequences are too
                many for the limits.
        """
        size = len(request.prompt)
        limit = self.config.max_model_len
        count = request.params.num_sequences
        if size == 0:
            raise ConfigError("the prompt is empty", hint="send at least one token")
        if size + request.params.max_tokens > limit:
            raise ConfigError(
                f"prompt of {size} tokens and max_tokens {request.params.max_tokens} exceed the "
                f"model length {limit}",
                hint="shorten the prompt or lower max_tokens",
            )
        if request.id in self._requests:
            raise ConfigError(
                f"request id {request.id!r} is already in flight",
                hint="choose an id of its own for each request",
            )
        if count > self.config.max_num_seqs:
            raise ConfigError(
                f"{count} sequences of one request are more than max_num_seqs = "
                f"{self.config.max_num_seqs}",
                hint="lower n, best_of or beam_width",
            )
        self.memory.check(request)

    def add(self, request: Request, now_s: float) -> None:
        """Queue a request that `check` accepts.

        Args:
            request: fresh; its arrival time is kept when it lies before `now_s`.
            now_s: time on the driver's clock.

        Raises:
            ConfigError: the request could never finish.
        """
        self.check(request)
        request.arrival_s = min(request.arrival_s, now_s)
        request.order = self._arrivals
        request.is_synchronous = request.params.needs_history
        if request.params.num_sequences > 1 or request.params.beam_width:
            request.family = Family.of(request)
        self._arrivals += 1
        self._requests[request.id] = request
        self.waiting.append(request)
        self.policy.arrive(request, now_s)

    def abort(self, request_id: str) -> Request | None:
        """Drop a request and all its sequences; None when it is not in flight."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        for member in request.members:
            member.finish_reason = member.finish_reason or "abort"
        self._leave(request)
        return request

    def pin_prefix(self, tokens: list[int]) -> int:
        """Keep the full blocks of a prefix in the pool until `unpin_prefix` of the same tokens.

        Args:
            tokens: the prefix; what is not computed yet is kept from when it is.

        Returns:
            The tokens that are kept, a multiple of the block size; 0 without prefix caching.

        Raises:
            CapacityError: the rest of the pool could not hold one sequence of the model length.
        """
        return self.memory.pin(tokens)

    def unpin_prefix(self, tokens: list[int]) -> None:
        """Take one `pin_prefix` of the same tokens back."""
        self.memory.unpin(tokens)

    def schedule(self, now_s: float) -> StepPlan | None:
        """Plan the next step.

        Args:
            now_s: time on the driver's clock; only policies that say so depend on it.

        Returns:
            The plan, or None when nothing can run now: without requests, or while all wait for a
            step in flight or for transfers. A plan without tokens only has transfers to start.
        """
        assert len(self._flights) <= 1, "complete the step before the one in flight first"
        self._rounds += 1
        if self.config.update_every and self._rounds % self.config.update_every == 0:
            self._reorder(now_s)
        chunks, num_decodes = self._whole(now_s) if self.config.whole_prompts else [], 0
        if not chunks:
            chunks, num_decodes = self._mixed(now_s)
        transfers = self.swapper.drain()
        if not chunks and not transfers:
            return None
        plan = lay_out(
            chunks, num_decodes, self.config.block_size, self.memory.take_copies(), transfers
        )
        if chunks:
            self._flights.append(Flight.of(plan, chunks))
            self._charge(plan, chunks[num_decodes:])
        if self.speculator:
            is_plain = plan.num_tokens == plan.num_decodes and not (len(plan.copies) or transfers)
            self.speculator.begin(now_s, plan.num_decodes, is_plain=is_plain)
        return plan

    def complete(self, plan: StepPlan, output: StepOutput, now_s: float) -> list[Request]:
        """Take the results of a step.

        Args:
            plan: plan of `schedule`, with tokens; the oldest in flight. Requests that ended since
                are skipped.
            output: tokens of the plan's sampled rows.
            now_s: time at the step's end.

        Returns:
            Requests all of whose sequences ended.
        """
        flight = self._flights.popleft()
        assert flight.plan is plan, "steps complete in the order of their plans"
        guessed: list[tuple[Request, int, int]] = []
        for request, start, stop, generation in flight.chunks:
            request.steps_in_flight -= 1
            if request.finish_reason:
                self._release(request)
            elif request.drafts:
                guessed.append((request, start, len(request.output)))
            # A request that was preempted since the plan no longer has the blocks the step wrote.
            elif generation == request.num_preemptions:
                self.memory.remember(request, start, stop)
        ended = take_tokens(plan, output, now_s, self.memory)
        if self.speculator:
            self.speculator.end(now_s)
            for request, start, before in guessed:
                more = self.speculator.settle(request, start, before, self.memory)
                self.policy.served(request.root, 0, more)
        for request in ended:
            if request.family is not None:
                self._release(request)
        finished = []
        for root in dict.fromkeys(request.root for request in ended):
            if root.family is None or not root.family.living:
                self._leave(root)
                finished.append(root)
        return finished

    def usage(self) -> KVUsage:
        """Sort the pool's slots by what they hold."""
        return measure_usage(
            self.pool, (item for request in self.running for item in request.sequences)
        )

    def kv_utilization(self) -> float:
        """Return computed token states over the slots of held blocks; 1 when none is held."""
        slots = self.pool.num_in_use * self.config.block_size
        return self.usage().stored / slots if slots else 1.0

    def _mixed(self, now_s: float) -> tuple[list[Chunk], int]:
        """Choose decoding sequences, then prompts in parts; return them and how many decode."""
        chunks, is_short = self._decode(now_s)
        num_decodes = len(chunks)
        if self.speculator and not is_short:
            is_awaited = bool(self.waiting or self.swapped)  # they claim free blocks first
            chunks = self.speculator.extend(chunks, self.memory, is_awaited=is_awaited)
        if self.config.whole_prompts:
            return chunks, num_decodes
        budget = self.config.token_budget - sum(length for _, length in chunks)
        budget = self._prefill(self.running, chunks, budget)
        # Blocks that were just taken from one request must not go to another in the same step: the
        # sequences that run would be short of them again in the next.
        while budget > 0 and not is_short:
            request = self._next(now_s)
            if request is None or not self.take_in(request):
                break
            if request.state == "running":
                budget = self._prefill([request], chunks, budget)
        return chunks, num_decodes

    def _whole(self, now_s: float) -> list[Chunk]:
        """Choose prompts up to the token budget, or one that is longer; none decodes beside."""
        chunks: list[Chunk] = []
        self._prefill(self.running, chunks, sys.maxsize)
        while (request := self._next(now_s)) is not None:
            total = sum(length for _, length in chunks) + request.num_tokens
            if (chunks and total > self.config.token_budget) or not self.take_in(request):
                break
            if request.state == "running":
                self._prefill([request], chunks, sys.maxsize)
        return chunks

    def _decode(self, now_s: float) -> tuple[list[Chunk], bool]:
        """Find decoding sequences a slot each, preempting who comes last while blocks are short.

        Args:
            now_s: time on the driver's clock.

        Returns:
            One chunk per sequence that got a slot, and whether blocks were short.
        """
        chunks: list[Chunk] = []
        is_short = False
        running = list(self.running) if self._is_fcfs else self._ranked(self.running, now_s)
        for request in list(running):
            ready = request.decodable() if request.state == "running" else []
            if not ready:
                continue
            if self.memory.has_slot(request):
                chunks.append((request, 1))
                continue
            while (
                request.state == "running" and self.memory.missing(ready) > self.pool.num_available
            ):
                is_short = True
                coming = self.pool.num_available + self.swapper.num_blocks_leaving
                # Enough blocks come free when transfers land: to sit this step out costs less than
                # to preempt one more request.
                if self.memory.missing(ready) <= coming:
                    break
                self.preempt(running.pop())
            if request.state == "running" and self.memory.missing(ready) <= self.pool.num_available:
                self.memory.grow(ready)
                chunks += [(item, 1) for item in ready]
        return chunks, is_short

    def _prefill(self, requests: list[Request], chunks: list[Chunk], budget: int) -> int:
        """Add prompt chunks of requests with blocks; return what is left of the token budget."""
        for request in requests:
            if budget <= 0:
                break
            for item in request.sequences:
                length = min(item.num_prefill, budget)
                if length > 0:
                    chunks.append((item, length))
                    budget -= length
        return budget

    def _next(self, now_s: float) -> Request | None:
        """Return the request that comes first of those that wait or are on the host."""
        away = [request for request in self.swapped if request.state != "swapping_in"]
        if self._is_fcfs:  # both queues are kept by arrival
            heads = (*self.waiting[:1], *away[:1])
            return min(heads, key=lambda item: item.order, default=None)
        return min(
            (*self.waiting, *away), key=lambda item: self.policy.key(item, now_s), default=None
        )

    def _ranked(self, requests: Iterable[Request], now_s: float) -> list[Request]:
        """Sort requests by the policy."""
        return sorted(requests, key=lambda item: self.policy.key(item, now_s))

    def _reorder(self, now_s: float) -> None:
        """Preempt running requests so that those that come first in a new order can run."""
        self.policy.update(now_s)
        # An order that changes sooner than a swap lands, or than dropped tokens are computed again,
        # would take blocks back before they were of use: requests would trade places for ever. One
        # new token in between bounds the trades by the tokens that all requests have.
        if not self._has_advanced:
            return
        order = self._ranked((*self.running, *self.swapped, *self.waiting), now_s)
        for request in self.left_over(order):
            self.preempt(request)
            self._has_advanced = False

    def _charge(self, plan: StepPlan, prompts: list[Chunk]) -> None:
        """Tell the policy of service, and note whether any token is computed for the first time.

        Prompt tokens that are computed again are not charged again: that a request was preempted is
        the scheduler's choice, and its client must not fall back for it.

        Args:
            plan: about to run.
            prompts: prompt chunks of the plan.
        """
        self._has_advanced |= bool(plan.sampled)
        for request, length in prompts:
            stop = min(request.num_computed, len(request.prompt))
            fresh = max(stop - max(request.num_charged, request.num_computed - length), 0)
            request.num_charged = max(request.num_charged, stop)
            self._has_advanced |= fresh > 0
            self.policy.served(request.root, fresh, 0)
        # The order of arrival charges nobody, so its largest loop would do nothing.
        if self._is_fcfs:
            return
        # One with guesses stands there more than once; what it gets beyond is charged later.
        for request in dict.fromkeys(plan.sampled):
            self.policy.served(request.root, 0, 1)

    def _release(self, request: Request) -> None:
        """Free the blocks of a sequence that ended, unless a step in flight writes them."""
        if request.steps_in_flight == 0:
            request.table.free(self.pool)

    def _leave(self, request: Request) -> None:
        """Forget a request that ended."""
        del self._requests[request.id]
        self.policy.leave(request)
        self.remove(request)
        for member in request.members:
            self._release(member)

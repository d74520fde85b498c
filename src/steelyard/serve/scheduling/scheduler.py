"""Iteration-level scheduling.

Who runs in the next step, under a token budget and a block budget.
"""

import bisect
from collections import deque
from collections.abc import Iterable

from steelyard.errors import CapacityError, ConfigError
from steelyard.serve.kv.blocks import Pool
from steelyard.serve.scheduling.config import SchedulerConfig
from steelyard.serve.scheduling.fairness import FCFS, OrderPolicy
from steelyard.serve.scheduling.families.family import Family
from steelyard.serve.scheduling.flight import Flight, take_tokens
from steelyard.serve.scheduling.memory import KVMemory
from steelyard.serve.scheduling.planner import Chunk, lay_out
from steelyard.serve.scheduling.policies import make_policy, make_swapper, prefers_swap
from steelyard.serve.scheduling.ready import decodable, num_prefill, width
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.step import StepOutput, StepPlan
from steelyard.serve.scheduling.usage import KVUsage, measure_usage

__all__ = ["Scheduler", "SchedulerConfig"]


class Scheduler:
    """Continuous batching with chunked prefill, preemption by recomputation or swapping, and an order of the caller's choice.

    Each step, decoding sequences go first, one token each; the rest of the token budget goes to
    prompts in order, the last of them in part. When no block is left for a decoding sequence, the
    request that comes last gives its blocks back and waits again, in its original place: its prompt
    and output so far are prefilled once more, or its blocks go to the host and return. While one is
    away, no request that comes after it is admitted. The sequences of one request are admitted and
    preempted together.

    `schedule` counts what it plans as done, so the next step may be planned before `complete` is
    told of the one in flight; at most one may be in flight then. Blocks of a request that ended are
    given back when no step in flight writes them.

    Deterministic: equal calls give equal plans.

    Attributes:
        config: limits.
        memory: the pool and the rules by which requests take from it.
        policy: order of requests.
        swapper: moves requests to the host tier and back, or None.
        waiting: requests without blocks, by order of arrival.
        running: requests with blocks, by order of arrival.
        swapped: requests on the host or on their way out or in, by order of arrival.
        num_preemptions: over all requests.
        num_swaps: preemptions that moved blocks to the host.

    Source: Kwon et al. 2023 (arXiv 2309.06180), section 4.5; token budget as in Agrawal et al. 2024
        (arXiv 2403.02310); planning ahead as in Zhu et al. 2024 (arXiv 2408.12757), section 4.2.
    """

    def __init__(
        self, config: SchedulerConfig, *, model_key: str = "", policy: OrderPolicy | None = None
    ) -> None:
        """Start with an empty pool and no request.

        Args:
            config: limits.
            model_key: names the weights, for the prefix index.
            policy: order of requests; that of the config by default.
        """
        self.config = config
        self.memory = KVMemory(config, model_key=model_key)
        self.policy = policy or make_policy(config, self.memory)
        self.swapper = make_swapper(config, self.memory)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.swapped: list[Request] = []
        self.num_preemptions = self.num_swaps = 0
        self.num_prompt_tokens = self.num_cached_tokens = 0
        self._requests: dict[str, Request] = {}
        self._flights: deque[Flight] = deque()
        self._arrivals = self._rounds = 0
        self._watermark = (
            0 if config.is_contiguous else int(config.watermark_fraction * config.num_blocks)
        )
        self._is_fcfs = isinstance(self.policy, FCFS)

    @property
    def pool(self) -> Pool:
        """The blocks."""
        return self.memory.pool

    @property
    def has_work(self) -> bool:
        """Whether any request or step is in flight, or a transfer has to be started."""
        return bool(self._requests or self._flights or (self.swapper and self.swapper.has_fresh))

    @property
    def num_requests(self) -> int:
        """Requests that have not ended."""
        return len(self._requests)

    def check(self, request: Request) -> None:
        """Refuse a request that could never finish.

        Args:
            request: not yet added.

        Raises:
            ConfigError: the prompt is empty or too long, the id is taken, or its sequences are too
                many for the limits.
        """
        size, limit, count = (
            len(request.prompt),
            self.config.max_model_len,
            request.params.num_sequences,
        )
        if size == 0:
            raise ConfigError("the prompt is empty", hint="give at least one token")
        if size + request.params.max_tokens > limit:
            raise ConfigError(
                f"prompt of {size} tokens and max_tokens {request.params.max_tokens} exceed the "
                f"model length {limit}",
                hint="shorten the prompt or lower max_tokens",
            )
        if request.id in self._requests:
            raise ConfigError(
                f"request id {request.id!r} is already in flight",
                hint="give each request its own id",
            )
        if count > self.config.max_num_seqs:
            message = (
                f"{count} sequences of one request are more than max_num_seqs = "
                f"{self.config.max_num_seqs}"
            )
            raise ConfigError(message, hint="lower n, best_of or beam_width")
        self.memory.check(request)

    def add(self, request: Request, now_s: float) -> None:
        """Queue a request.

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
        for member in request.family.members if request.family else (request,):
            member.finish_reason = member.finish_reason or "abort"
        self._leave(request)
        return request

    def pin_prefix(self, tokens: list[int]) -> int:
        """Keep the full blocks of a prefix in the pool once they are computed, until `unpin_prefix` is told the same tokens.

        Args:
            tokens: of the prefix.

        Returns:
            The tokens that are kept, a multiple of the block size; 0 without prefix caching.

        Raises:
            CapacityError: the rest of the pool could not hold one sequence of the model length.
        """
        hashes = self.memory.hashes(tokens)
        needed = self.memory.blocks_for(self.config.max_model_len)
        if self.memory.num_pinned + len(hashes) + needed > self.config.num_blocks:
            message = (
                f"{len(hashes)} more pinned blocks leave no room for a sequence of "
                f"{self.config.max_model_len} tokens"
            )
            raise CapacityError(message, hint="unpin another prefix or enlarge the pool")
        if self.memory.prefix is not None:
            self.memory.prefix.pin(hashes)
        return len(hashes) * self.config.block_size

    def unpin_prefix(self, tokens: list[int]) -> None:
        """Take one `pin_prefix` of the same tokens back."""
        if self.memory.prefix is not None:
            self.memory.prefix.unpin(self.memory.hashes(tokens))

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
        chunks, preempted = self._decode(now_s)
        num_decodes = len(chunks)
        budget = self._prefill(self.running, chunks, self.config.token_budget - num_decodes)
        while budget > 0 and not preempted:
            request = self._next(now_s)
            if request is None or not self._take_in(request):
                break
            if request.state == "running":
                budget = self._prefill([request], chunks, budget)
        transfers = self.swapper.drain() if self.swapper else []
        if not chunks and not transfers:
            return None
        plan = lay_out(
            chunks, num_decodes, self.config.block_size, self.memory.take_copies(), transfers
        )
        if chunks:
            self._flights.append(Flight.of(plan, chunks))
            self._charge(plan, chunks)
        return plan

    def complete(self, plan: StepPlan, output: StepOutput, now_s: float) -> list[Request]:
        """Take the results of a step.

        Args:
            plan: as `schedule` gave it, with tokens; the oldest in flight. Requests that ended
                since are skipped.
            output: tokens of the plan's sampled rows.
            now_s: time at the step's end.

        Returns:
            Requests all of whose sequences ended.
        """
        flight = self._flights.popleft()
        assert flight.plan is plan, "steps complete in the order of their plans"
        for request, start, stop, generation in flight.chunks:
            request.steps_in_flight -= 1
            if request.finish_reason:
                self._release(request)
            elif generation == request.num_preemptions:
                self.memory.remember(request, start, stop)
        ended = take_tokens(plan, output, now_s, self.memory)
        for request in ended:
            if request.family is not None:
                self._release(request)
        finished = []
        for root in dict.fromkeys(request.root for request in ended):
            if root.family is None or not root.family.living:
                self._leave(root)
                finished.append(root)
        return finished

    def land(self, transfer_ids: Iterable[int]) -> None:
        """Take note of transfers that are done; requests that came in run from the next step on."""
        if self.swapper is None:
            return
        for request in self.swapper.land(transfer_ids):
            if request.state == "running":
                self.swapped.remove(request)
                self._insert(self.running, request)

    def fail(self, transfer_ids: Iterable[int]) -> None:
        """Take note of transfers that did not work; what they lost is computed again."""
        if self.swapper is None:
            return
        for request in self.swapper.fail(transfer_ids):
            if request.state == "waiting":
                self.swapped.remove(request)
                self._insert(self.waiting, request)

    def usage(self) -> KVUsage:
        """Sort the pool's slots by what they hold."""
        return measure_usage(
            self.pool, (item for request in self.running for item in request.sequences)
        )

    def kv_utilization(self) -> float:
        """Return the computed token states over the slots of all held blocks; 1 when none is held."""
        slots = self.pool.num_in_use * self.config.block_size
        return self.usage().stored / slots if slots else 1.0

    def _decode(self, now_s: float) -> tuple[list[Chunk], bool]:
        """Return every decoding sequence a slot, in order, preempting the last request while blocks are short."""
        chunks: list[Chunk] = []
        preempted = False
        running = (
            list(self.running)
            if self._is_fcfs
            else sorted(self.running, key=lambda item: self.policy.key(item, now_s))
        )
        for request in list(running):
            ready = decodable(request) if request.state == "running" else []
            if not ready:
                continue
            if self.memory.has_slot(request):
                chunks.append((request, 1))
                continue
            while (
                request.state == "running" and self.memory.missing(ready) > self.pool.num_available
            ):
                preempted = True
                if (
                    self.swapper
                    and self.memory.missing(ready)
                    <= self.pool.num_available + self.swapper.num_blocks_leaving
                ):
                    break
                self._preempt(running.pop())
            if request.state == "running" and self.memory.missing(ready) <= self.pool.num_available:
                self.memory.grow(ready)
                chunks += [(item, 1) for item in ready]
        return chunks, preempted

    def _prefill(self, requests: list[Request], chunks: list[Chunk], budget: int) -> int:
        """Add prompt chunks of requests with blocks while the budget lasts; what is left of it is given back."""
        for request in requests:
            if budget <= 0:
                break
            for item in request.sequences:
                length = min(num_prefill(item), budget)
                if length > 0:
                    chunks.append((item, length))
                    budget -= length
        return budget

    def _next(self, now_s: float) -> Request | None:
        """Return the request that comes first of those without blocks and those that are swapped."""
        away = [request for request in self.swapped if request.state != "swapping_in"]
        if self._is_fcfs:
            heads = (*self.waiting[:1], *away[:1])
            return min(heads, key=lambda item: item.order, default=None)
        return min(
            (*self.waiting, *away), key=lambda item: self.policy.key(item, now_s), default=None
        )

    def _take_in(self, request: Request) -> bool:
        """Return a request blocks, or start to bring it back; False when it cannot be done now."""
        wide = sum(width(item) for item in self.running) + sum(
            width(item) for item in self.swapped if item.state == "swapping_in"
        )
        alone = not self.running
        headroom = 0 if alone else max(self._watermark, 1)
        if wide + width(request) > self.config.max_num_seqs or any(
            item.num_unknown for item in request.sequences
        ):
            return False
        if request.state == "waiting" and self._adopt(request):
            self.waiting.remove(request)
            self._insert(self.swapped, request)
        if request.state == "waiting":
            if not self.memory.admit(request.sequences, headroom):
                return False
            self.waiting.remove(request)
            self._insert(self.running, request)
            request.state = "running"
            self.num_prompt_tokens += len(request.prompt)
            self.num_cached_tokens += request.num_cached
            return True
        needed = self.memory.blocks_for(request.num_tokens + 1) + headroom
        return bool(
            self.swapper and needed <= self.pool.num_available and self.swapper.start_in(request)
        )

    def _adopt(self, request: Request) -> bool:
        """Let a waiting request go on from an earlier turn's copy on the host if that holds more than the pool."""
        if (
            self.swapper is None
            or request.family
            or self.swapper.num_kept(request) <= self.memory.num_cached(request)
        ):
            return False
        self.num_prompt_tokens += len(request.prompt)
        self.num_cached_tokens += self.swapper.adopt(request)
        return True

    def _preempt(self, request: Request) -> None:
        """Take a request's blocks: to the host, or away for good; it keeps its place in the order."""
        self.running.remove(request)
        self.num_preemptions += 1
        if (
            self.swapper
            and prefers_swap(self.config, request)
            and self.swapper.can_swap_out(request)
        ):
            request.num_preemptions += 1
            self.num_swaps += 1
            self.swapper.start_out(request)
            self._insert(self.swapped, request)
            return
        if self.swapper:
            self.swapper.forget(request)
        for item in request.family.members if request.family else (request,):
            if not item.finish_reason:
                item.table.free(self.pool)
                item.num_computed = 0
                item.num_preemptions += 1
        request.state = "waiting"
        self._insert(self.waiting, request)

    def _reorder(self, now_s: float) -> None:
        """Sort all requests, fill the pool from the top, and preempt the running ones that are left over."""
        self.policy.update(now_s)
        order = sorted(
            (*self.running, *self.swapped, *self.waiting),
            key=lambda item: self.policy.key(item, now_s),
        )
        room, places = (
            self.config.num_blocks - self._watermark - self.memory.num_pinned,
            self.config.max_num_seqs,
        )
        for rank, request in enumerate(order):
            room -= self.memory.footprint(request)
            places -= width(request)
            if rank and (room < 0 or places < 0):
                break
        else:
            return
        if all(request.state == "running" for request in order[:rank]):
            return
        for request in reversed(order[rank:]):
            if request.state == "running":
                self._preempt(request)

    def _charge(self, plan: StepPlan, chunks: list[Chunk]) -> None:
        """Tell the policy of service; prompt tokens that are computed again are not charged again."""
        if self._is_fcfs:
            return
        for request, length in chunks[plan.num_decodes :]:
            stop = min(request.num_computed, len(request.prompt))
            fresh = max(stop - max(request.num_charged, request.num_computed - length), 0)
            request.num_charged = max(request.num_charged, stop)
            self.policy.served(request.root, fresh, 0)
        for request in plan.sampled:
            self.policy.served(request.root, 0, 1)

    def _insert(self, queue: list[Request], request: Request) -> None:
        """Put a request to its place in the order of arrival."""
        bisect.insort(queue, request, key=lambda item: item.order)

    def _release(self, request: Request) -> None:
        """Give the blocks of a sequence that ended back, unless a step in flight writes them."""
        if request.steps_in_flight == 0:
            request.table.free(self.pool)

    def _leave(self, request: Request) -> None:
        """Forget a request that ended."""
        del self._requests[request.id]
        queues = {"running": self.running, "waiting": self.waiting}
        queues.get(request.state, self.swapped).remove(request)
        self.policy.leave(request)
        if self.swapper and request.family is None:
            self.swapper.retire(request)
        for member in request.family.members if request.family else (request,):
            self._release(member)

"""Iteration-level scheduling: who runs in the next step, under a token budget and a block budget."""

import bisect

import numpy as np

from steelyard.errors import ConfigError
from steelyard.serve.kv.blocks import BlockPool
from steelyard.serve.kv.prefix import PrefixIndex, chain_hash
from steelyard.serve.scheduling.config import SchedulerConfig
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.step import StepOutput, StepPlan

__all__ = ["Scheduler", "SchedulerConfig"]


class Scheduler:
    """First come, first served, chunked prefill, preemption by recomputation.

    Each step, decoding sequences go first, one token each; the rest of the token budget goes to prompts in order of arrival, the
    last of them in part. When no block is left for a decoding sequence, the latest arrived one gives its blocks back and waits
    again, in its original place; its prompt and output so far are then prefilled once more.

    Deterministic: equal calls give equal plans.

    Attributes:
        config: limits.
        pool: the blocks.
        waiting: requests without blocks, by order of arrival.
        running: requests with blocks, by order of arrival.
        num_preemptions: over all requests.

    Source: Kwon et al. 2023 (arXiv 2309.06180), section 4.5; token budget as in Agrawal et al. 2024 (arXiv 2403.02310).
    """

    def __init__(self, config: SchedulerConfig, *, model_key: str = "") -> None:
        """Start with an empty pool and no request.

        Args:
            config: limits.
            model_key: names the weights, for the prefix index.
        """
        self.config = config
        self.prefix = PrefixIndex(model_key=model_key) if config.prefix_caching else None
        self.pool = BlockPool(config.num_blocks, config.block_size, self.prefix)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.num_preemptions = 0
        self._requests: dict[str, Request] = {}
        self._arrivals = 0
        self._watermark = int(config.watermark_fraction * config.num_blocks)

    @property
    def has_work(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self._requests)

    def check(self, request: Request) -> None:
        """Refuse a request that could never finish.

        Args:
            request: not yet added.

        Raises:
            ConfigError: the prompt is empty or too long, or the id is taken.
        """
        size, limit = len(request.prompt), self.config.max_model_len
        if size == 0:
            raise ConfigError("the prompt is empty", hint="give at least one token")
        if size + request.params.max_tokens > limit:
            raise ConfigError(
                f"prompt of {size} tokens and max_tokens {request.params.max_tokens} exceed the model length {limit}",
                hint="shorten the prompt or lower max_tokens",
            )
        if request.id in self._requests:
            raise ConfigError(f"request id {request.id!r} is already in flight", hint="give each request its own id")

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
        self._arrivals += 1
        self._requests[request.id] = request
        self.waiting.append(request)

    def abort(self, request_id: str) -> Request | None:
        """Drop a request between two steps; None when it is not in flight."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        request.finish_reason = "abort"
        self._leave(request)
        return request

    def schedule(self, now_s: float) -> StepPlan | None:
        """Plan the next step.

        Args:
            now_s: time on the driver's clock; this policy does not depend on it.

        Returns:
            The plan, or None when no request is in flight.
        """
        decoding, preempted = self._grow_decoding()
        chunks = [(request, 1) for request in decoding]
        budget = self.config.token_budget - len(chunks)
        for request in self.running:
            if budget > 0 and not request.is_decoding:
                chunks.append((request, min(request.num_pending, budget)))
                budget -= chunks[-1][1]
        while budget > 0 and not preempted and self.waiting and self._admit(self.waiting[0]):
            request = self.waiting.pop(0)
            bisect.insort(self.running, request, key=lambda item: item.order)
            chunks.append((request, min(request.num_pending, budget)))
            budget -= chunks[-1][1]
        return self._plan(chunks, len(decoding)) if chunks else None

    def complete(self, plan: StepPlan, output: StepOutput, now_s: float) -> list[Request]:
        """Take the results of a step.

        Args:
            plan: as `schedule` gave it; requests aborted since are skipped.
            output: tokens of the plan's sampled rows.
            now_s: time at the step's end.

        Returns:
            Requests that ended, their blocks given back.
        """
        finished, tokens = [], dict(zip(plan.sampled_ids, output.tokens.tolist(), strict=True))
        for name, length in zip(plan.request_ids, plan.query_lengths.tolist(), strict=True):
            request = self._requests.get(name)
            if request is None:
                continue
            request.num_computed += length
            self._remember(request, length)
            if name in tokens:
                request.take(tokens[name], now_s)
            if request.finish_reason:
                self._leave(request)
                finished.append(request)
        return finished

    def kv_utilization(self) -> float:
        """Give the computed token states over the slots of all held blocks; 1 when none is held."""
        slots = self.pool.num_in_use * self.config.block_size
        empty = sum(request.table.num_blocks * self.config.block_size - request.num_computed for request in self.running)
        return 1.0 - empty / slots if slots else 1.0

    def _grow_decoding(self) -> tuple[list[Request], bool]:
        """Give every decoding sequence a slot, oldest first, preempting the latest arrived while blocks are short."""
        grown, preempted = [], False
        for request in [item for item in self.running if item.is_decoding]:
            while request.table.num_blocks and request.table.missing(request.num_tokens, self.config.block_size) > self.pool.num_available:
                self._preempt(self.running[-1])
                preempted = True
            if request.table.num_blocks:
                request.table.grow(self.pool, request.num_tokens)
                grown.append(request)
        return grown, preempted

    def _preempt(self, request: Request) -> None:
        """Take a request's blocks and put it back to its place in the queue."""
        self.running.remove(request)
        request.table.free(self.pool)
        request.num_computed = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        bisect.insort(self.waiting, request, key=lambda item: item.order)

    def _admit(self, request: Request) -> bool:
        """Give a waiting request blocks for all its known tokens, or nothing."""
        if len(self.running) >= self.config.max_num_seqs:
            return False
        size = self.config.block_size
        shared = self._match(request)
        idle = sum(self.pool.users(block) == 0 for block in shared)
        fresh = -(-request.num_tokens // size) - len(shared)
        reserve = max(self._watermark, 1) if self.running else 0
        if fresh + idle + reserve > self.pool.num_available:
            return False
        for block in shared:
            self.pool.retain(block)
            request.table.append(block)
        request.table.grow(self.pool, request.num_tokens)
        request.num_computed = request.num_cached = len(shared) * size
        return True

    def _match(self, request: Request) -> list[int]:
        """Find known blocks for a request's beginning; at least its last token is left to run."""
        if self.prefix is None:
            return []
        full = (request.num_tokens - 1) // self.config.block_size
        self._extend_hashes(request, full)
        return self.prefix.match(request.block_hashes[:full])

    def _remember(self, request: Request, length: int) -> None:
        """Enter the blocks that the latest `length` computed tokens filled into the prefix index."""
        size, known = self.config.block_size, request.block_hashes
        before, full = (request.num_computed - length) // size, request.num_computed // size
        if self.prefix is None or full == before:
            return
        self._extend_hashes(request, full)
        for index in range(before, full):
            self.prefix.insert(known[index], int(request.table.blocks[index]))

    def _extend_hashes(self, request: Request, full: int) -> None:
        """Hash a request's leading `full` blocks, as far as not yet done."""
        assert self.prefix is not None
        size, known = self.config.block_size, request.block_hashes
        while len(known) < full:
            start = len(known) * size
            known.append(chain_hash(known[-1] if known else self.prefix.root, request.tokens(start, start + size)))

    def _leave(self, request: Request) -> None:
        """Forget a request that ended."""
        del self._requests[request.id]
        (self.running if request.table.num_blocks else self.waiting).remove(request)
        request.table.free(self.pool)

    def _plan(self, chunks: list[tuple[Request, int]], num_decodes: int) -> StepPlan:
        """Lay the chunks out as flat index arrays."""
        size = self.config.block_size
        decoding = [request for request, _ in chunks[:num_decodes]]
        token_ids = [request.output[-1] for request in decoding]
        positions = [np.array([request.num_computed for request in decoding], dtype=np.int64)]
        slots = [np.array([request.table.slot(request.num_computed, size) for request in decoding], dtype=np.int64)]
        for request, length in chunks[num_decodes:]:
            start, stop = request.num_computed, request.num_computed + length
            token_ids += request.tokens(start, stop)
            positions.append(np.arange(start, stop))
            slots.append(request.table.slots(start, stop, size))
        lengths = np.array([length for _, length in chunks], dtype=np.int64)
        contexts = np.array([request.num_computed for request, _ in chunks], dtype=np.int64) + lengths
        tables = np.zeros((len(chunks), int(-(-contexts.max() // size))), dtype=np.int64)
        for row, (request, _) in enumerate(chunks):
            blocks = request.table.blocks[: tables.shape[1]]
            tables[row, : len(blocks)] = blocks
        sampled = [request for request, length in chunks if length == request.num_pending]
        return StepPlan(
            request_ids=[request.id for request, _ in chunks],
            num_decodes=num_decodes,
            token_ids=np.array(token_ids, dtype=np.int64),
            positions=np.concatenate(positions),
            slot_mapping=np.concatenate(slots),
            query_lengths=lengths,
            context_lengths=contexts,
            block_tables=tables,
            sample_rows=(np.cumsum(lengths) - 1)[[length == request.num_pending for request, length in chunks]],
            sampled=sampled,
            output_positions=np.array([len(request.output) for request in sampled], dtype=np.int64),
        )

"""The requests in flight by where their keys and values are, and what moves them about."""

import bisect
from collections.abc import Iterable

from steelyard.serve.scheduling.config import SchedulerConfig
from steelyard.serve.scheduling.memory import KVMemory
from steelyard.serve.scheduling.policies import prefers_swap
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.swaps.swapper import Swapper

__all__ = ["Queues"]


class Queues:
    """Requests without blocks, with blocks, and on the host, each by order of arrival.

    Attributes:
        config: limits.
        memory: the pool and the rules by which requests take from it.
        swapper: moves requests to the host tier and back, if there is one.
        waiting: requests without blocks.
        running: requests with blocks.
        swapped: requests on the host or on their way out or in.
        num_preemptions: over all requests.
        num_swaps: preemptions that moved blocks to the host.
        num_prompt_tokens: prompt tokens of admissions.
        num_cached_tokens: prompt tokens of admissions that did not have to be computed.
    """

    def __init__(self, config: SchedulerConfig, memory: KVMemory, swapper: Swapper) -> None:
        """Start without a request.

        Args:
            config: limits.
            memory: the pool and the rules by which requests take from it.
            swapper: moves requests to the host tier and back, if there is one.
        """
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.swapped: list[Request] = []
        self.num_preemptions = 0
        self.num_swaps = 0
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.config = config
        self.memory = memory
        self.swapper = swapper
        self._watermark = int(config.watermark_fraction * config.num_blocks)

    def take_in(self, request: Request) -> bool:
        """Admit a request, or start to bring it back; False when it cannot be done now.

        Args:
            request: waiting, or on the host.

        Returns:
            Whether it is "running" or "swapping_in" now.
        """
        memory = self.memory
        wide = sum(item.width for item in self.running) + sum(
            item.width for item in self.swapped if item.state == "swapping_in"
        )
        # A preempted request with a token in flight has to wait for it: all its tokens are computed
        # again, and this one is not known yet.
        if wide + request.width > self.config.max_num_seqs or any(
            item.num_unknown for item in request.sequences
        ):
            return False
        # Blocks kept free let the others decode for a while before anyone is preempted for them. A
        # request that runs alone needs none; the longest that is allowed would not fit beside them.
        headroom = max(self._watermark, 1) if self.running else 0
        if request.state == "waiting" and self._adopt(request):
            self._move(request, self.waiting, self.swapped)
        if request.state == "waiting":
            if not memory.admit(request.sequences, headroom):
                return False
            self._move(request, self.waiting, self.running)
            request.state = "running"
            self._count_prompt(request)
            return True
        needed = memory.blocks_for(request.num_tokens + 1) + headroom
        return needed <= memory.pool.num_available and self.swapper.start_in(request)

    def preempt(self, request: Request) -> None:
        """Take a running request's blocks, to the host or for good; it keeps its place in line."""
        self.num_preemptions += 1
        if prefers_swap(self.config, request) and self.swapper.can_swap_out(request):
            request.num_preemptions += 1
            self.num_swaps += 1
            self.swapper.start_out(request)
            self._move(request, self.running, self.swapped)
            return
        self.swapper.forget(request)
        for item in request.members:
            if not item.finish_reason:
                item.table.free(self.memory.pool)
                item.num_computed = 0
                item.num_preemptions += 1
        request.state = "waiting"
        self._move(request, self.running, self.waiting)

    def left_over(self, order: list[Request]) -> list[Request]:
        """Return the running requests to preempt when the pool is filled in an order.

        Args:
            order: all requests, the first to run first.

        Returns:
            Requests that do not fit beside all that come before them, the last first; none while
            everyone before them runs already.
        """
        room = self.config.num_blocks - self._watermark - self.memory.prefix.num_pinned
        places = self.config.max_num_seqs
        for rank, request in enumerate(order):
            room -= self.memory.footprint(request)
            places -= request.width
            # The first always fits: what it needs alone was checked when it was added.
            if rank and (room < 0 or places < 0):
                break
        else:
            return []
        # Where all that should run do so, those behind them use what is left; to preempt them would
        # only cost their work.
        if all(request.state == "running" for request in order[:rank]):
            return []
        return [request for request in reversed(order[rank:]) if request.state == "running"]

    def land(self, transfer_ids: Iterable[int]) -> None:
        """Let requests whose transfer into the pool is done run from the next step on."""
        for request in self.swapper.land(transfer_ids):
            if request.state == "running":
                self._move(request, self.swapped, self.running)

    def fail(self, transfer_ids: Iterable[int]) -> None:
        """Let requests of which nothing is left wait to be computed again."""
        for request in self.swapper.fail(transfer_ids):
            if request.state == "waiting":
                self._move(request, self.swapped, self.waiting)

    def remove(self, request: Request) -> None:
        """Take a request out that ended; its table keeps its blocks unless the host gets them."""
        queues = {"running": self.running, "waiting": self.waiting}
        queues.get(request.state, self.swapped).remove(request)
        if request.family is None:
            self.swapper.retire(request)

    def _adopt(self, request: Request) -> bool:
        """Let a waiting request use an earlier turn's copy if that holds more than the pool."""
        kept = 0 if request.family else self.swapper.num_kept(request)
        if not kept or kept <= self.memory.num_cached(request):
            return False
        self.swapper.adopt(request)
        self._count_prompt(request)
        return True

    def _count_prompt(self, request: Request) -> None:
        """Count the prompt of a request that was admitted, and what of it was cached."""
        self.num_prompt_tokens += len(request.prompt)
        self.num_cached_tokens += request.num_cached

    def _move(self, request: Request, source: list[Request], target: list[Request]) -> None:
        """Move a request between queues, to its place in the order of arrival."""
        source.remove(request)
        bisect.insort(target, request, key=lambda item: item.order)

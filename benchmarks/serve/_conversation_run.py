"""Conversations on an engine that swaps: token times, transfers, pool use, allocator time."""

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from benchmarks.serve._conversations import Conversation, ConversationLoad

from steelyard.data.tiers.transfers import Transfer
from steelyard.serve.engine import LLM
from steelyard.serve.kv.tiers import TieredKV

__all__ = ["BlockwiseTiers", "GroupTiers", "Run", "run_conversations"]


class GroupTiers(TieredKV):
    """Tiers that remember what they moved."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        """Take what `TieredKV` takes."""
        super().__init__(*args, **settings)
        self.history: list[Transfer] = []

    def submit(self, transfers: Any) -> None:
        """Start transfers."""
        self.history += transfers
        super().submit(transfers)


class BlockwiseTiers(GroupTiers):
    """The baseline: one copy per block, layer, and key or value; the step waits for all of them."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        """Take what `TieredKV` takes."""
        super().__init__(*args, grouped=False, **settings)

    def submit(self, transfers: Any) -> None:
        """Move blocks, and return when they are there."""
        super().submit(transfers)
        self.wait([item.id for item in transfers])


@dataclass(kw_only=True)
class Run:
    """What one engine did with a load.

    Attributes:
        seconds: until the last answer.
        ttft_s: time to the first token of each turn.
        gaps_s: times between successive tokens of a turn, all turns.
        outputs: tokens by turn.
        history: transfers, in order.
        copies: calls and copies they took.
        swaps: preemptions that moved blocks.
        waste: slots held and not filled over slots held, mean over steps.
        allocator_s: time spent in the pool.
        step_s: time spent in steps.
    """

    seconds: float = 0.0
    ttft_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    outputs: dict[str, list[int]] = field(default_factory=dict)
    history: list[Transfer] = field(default_factory=list)
    copies: int = 0
    swaps: int = 0
    waste: list[float] = field(default_factory=list)
    allocator_s: float = 0.0
    step_s: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second of the whole run."""
        return sum(len(item) for item in self.outputs.values()) / self.seconds

    def describe(self) -> str:
        """Say the times in one line."""
        ttft, gaps = np.array(self.ttft_s) * 1e3, np.array(self.gaps_s) * 1e3
        return (
            f"TTFT p50 {np.percentile(ttft, 50):7.0f}  p99 {np.percentile(ttft, 99):7.0f} ms | "
            f"TBT p50 {np.percentile(gaps, 50):5.1f}  p99 {np.percentile(gaps, 99):6.0f}  p99.9 "
            f"{np.percentile(gaps, 99.9):6.0f} ms | "
            f"{self.tokens_per_s:6.0f} tokens/s, {self.seconds:5.1f} s, {self.swaps} swaps"
        )


def run_conversations(llm: LLM, conversations: list[Conversation]) -> Run:
    """Send a load and wait for all answers."""
    load, run, driver = ConversationLoad(conversations), Run(), llm.driver
    last: dict[str, float] = {}
    clock = _TimedPool(llm.scheduler.pool)
    driver.start_s = driver.clock.now_s()
    while not load.is_done:
        now_s = driver.now_s()
        for request in load.due(now_s):
            llm.add(request, now_s)
        if not llm.scheduler.has_work:
            time.sleep(max(load.next_s - driver.now_s(), 0.0))
            continue
        result = llm.step()
        end_s = driver.now_s()
        run.step_s += end_s - now_s
        for name in result.tokens:
            if name in last:
                run.gaps_s.append(end_s - last[name])
            last[name] = end_s
        for request in result.finished:
            load.answered(request, end_s)
            run.ttft_s.append(request.first_token_s - request.arrival_s)
            run.outputs[request.id] = list(request.output)
        if llm.scheduler.pool.num_in_use:
            run.waste.append(1 - llm.scheduler.kv_utilization())
    run.seconds, run.swaps, run.allocator_s = driver.now_s(), llm.scheduler.num_swaps, clock.seconds
    driver.settle()
    assert isinstance(driver.tiers, GroupTiers)
    run.history = driver.tiers.history
    run.copies = sum(driver.tiers.stats(direction).copies for direction in ("out", "in"))
    return run


class _TimedPool:
    """Adds up the time spent in a pool's methods."""

    def __init__(self, pool: Any) -> None:
        """Wrap the methods that tables call."""
        self.seconds = 0.0
        for name in ("take", "release", "retain"):
            setattr(pool, name, self._timed(getattr(pool, name)))

    def _timed(self, method: Any) -> Any:
        """Time a method."""

        def call(*args: Any, **settings: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(*args, **settings)
            finally:
                self.seconds += time.perf_counter() - start

        return call

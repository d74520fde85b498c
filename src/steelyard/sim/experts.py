"""A node that serves a composition of experts, in virtual time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from steelyard.sim.loop import EventLoop

__all__ = ["CompositionRun", "run_composition", "zipf_popularity"]

Array = NDArray[np.float64]


class _Residency(Protocol):
    """Which experts are in memory."""

    def __contains__(self, expert: int) -> bool: ...

    def use(self, expert: int) -> bool: ...


class _Prompt(Protocol):
    """A prompt that was taken."""

    @property
    def index(self) -> int: ...


class _Queue(Protocol):
    """Who runs next."""

    def __len__(self) -> int: ...

    def add(self, prompt: Any) -> None: ...

    def next_expert(self, now_s: float, resident: Any) -> int: ...

    def take(self, expert: int) -> Sequence[_Prompt]: ...


def zipf_popularity(experts: int, exponent: float) -> Array:
    """Return the share of prompts that each expert gets, the most popular first.

    Args:
        experts: number of experts, at least 1.
        exponent: share falls with the rank to this power; 0 for equal shares.

    Returns:
        Shares [experts] that sum to 1.
    """
    weights = np.arange(1, experts + 1, dtype=np.float64) ** -exponent
    return weights / weights.sum()


@dataclass(frozen=True, kw_only=True, slots=True)
class CompositionRun:
    """What R prompts saw.

    Attributes:
        wait_s: [R] seconds from arrival to the start of the prompt's batch, switch left out.
        switch_s: [R] seconds in which its batch waited for the expert.
        run_s: [R] seconds of its batch.
        end_s: time of the last answer.
        switches: experts that were brought to the devices.
        batches: batches that ran.
    """

    wait_s: Array
    switch_s: Array
    run_s: Array
    end_s: float
    switches: int
    batches: int

    @property
    def rate_per_s(self) -> float:
        """Prompts answered per second."""
        return len(self.wait_s) / self.end_s


def run_composition(
    prompts: Sequence[Any],
    queue: _Queue,
    resident: _Residency,
    *,
    run_s: Callable[[int], float],
    switch_s: Callable[[int], float],
    router_s: float = 0.0,
    prefetch: bool = False,
) -> CompositionRun:
    """Serve prompts one batch at a time: route, bring the expert, run.

    Args:
        prompts: rows in the order of arrival, with `index` (the row), `expert` and `arrival_s`.
        queue: policy that chooses the next expert and its prompts.
        resident: policy that says which experts are in memory.
        run_s: seconds of a batch of some prompts.
        switch_s: seconds to bring an expert.
        router_s: seconds of the router per batch.
        prefetch: whether the expert that would run next is brought while a batch runs. It needs
            room for one more expert, which the capacity of `resident` has to leave.

    Returns:
        Times of every prompt.

    Source: Prabhakar et al. 2024 (SN40L, arXiv 2405.07518), sections 2 and 6.
    """
    node = _Node(prompts, queue, resident, run_s, switch_s, router_s, prefetch)
    for prompt in prompts:
        node.loop.at(prompt.arrival_s, lambda prompt=prompt: node.arrive(prompt))
    end_s = node.loop.run()
    return CompositionRun(
        wait_s=node.wait_s,
        switch_s=node.switch,
        run_s=node.run,
        end_s=end_s,
        switches=node.switches,
        batches=node.batches,
    )


class _Node:
    """State of a run."""

    def __init__(
        self,
        prompts: Sequence[Any],
        queue: _Queue,
        resident: _Residency,
        run_s: Callable[[int], float],
        switch_s: Callable[[int], float],
        router_s: float,
        prefetch: bool,
    ) -> None:
        self.loop = EventLoop()
        self.queue, self.resident = queue, resident
        self.run_of, self.switch_of = run_s, switch_s
        self.router_s, self.prefetch = router_s, prefetch
        self.arrival_s = np.array([item.arrival_s for item in prompts])
        self.wait_s, self.switch, self.run = (np.zeros(len(prompts)) for _ in range(3))
        self.switches = self.batches = 0
        self._busy = False
        self._coming, self._comes_s = -1, 0.0

    def arrive(self, prompt: Any) -> None:
        """Let a prompt wait, and start when nothing runs."""
        self.queue.add(prompt)
        if not self._busy:
            # Prompts of one moment are all seen before the first batch is chosen.
            self._busy = True
            self.loop.at(self.loop.now_s, self.begin, priority=1)

    def begin(self) -> None:
        """Start the next batch, or rest."""
        now_s = self.loop.now_s
        expert = self.queue.next_expert(now_s, self.resident)
        self._busy = expert >= 0
        if expert < 0:
            return
        rows = [item.index for item in self.queue.take(expert)]
        switch_s = self._bring(expert)
        run_s = self.router_s + self.run_of(len(rows))
        self.wait_s[rows] = now_s - self.arrival_s[rows]
        self.switch[rows], self.run[rows] = switch_s, run_s
        self.batches += 1
        if self.prefetch:
            self.loop.after(switch_s, self._fetch_next, priority=1)
        self.loop.after(switch_s + run_s, self.begin, priority=2)

    def _bring(self, expert: int) -> float:
        """Return the seconds until an expert is in memory."""
        if expert == self._coming:
            self._coming = -1
            self.resident.use(expert)
            return max(0.0, self._comes_s - self.loop.now_s)
        if self.resident.use(expert):
            return 0.0
        self.switches += 1
        # A copy under way for another expert has the link first.
        rest_s = max(0.0, self._comes_s - self.loop.now_s) if self._coming >= 0 else 0.0
        return rest_s + self.switch_of(expert)

    def _fetch_next(self) -> None:
        """Begin to bring the expert that would run next."""
        expert = self.queue.next_expert(self.loop.now_s, self.resident)
        if expert < 0 or expert in self.resident or expert == self._coming:
            return
        if self._coming >= 0 and self._comes_s > self.loop.now_s:
            return
        self.switches += 1
        self._coming, self._comes_s = expert, self.loop.now_s + self.switch_of(expert)

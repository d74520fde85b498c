"""Which expert of a composition runs next, and which ones stay in memory."""

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Literal

from steelyard.errors import ConfigError

__all__ = ["ExpertOrder", "ExpertQueue", "ExpertResidency", "PendingPrompt"]

ExpertOrder = Literal["fcfs", "grouped", "least-switch"]


@dataclass(frozen=True, slots=True)
class PendingPrompt:
    """A prompt that waits: its number, its expert, and when it came in seconds."""

    index: int
    expert: int
    arrival_s: float


class ExpertQueue:
    """Prompts that wait, and the batch that runs next.

    "fcfs" takes the oldest prompt and those right behind it for the same expert. "grouped" takes
    the oldest one's expert with all its prompts. "least-switch" takes the expert with most prompts
    of those in memory, and of all others only when none there has any, or when the oldest prompt
    has waited too long.
    """

    def __init__(self, order: ExpertOrder, *, max_batch: int, max_wait_s: float = 0.0) -> None:
        """Start empty.

        Args:
            order: how the next batch is chosen.
            max_batch: most prompts of a batch, at least 1.
            max_wait_s: wait of the oldest prompt from which on it goes first, for "least-switch".

        Raises:
            ConfigError: the order is unknown, or a bound is out of range.
        """
        if order not in ("fcfs", "grouped", "least-switch"):
            raise ConfigError(f"order {order!r} is not one of fcfs, grouped, least-switch")
        if max_batch < 1 or (order == "least-switch" and not max_wait_s > 0):
            raise ConfigError(
                f"max_batch {max_batch} and max_wait_s {max_wait_s:g}: least-switch needs at least "
                f"1 and a bound above 0, or prompts of rare experts never run"
            )
        self.order = order
        self.max_batch = max_batch
        self.max_wait_s = max_wait_s
        self._waiting: OrderedDict[int, PendingPrompt] = OrderedDict()
        self._by_expert: dict[int, deque[PendingPrompt]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, prompt: PendingPrompt) -> None:
        """Let a prompt wait; prompts are added by arrival."""
        self._waiting[prompt.index] = prompt
        self._by_expert.setdefault(prompt.expert, deque()).append(prompt)

    def next_expert(self, now_s: float, resident: "ExpertResidency") -> int:
        """Return the expert that runs next; -1 when nothing waits."""
        if not self._waiting:
            return -1
        oldest = next(iter(self._waiting.values()))
        overdue = now_s - oldest.arrival_s >= self.max_wait_s
        if self.order != "least-switch" or overdue:
            return oldest.expert
        here = [item for item in self._by_expert if item in resident]
        return max(
            here or self._by_expert,
            key=lambda item: (len(self._by_expert[item]), -self._by_expert[item][0].index),
        )

    def take(self, expert: int) -> list[PendingPrompt]:
        """Remove and return the prompts of a batch for an expert, oldest first."""
        if self.order == "fcfs":
            chosen: list[PendingPrompt] = []
            for prompt in self._waiting.values():
                if prompt.expert != expert or len(chosen) == self.max_batch:
                    break
                chosen.append(prompt)
        else:
            own = self._by_expert[expert]
            chosen = [own[place] for place in range(min(len(own), self.max_batch))]
        for prompt in chosen:
            del self._waiting[prompt.index]
            self._by_expert[expert].remove(prompt)
        if not self._by_expert[expert]:
            del self._by_expert[expert]
        return chosen


class ExpertResidency:
    """Which experts lie in the devices' memory; the least recently used one leaves."""

    def __init__(self, capacity: int) -> None:
        """Start empty.

        Args:
            capacity: experts that fit, at least 1.
        """
        if capacity < 1:
            raise ConfigError(f"the devices hold {capacity} experts, but at least 1 is needed")
        self.capacity = capacity
        self._held: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, expert: int) -> bool:
        return expert in self._held

    def use(self, expert: int) -> bool:
        """Mark an expert as used now, and make room for it.

        Args:
            expert: the one that runs next.

        Returns:
            Whether it was there.
        """
        was_there = expert in self._held
        self._held[expert] = None
        self._held.move_to_end(expert)
        if len(self._held) > self.capacity:
            self._held.popitem(last=False)
        return was_there

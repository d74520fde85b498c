"""Failure detection: who misses a ping is asked by others, suspected, and only then dead."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np

from steelyard.data.shardstore.swim import suspicion_timeout_s

__all__ = ["Detector", "NodeState"]

NodeState = Literal["up", "suspect", "dead"]
_HELPERS = 3
_REACHED_BY_OTHERS = 3.0
"""A suspect that others reach gets so many times as long: its link to us is bad, not the node."""


@dataclass(slots=True)
class _Watched:
    state: NodeState
    boot: int
    since_s: float
    is_reached: bool = False


class Detector:
    """States of nodes as the controller acts on them; pure, told the time.

    It hears of a node from its own pings, which carry the leases, and from what nodes have found
    among themselves by gossip. A missed ping starts probes through other nodes and makes the node a
    suspect. It is up again as soon as it is heard. A suspect is dead after `suspicion` x ping x
    log10(n + 1) s; later when others reach it, since a slow node that is taken for dead would
    double the load of the rest; and at once when gossip has it dead in most nodes' eyes.

    Source: Das, Gupta and Motivala 2002 (SWIM), sections 3.1, 3.2 and 4.2. Nodes run the whole of
        it (`data.shardstore.swim`); here the number that a process draws when it starts takes the
        place of incarnations.
    """

    def __init__(self, *, ping_s: float, suspicion: float, generator: np.random.Generator) -> None:
        """Watch nobody yet.

        Args:
            ping_s: seconds between pings.
            suspicion: factor of the time-out.
            generator: draws helpers.
        """
        self._ping_s, self._suspicion, self._generator = ping_s, suspicion, generator
        self._watched: dict[str, _Watched] = {}
        self._dead_to: dict[str, Collection[str]] = {}

    def state(self, name: str) -> NodeState:
        """Return the state of a node; "dead" for one that was never heard."""
        found = self._watched.get(name)
        return found.state if found else "dead"

    def heard(self, name: str, boot: int, now_s: float) -> NodeState:
        """Take an answer of a node, and return the state that it was in before."""
        before = self.state(name)
        self._watched[name] = _Watched("up", boot, now_s)
        return before

    def missed(self, name: str, now_s: float) -> list[str]:
        """Take a ping that was not answered.

        Args:
            name: the node.
            now_s: the time.

        Returns:
            Nodes that should probe it; none when it is known to be dead.
        """
        found = self._watched.get(name)
        if found is None or found.state == "dead":
            return []
        # Further misses do not begin its time anew: it would never be over.
        if found.state == "up":
            found.state, found.since_s = "suspect", now_s
        others = sorted(
            other for other, item in self._watched.items() if item.state == "up" and other != name
        )
        count = min(_HELPERS, len(others))
        return [others[i] for i in self._generator.choice(len(others), count, replace=False)]

    def probed(self, name: str, *, is_reached: bool) -> None:
        """Take what another node found of a suspect."""
        found = self._watched.get(name)
        if found is not None:
            found.is_reached |= is_reached

    def told(self, observer: str, dead: Collection[str]) -> None:
        """Take which nodes another one holds for dead, by gossip."""
        self._dead_to[observer] = dead

    def _is_dead_to_most(self, name: str) -> bool:
        """Whether more than half of the other nodes that are up hold a node for dead."""
        others = [
            other for other, item in self._watched.items() if item.state == "up" and other != name
        ]
        return 2 * sum(name in self._dead_to.get(other, ()) for other in others) > len(others)

    def timeout_s(self, *, is_reached: bool = False) -> float:
        """Return how long a node stays a suspect, seconds."""
        count = sum(item.state != "dead" for item in self._watched.values())
        longest_s = suspicion_timeout_s(self._ping_s, self._suspicion, count)
        return longest_s * (_REACHED_BY_OTHERS if is_reached else 1.0)

    def expired(self, now_s: float) -> list[str]:
        """Return suspects whose time is over, in the order of their names."""
        return sorted(
            name
            for name, item in self._watched.items()
            if item.state == "suspect"
            and (
                now_s - item.since_s > self.timeout_s(is_reached=item.is_reached)
                or self._is_dead_to_most(name)
            )
        )

    def bury(self, name: str) -> None:
        """Take a node for dead."""
        if name in self._watched:
            self._watched[name].state = "dead"

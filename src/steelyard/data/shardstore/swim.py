"""Membership by gossip: who is alive, suspected or dead, as one node knows; pure, told the time."""

import math
from collections.abc import Iterable
from typing import Literal

import msgspec
import numpy as np

__all__ = ["NodeRumor", "SwimMembership", "SwimState", "suspicion_timeout_s"]

SwimState = Literal["alive", "suspect", "dead"]
_STATES: tuple[SwimState, ...] = ("alive", "suspect", "dead")
_HELPERS = 3
_SPREAD = 3.0
"""A rumor goes out so many times the logarithm of the number of nodes."""
_MOST_RUMORS = 8
"""Rumors that one message carries at most."""


class NodeRumor(msgspec.Struct, frozen=True, array_like=True):
    """What is said of a node.

    Attributes:
        name: the node.
        incarnation: raised by the node itself, and by nobody else, to refute a suspicion.
        state: "alive", "suspect" or "dead".
    """

    name: str
    incarnation: int
    state: SwimState

    @property
    def rank(self) -> tuple[int, int]:
        """Order by which one rumor of a node overrides another."""
        return self.incarnation, _STATES.index(self.state)


def suspicion_timeout_s(period_s: float, factor: float, nodes: int) -> float:
    """Return how long a node of a group stays a suspect.

    Args:
        period_s: seconds between pings.
        factor: factor of the time-out.
        nodes: nodes that are not dead.

    Returns:
        Seconds.

    Source: Das, Gupta and Motivala 2002 (SWIM), section 4.2: in proportion to log(nodes).
    """
    return factor * period_s * max(1.0, math.log10(nodes + 1))


class SwimMembership:
    """States of all nodes in the eyes of one of them.

    Whoever drives it pings `target()` once a period, has `helpers` probe where no answer comes, and
    tells `missed` where nobody got one. Every message between nodes carries `rumors`, and what a
    message carries goes to `hear`. So news reach all nodes in a time that grows with the logarithm
    of their number, and nobody sends more than a few messages a period.

    Of two rumors of a node the later incarnation counts, and within one the worse state. Views are
    merged by this order alone: whatever is lost, doubled or late on the way, nodes that have heard
    the same rumors agree. A node that hears it is suspected, or dead, says that it is alive in a
    later incarnation, which only itself can do.

    Attributes:
        incarnation: this node's own.

    Source: Das, Gupta and Motivala 2002 (SWIM), section 3.1 (indirect probes), 4.1 (news on pings),
        4.2 (suspicion), 4.3 (round robin). There the dead stay dead; here a later incarnation
        overrides them too, and they are pinged in their turn, as nodes of a store come back.
    """

    def __init__(
        self, name: str, *, period_s: float, suspicion: float, generator: np.random.Generator
    ) -> None:
        """Begin alone.

        Args:
            name: this node.
            period_s: seconds between pings.
            suspicion: factor of the time-out of a suspect.
            generator: draws the order of pings, and helpers.
        """
        self._name, self._period_s, self._suspicion = name, period_s, suspicion
        self._generator = generator
        self.incarnation = 0
        self._known: dict[str, NodeRumor] = {}
        self._suspected_s: dict[str, float] = {}
        self._turns: list[str] = []
        self._sent: dict[str, int] = {}

    def follow(self, names: Iterable[str]) -> None:
        """Take the names of all nodes, as a map has them; those not known yet count as alive."""
        others = set(names) - {self._name}
        for gone in set(self._known) - others:
            for table in (self._known, self._suspected_s, self._sent):
                table.pop(gone, None)
        for name in sorted(others - set(self._known)):
            self._known[name] = NodeRumor(name, 0, "alive")

    def state(self, name: str) -> SwimState:
        """Return a node's state; "alive" for this one and for strangers."""
        found = self._known.get(name)
        return found.state if found else "alive"

    def not_alive(self) -> tuple[NodeRumor, ...]:
        """Return what is known of nodes that are suspected or dead, in the order of names."""
        return tuple(item for _, item in sorted(self._known.items()) if item.state != "alive")

    # -- pings --------------------------------------------------------------------------------

    def target(self) -> str:
        """Return whom to ping next, or an empty string where there is nobody.

        Every node has its turn once in as many periods as there are nodes, in an order that is
        drawn anew each time: who dies is pinged by this node within twice that, for certain.
        """
        self._turns = [name for name in self._turns if name in self._known]
        if not self._turns:
            names = sorted(self._known)
            self._turns = [names[place] for place in self._generator.permutation(len(names))]
        return self._turns.pop() if self._turns else ""

    def helpers(self, name: str) -> list[str]:
        """Return nodes that should probe one that did not answer; none for one known as dead."""
        if self.state(name) == "dead":
            return []
        able = sorted(n for n, item in self._known.items() if item.state == "alive" and n != name)
        count = min(_HELPERS, len(able))
        return [able[place] for place in self._generator.choice(len(able), count, replace=False)]

    def missed(self, name: str, now_s: float) -> None:
        """Take that neither this node nor any helper was answered by another: it is suspected."""
        found = self._known.get(name)
        if found is not None and found.state == "alive":
            self._take(NodeRumor(name, found.incarnation, "suspect"), now_s)

    def expire(self, now_s: float) -> list[str]:
        """Declare suspects dead whose time is over, and return them in the order of names."""
        count = 1 + sum(item.state != "dead" for item in self._known.values())
        longest_s = suspicion_timeout_s(self._period_s, self._suspicion, count)
        found = sorted(n for n, at_s in self._suspected_s.items() if now_s - at_s > longest_s)
        for name in found:
            self._take(NodeRumor(name, self._known[name].incarnation, "dead"), now_s)
        return found

    # -- news ---------------------------------------------------------------------------------

    def rumors(self, to: str) -> tuple[NodeRumor, ...]:
        """Return what the next message to a node carries: the news that were told least often.

        What is known of the receiver itself is always there unless it is alive: only so can it
        refute it, be the rumor as old as it may.
        """
        known = self._known.get(to)
        about = (known,) if known is not None and known.state != "alive" else ()
        fresh = sorted(self._sent, key=lambda name: (self._sent[name], name))[:_MOST_RUMORS]
        most = math.ceil(_SPREAD * math.log2(len(self._known) + 2))
        for name in fresh:
            self._sent[name] += 1
            if self._sent[name] >= most:
                del self._sent[name]
        own = NodeRumor(self._name, self.incarnation, "alive")
        told = [own if name == self._name else self._known[name] for name in fresh]
        return (*about, *(item for item in told if item not in about))

    def hear(self, rumors: Iterable[NodeRumor], now_s: float) -> None:
        """Take what a message carried.

        Args:
            rumors: news; those of strangers are left.
            now_s: the time.
        """
        for item in rumors:
            if item.name == self._name:
                self._refute(item)
            elif item.name in self._known and item.rank > self._known[item.name].rank:
                self._take(item, now_s)

    def _refute(self, said: NodeRumor) -> None:
        """Say that this node is alive where others say otherwise, or know a later incarnation."""
        is_wrong = said.state != "alive" and said.incarnation >= self.incarnation
        if is_wrong or said.incarnation > self.incarnation:
            # A restarted process begins at 0 while others may know a later one of its name.
            self.incarnation = said.incarnation + is_wrong
            self._sent[self._name] = 0

    def _take(self, item: NodeRumor, now_s: float) -> None:
        """Believe a rumor, and pass it on."""
        self._known[item.name] = item
        self._sent[item.name] = 0
        if item.state == "suspect":
            self._suspected_s[item.name] = now_s
        else:
            self._suspected_s.pop(item.name, None)

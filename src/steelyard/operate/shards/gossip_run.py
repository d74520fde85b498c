"""Gossip of many nodes in virtual time: how soon all know of a death, and who is wronged."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from steelyard.data.shardstore.swim import NodeRumor, SwimMembership, SwimState
from steelyard.errors import ConfigError
from steelyard.sim.loop import EventLoop

__all__ = ["GossipNetwork", "GossipRun", "simulate_gossip"]

_DIRECT = 0.4
_DELAY_S = 0.002
"""Mean seconds that a message is on its way."""


@dataclass(frozen=True, slots=True)
class GossipRun:
    """What gossip found out; all of it is simulated.

    Attributes:
        nodes: nodes.
        first_suspected_s: seconds from the death until some node suspects the dead one.
        first_dead_s: until some node holds it for dead.
        all_dead_s: until all others do; NaN where some never did.
        messages_per_node_s: messages that a node sends in a second.
        wronged: nodes that live and were held for dead by somebody at some time.
        refuted: suspicions that nodes refuted.
    """

    nodes: int
    first_suspected_s: float
    first_dead_s: float
    all_dead_s: float
    messages_per_node_s: float
    wronged: int
    refuted: int


class GossipNetwork:
    """Nodes that gossip over links that delay and lose messages.

    Attributes:
        loop: the virtual clock.
        members: what each node knows.
        stopped: nodes that do nothing and answer nothing.
        sides: side of a cut that each node is on; nothing passes between two sides.
        messages: sent so far.
        first_s: seconds at which anybody first held (node, state).
        last_s: the same, when the last one began to.
    """

    def __init__(
        self,
        nodes: int,
        *,
        seed: int = 0,
        period_s: float = 0.5,
        suspicion: float = 4.0,
        lost: float = 0.0,
    ) -> None:
        """Start nodes, all of which know of each other.

        Args:
            nodes: nodes, at least 2.
            seed: seed of all draws.
            period_s: seconds between pings of a node.
            suspicion: factor of the time-out of a suspect.
            lost: share of the messages that are lost, in [0, 1).

        Raises:
            ConfigError: a number is out of range.
        """
        if nodes < 2 or not 0 <= lost < 1 or period_s <= 0:
            raise ConfigError(
                f"{nodes} nodes, {lost} of the messages lost, a ping each {period_s} s",
                hint="give at least 2 nodes, a share in [0, 1) and a time above 0",
            )
        self.loop = EventLoop()
        self._random, self._lost, self._period_s = np.random.default_rng(seed), lost, period_s
        names = [f"n{number}" for number in range(nodes)]
        given = {"period_s": period_s, "suspicion": suspicion}
        self.members = {
            name: SwimMembership(name, generator=np.random.default_rng((seed, number)), **given)
            for number, name in enumerate(names)
        }
        self.stopped: set[str] = set()
        self.sides: dict[str, int] = {}
        self.messages = 0
        self.first_s: dict[tuple[str, SwimState], float] = {}
        self.last_s: dict[tuple[str, SwimState], float] = {}
        for name in names:
            self.members[name].follow(names)
            start_s = float(self._random.uniform(0, period_s))
            self.loop.at(start_s, lambda name=name: self._period(name))

    def _period(self, name: str) -> None:
        """Ping one node, now and once a period."""
        self.loop.after(self._period_s, lambda: self._period(name))
        if name in self.stopped:
            return
        member, now_s = self.members[name], self.loop.now_s
        self._note(name, member.expire(now_s), "dead")
        other = member.target()
        answered: set[str] = set()
        self._ping(name, other, lambda: answered.add(other))

        def ask_helpers() -> None:
            if other in answered or name in self.stopped:
                return
            for helper in member.helpers(other):
                self._probe(name, helper, other, answered)

        def give_up() -> None:
            if other not in answered and name not in self.stopped:
                before = member.state(other)
                member.missed(other, self.loop.now_s)
                if member.state(other) != before:
                    self._note(name, [other], "suspect")

        self.loop.after(_DIRECT * self._period_s, ask_helpers)
        self.loop.after(self._period_s, give_up, priority=-1)

    def _ping(self, sender: str, other: str, done: Callable[[], object]) -> None:
        """Have one node ping another; `done` is called when the answer has come."""

        def answer() -> None:
            self._send(other, sender, done)

        self._send(sender, other, answer)

    def _probe(self, sender: str, helper: str, other: str, answered: set[str]) -> None:
        """Have a helper ping a node and tell that it answers."""

        def tell() -> None:
            self._send(helper, sender, lambda: answered.add(other))

        self._send(sender, helper, lambda: self._ping(helper, other, tell))

    def _send(self, sender: str, to: str, then: Callable[[], object]) -> None:
        """Send a message with news; `then` is called where it arrives."""
        if sender in self.stopped:
            return
        rumors = self.members[sender].rumors(to)
        self.messages += 1
        is_cut = self.sides.get(sender, 0) != self.sides.get(to, 0)
        if is_cut or self._random.uniform() < self._lost:
            return
        delay_s = float(self._random.exponential(_DELAY_S))
        self.loop.after(delay_s, lambda: self._arrive(to, rumors, then))

    def _arrive(self, to: str, rumors: tuple[NodeRumor, ...], then: Callable[[], object]) -> None:
        """Let a message arrive; one to a stopped node is never read."""
        if to in self.stopped:
            return
        member = self.members[to]
        before = {item.name: member.state(item.name) for item in rumors}
        member.hear(rumors, self.loop.now_s)
        for name, state in before.items():
            if member.state(name) != state:
                self._note(to, [name], member.state(name))
        then()

    def _note(self, observer: str, names: list[str], state: SwimState) -> None:
        """Note when a node came to hold others for something."""
        for name in names:
            self.first_s.setdefault((name, state), self.loop.now_s)
            self.last_s[name, state] = self.loop.now_s

    def views(self, name: str) -> set[SwimState]:
        """Return in what states those that run hold a node."""
        others = (other for other in self.members if other != name and other not in self.stopped)
        return {self.members[other].state(name) for other in others}


def simulate_gossip(
    nodes: int, *, seed: int = 0, lost: float = 0.0, period_s: float = 0.5, after_s: float = 0.0
) -> GossipRun:
    """Stop one node of many and see how soon the others know.

    Args:
        nodes: nodes, at least 2.
        seed: seed of all draws.
        lost: share of the messages that are lost.
        period_s: seconds between pings of a node.
        after_s: seconds to go on after the death; 0 for as long as the news should take.

    Returns:
        Times, messages, and who was wronged.

    Raises:
        ConfigError: a number is out of range.
    """
    network = GossipNetwork(nodes, seed=seed, lost=lost, period_s=period_s)
    died_s = 4 * period_s
    network.loop.run(until_s=died_s)
    network.stopped.add("n0")
    # Pinged by somebody within a few periods, a suspect for 4 log n, then news of some log n more.
    until_s = died_s + (after_s or (12 + 8 * np.log2(nodes)) * period_s)
    network.loop.run(until_s=until_s)
    dead = {name for name, state in network.first_s if state == "dead"}
    is_known = network.views("n0") == {"dead"}
    never = float("nan")
    suspected_s = network.first_s.get(("n0", "suspect"), never) - died_s
    first_s, last_s = (
        table.get(("n0", "dead"), never) - died_s for table in (network.first_s, network.last_s)
    )
    return GossipRun(
        nodes=nodes,
        first_suspected_s=suspected_s,
        first_dead_s=first_s,
        all_dead_s=last_s if is_known else never,
        messages_per_node_s=float(network.messages / nodes / until_s),
        wronged=len(dead - {"n0"}),
        refuted=sum(member.incarnation for member in network.members.values()),
    )

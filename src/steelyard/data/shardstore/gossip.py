"""Gossip of a node on the real clock: it pings others, has them probed, and passes news on."""

import asyncio
from collections.abc import Callable, Mapping

from steelyard.data.shardstore import messages
from steelyard.data.shardstore.swim import NodeRumor, SwimMembership
from steelyard.data.shardstore.wire import Peer, RefusedError

__all__ = ["NodeGossip"]

_DIRECT = 0.4
"""Share of a period that a ping has; a probe by others has the rest."""


class NodeGossip:
    """Drives a node's membership: one ping a period, over connections of its own.

    Data and gossip do not share connections: an answer behind megabytes of rows would be late.
    """

    def __init__(
        self,
        membership: SwimMembership,
        name: str,
        key: bytes,
        *,
        period_s: float,
        clock: Callable[[], float],
    ) -> None:
        """Take a membership.

        Args:
            membership: what this node knows of others.
            name: this node.
            key: secret of the store.
            period_s: seconds between pings.
            clock: seconds.
        """
        self.membership = membership
        self._name, self._key, self._period_s, self._clock = name, key, period_s, clock
        self._peers: dict[str, Peer] = {}
        self._addresses: Mapping[str, str] = {}

    def follow(self, addresses: Mapping[str, str]) -> None:
        """Take the addresses of all nodes; one that has moved is asked where it is now."""
        for name in list(self._peers):
            if addresses.get(name) != self._addresses.get(name):
                self._drop(name)
        self._addresses = addresses
        self.membership.follow(addresses)

    async def run(self) -> None:
        """Ping until cancelled."""
        while True:
            begin_s = self._clock()
            name = self.membership.target()
            if name and not await self._is_there(name) and not self._was_stopped(begin_s):
                self.membership.missed(name, self._clock())
            self.membership.expire(self._clock())
            await asyncio.sleep(max(0.01, self._period_s - (self._clock() - begin_s)))

    def _was_stopped(self, begin_s: float) -> bool:
        """Whether this process itself did not run for a while.

        One that was stopped finds all its time-outs over when it goes on, though nobody was late.
        """
        return self._clock() - begin_s > 2 * self._period_s

    async def _is_there(self, name: str) -> bool:
        """Whether a node answers, or answers one of the helpers."""
        if await self._ask(name, _DIRECT * self._period_s, probe=""):
            return True
        wait_s = (1 - _DIRECT) * self._period_s
        helpers = self.membership.helpers(name)
        asked = [self._ask(helper, wait_s, probe=name) for helper in helpers]
        return any(await asyncio.gather(*asked))

    async def _ask(self, name: str, timeout_s: float, *, probe: str) -> bool:
        """Ping a node, or have it probe another; whether the answer came."""
        address = self._addresses.get(name)
        if address is None:
            return False  # a map that came meanwhile does not name it
        peer = self._peers.setdefault(name, Peer(address, key=self._key))
        ask = messages.Gossip(
            sender=self._name,
            rumors=self.membership.rumors(name),
            probe=self._addresses.get(probe, ""),
        )
        try:
            answer = await peer.ask(ask, timeout_s)
        except RefusedError as error:
            # A helper that refuses is there itself, but did not reach the other one.
            return not probe and error.reason != "peer"
        except OSError:
            self._drop(name)  # a connection may hang where a new one would not
            return False
        self.membership.hear(answer.rumors, self._clock())
        return True

    def take(self, sender: str, rumors: tuple[NodeRumor, ...]) -> messages.Gossiped:
        """Return the answer to a ping, with news in return for those that it carried."""
        self.membership.hear(rumors, self._clock())
        return messages.Gossiped(rumors=self.membership.rumors(sender))

    def _drop(self, name: str) -> None:
        """Close the connection to a node."""
        peer = self._peers.pop(name, None)
        if peer is not None:
            peer.close()

    def close(self) -> None:
        """Close all connections."""
        for name in list(self._peers):
            self._drop(name)

"""A node on its socket: connections, and the answer to each request."""

import asyncio
import contextlib
import inspect
import socket
from typing import Any

import msgspec

from steelyard.data.shardstore import cold, messages
from steelyard.data.shardstore.messages import Done, NodeRefusal, Request
from steelyard.data.shardstore.node import ShardNode
from steelyard.data.shardstore.wire import Peer, Wire, listening_socket
from steelyard.errors import SteelyardError
from steelyard.frames import MessageCodec, session_keys

__all__ = ["NodeServer"]

_AGREE_S = 2.0


class NodeServer:
    """Answers what comes for one node.

    Attributes:
        address: where it listens, with the port that was taken.
    """

    def __init__(self, node: ShardNode) -> None:
        """Listen at the node's address."""
        self.node = node
        self._socket = listening_socket(node.config.address)
        self._key = bytes.fromhex(node.config.key)
        self.address = node.config.address
        if self.address.startswith("tcp:"):
            host, port = self._socket.getsockname()[:2]
            self.address = f"tcp:{host}:{port}"

    async def run(self) -> None:
        """Serve until cancelled."""
        loop = asyncio.get_running_loop()
        tasks: set[asyncio.Task[None]] = {loop.create_task(self.node.gossip.run())}
        try:
            while True:
                connection, _ = await loop.sock_accept(self._socket)
                task = loop.create_task(self._welcome(connection))
                tasks.add(task)
                task.add_done_callback(lambda done, end=connection: _forget(tasks, done, end))
        finally:
            for task in tasks:
                task.cancel()
            self._socket.close()
            self.node.close()

    async def _welcome(self, connection: socket.socket) -> None:
        """Agree on keys where that is needed, then answer until the other end closes."""
        keys = (b"", b"")
        loop = asyncio.get_running_loop()
        try:
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.settimeout(_AGREE_S)
                # Blocking reads: in the loop, a stranger that says nothing would stop the node.
                keys = await loop.run_in_executor(None, session_keys, connection, self._key)
            # A socket with a time-out is a blocking one to the loop.
            connection.setblocking(False)
            reader, writer = await asyncio.open_connection(sock=connection)
        except (OSError, SteelyardError):
            connection.close()
            return
        wire = Wire(reader, writer, MessageCodec(Request, keys=keys), self.node.link)
        try:
            await self._converse(wire)
        except (OSError, SteelyardError):
            pass  # the other end is gone, or sends no frames: its connection ends, nothing else
        finally:
            wire.close()

    async def _converse(self, wire: Wire) -> None:
        """Answer requests; those that wait for others do not hold up the next ones."""
        tasks: set[asyncio.Task[None]] = set()
        while asks := await wire.receive():
            for ask in asks:
                found = self.answer(ask)
                if inspect.isawaitable(found):
                    task = asyncio.ensure_future(self._later(wire, ask.id, found))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                else:
                    await wire.send(msgspec.structs.replace(found, id=ask.id))

    async def _later(self, wire: Wire, number: int, found: Any) -> None:
        """Send an answer that takes its time."""
        try:
            answer = await found
        except (SteelyardError, OSError) as error:
            answer = NodeRefusal(reason="input", text=str(error))
        with contextlib.suppress(OSError, RuntimeError):
            await wire.send(msgspec.structs.replace(answer, id=number))

    def answer(self, ask: Any) -> Any:
        """Return the answer to a request, or what will give it.

        Args:
            ask: one of the messages.

        Returns:
            An answer, or a coroutine.
        """
        node = self.node
        try:
            if isinstance(ask, messages.Get):
                return node.get(ask)
            if isinstance(ask, messages.Ping):
                return node.ping(ask)
            if isinstance(ask, messages.Scan):
                return node.scan(ask)
            if isinstance(ask, messages.TreeLevel):
                return node.hashes(ask)
        except SteelyardError as error:
            # One bad request ends neither its connection nor the node.
            return NodeRefusal(reason="input", text=str(error))
        slow = {
            messages.Put: node.put,
            messages.Apply: node.apply,
            messages.Sync: node.sync,
            messages.Pull: node.pull,
            messages.ProbeNode: self._probe,
            messages.Gossip: self._gossip,
        }
        work = slow.get(type(ask))
        return work(ask) if work else cold.answer_cold(node, ask)

    async def _probe(self, ask: messages.ProbeNode) -> Done | NodeRefusal:
        """Say whether another node answers."""
        # A connection of its own: one that is open already may hang in a peer that is stopped.
        other = Peer(ask.address, key=self._key)
        try:
            empty = messages.Get(keys=b"")
            await other.ask(empty, 0.5)
        except SteelyardError:
            pass  # it refuses, and so it is there
        except OSError as error:
            return NodeRefusal(reason="peer", text=str(error))
        finally:
            other.close()
        return Done()

    async def _gossip(self, ask: messages.Gossip) -> messages.Gossiped | NodeRefusal:
        """Answer a ping, or say whether another node answers; either way with news."""
        answer = self.node.gossip.take(ask.sender, ask.rumors)
        if not ask.probe:
            return answer
        found = await self._probe(messages.ProbeNode(address=ask.probe))
        return found if isinstance(found, NodeRefusal) else answer


def _forget(
    tasks: set[asyncio.Task[None]], task: asyncio.Task[None], connection: socket.socket
) -> None:
    """Drop a conversation that has ended."""
    tasks.discard(task)
    if task.cancelled():
        connection.close()  # cancelled before its first step, it has closed nothing itself

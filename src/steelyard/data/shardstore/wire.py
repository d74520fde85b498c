"""Connections of nodes: requests and answers as frames, many at once, at a limited speed."""

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from steelyard.data.shardstore.messages import Answer, NodeRefusal
from steelyard.errors import ConfigError, DataError, StoreError
from steelyard.frames import MessageCodec, session_keys

__all__ = [
    "ByteBucket",
    "Peer",
    "RefusedError",
    "Wire",
    "connect",
    "listening_socket",
    "open_address",
]

_READ_BYTES = 256 * 1024


class RefusedError(StoreError):
    """A node has refused what it was asked; `reason` is that of its `NodeRefusal`."""

    def __init__(self, refusal: NodeRefusal) -> None:
        """Keep the reason."""
        super().__init__(f"refused: {refusal.reason} {refusal.text}".strip())
        self.reason = refusal.reason


class ByteBucket:
    """A token bucket of bytes: what passes at a rate, a tenth of a second of it at once.

    Who takes more than there is goes into debt and waits until it is paid, so that takers pass in
    their order and the rate holds whatever their sizes.
    """

    def __init__(self, bytes_per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Start full.

        Args:
            bytes_per_s: above 0.
            clock: seconds.

        Raises:
            ConfigError: the rate is not above 0.
        """
        if not bytes_per_s > 0:
            raise ConfigError(f"bytes_per_s is {bytes_per_s}, but must be above 0", hint="raise it")
        self._rate, self._clock = bytes_per_s, clock
        self._free_from_s = clock() - 0.1

    def wait_s(self, num_bytes: int) -> float:
        """Take bytes, and return how long to wait before using them, seconds."""
        now_s = self._clock()
        self._free_from_s = max(self._free_from_s, now_s - 0.1) + num_bytes / self._rate
        return max(0.0, self._free_from_s - now_s)

    async def take(self, num_bytes: int) -> None:
        """Take bytes and wait as long as that asks."""
        wait_s = self.wait_s(num_bytes)
        if wait_s:
            await asyncio.sleep(wait_s)


def open_address(address: str, timeout_s: float, key: bytes = b"") -> tuple[socket.socket, Any]:
    """Connect to a node, and agree on keys where it is reached over TCP.

    Args:
        address: "unix:PATH" or "tcp:HOST:PORT".
        timeout_s: longest wait for the connection.
        key: secret of the store, for TCP.

    Returns:
        The socket, with that timeout, and the keys of a codec.

    Raises:
        ConfigError: the address has another form, or TCP has no key.
        OSError: nobody answers there.
    """
    kind, _, rest = address.partition(":")
    if kind == "unix":
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.settimeout(timeout_s)
        try:
            made.connect(rest)
        except OSError:
            made.close()
            raise
        return made, (b"", b"")
    host, _, port = rest.rpartition(":")
    if kind != "tcp" or not host or not port.isdecimal():
        raise ConfigError(f"address {address!r}", hint="use unix:PATH or tcp:HOST:PORT")
    made = socket.create_connection((host, int(port)), timeout_s)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made, session_keys(made, key)


class Wire:
    """One connection: whole messages in and out of it."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        codec: MessageCodec,
        buckets: tuple[ByteBucket, ByteBucket] | None = None,
    ) -> None:
        """Take an open connection.

        Args:
            reader: bytes that come.
            writer: bytes that go.
            codec: codec of the messages that come.
            buckets: speed of what comes and of what goes.
        """
        self._reader, self._writer, self._codec, self._buckets = reader, writer, codec, buckets

    async def receive(self) -> list[Any]:
        """Wait for messages; none when the other end has closed."""
        while True:
            data = await self._reader.read(_READ_BYTES)
            if not data:
                return []
            if self._buckets:
                await self._buckets[0].take(len(data))
            found = self._codec.feed(data)
            if found:
                return found

    async def send(self, message: Any) -> None:
        """Send a message; waits while the other end does not read."""
        frame = self._codec.encode(message)
        if self._buckets:
            await self._buckets[1].take(len(frame))
        self._writer.write(frame)
        await self._writer.drain()

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


async def connect(
    address: str, kind: Any, *, key: bytes = b"", timeout_s: float = 2.0, buckets: Any = None
) -> Wire:
    """Open a connection whose incoming messages are of a kind; errors as of `open_address`."""
    loop = asyncio.get_running_loop()
    # Agreeing on keys takes two blocking reads; a stopped node would hold up the loop.
    made, keys = await loop.run_in_executor(None, open_address, address, timeout_s, key)
    made.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=made, limit=4 * _READ_BYTES)
    return Wire(reader, writer, MessageCodec(kind, keys=keys), buckets)


class Peer:
    """Another node, asked over one connection that is opened when it is needed."""

    def __init__(self, address: str, *, key: bytes = b"", buckets: Any = None) -> None:
        """Name the node.

        Args:
            address: where it listens.
            key: secret of the store.
            buckets: speed of what comes and of what goes.
        """
        self.address, self._key, self._buckets = address, key, buckets
        self._wire: Wire | None = None
        self._opening = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._next = 0
        self._reading: asyncio.Task[None] | None = None

    async def ask(self, message: Any, timeout_s: float = 5.0) -> Any:
        """Send a request and wait for its answer.

        Args:
            message: the request; its number is set here.
            timeout_s: longest wait.

        Returns:
            The answer.

        Raises:
            OSError: the node cannot be reached, has closed, or is late.
            RefusedError: it answers that it will not.
        """
        self._next += 1
        number = self._next
        future = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            async with asyncio.timeout(timeout_s):
                wire = await self._open()
                await wire.send(msgspec.structs.replace(message, id=number))
                answer = await future
        except TimeoutError as error:
            raise OSError(f"{self.address} has not answered within {timeout_s} s") from error
        finally:
            self._waiting.pop(number, None)
        if isinstance(answer, NodeRefusal):
            raise RefusedError(answer)
        return answer

    async def _open(self) -> Wire:
        async with self._opening:
            if self._wire is None:
                self._wire = await connect(
                    self.address, Answer, key=self._key, buckets=self._buckets
                )
                self._reading = asyncio.create_task(self._read(self._wire))
            return self._wire

    async def _read(self, wire: Wire) -> None:
        """Hand answers to those who wait; when the connection ends, all of them are told."""
        reason: Exception = OSError(f"{self.address} has closed the connection")
        try:
            while answers := await wire.receive():
                for answer in answers:
                    future = self._waiting.get(answer.id)
                    if future is not None and not future.done():
                        future.set_result(answer)
        except (OSError, DataError) as error:
            reason = OSError(f"{self.address}: {error}")
        finally:
            wire.close()
            if self._wire is wire:
                self._wire = None
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(reason)

    def close(self) -> None:
        """Close the connection."""
        if self._reading is not None:
            self._reading.cancel()
        if self._wire is not None:
            self._wire.close()
            self._wire = None


def listening_socket(address: str) -> socket.socket:
    """Listen at an address; port 0 of TCP takes a free one, a left-over Unix socket is replaced."""
    kind, _, rest = address.partition(":")
    if kind == "unix":
        Path(rest).unlink(missing_ok=True)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.bind(rest)
    else:
        host, _, port = rest.rpartition(":")
        made = socket.create_server((host, int(port)))
    made.listen(64)
    made.setblocking(False)
    return made

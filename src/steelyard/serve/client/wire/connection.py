"""Connections that carry one exchange at a time, and the pool that keeps them open."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from steelyard.errors import BackendError
from steelyard.serve.client.wire.address import Endpoint

try:
    import httptools
except ImportError as error:
    raise BackendError(
        "the client needs httptools", hint="pip install 'steelyard[serve]'"
    ) from error

__all__ = ["Answer", "Connection", "ConnectionPool", "ProtocolError"]


class ProtocolError(Exception):
    """What came back is not HTTP, or ended early."""


class Answer:
    """What a server answers, as it comes.

    Attributes:
        status: HTTP status, 0 before it is known.
        headers: values by lower-case name.
        first_byte_s: when the first byte came, on the machine's monotonic clock; NaN before.
        body: collected bytes, when no listener takes them.
    """

    __slots__ = ("_listener", "body", "first_byte_s", "headers", "status")

    def __init__(self, listener: Callable[[bytes, float], None] | None = None) -> None:
        """Wait for the answer.

        Args:
            listener: takes pieces of a body of status 200 with the time they came; without one they
                are collected.
        """
        self.status = 0
        self.headers = dict[str, str]()
        self.first_byte_s = float("nan")
        self.body = b""
        self._listener = listener

    def take(self, data: bytes, now_s: float) -> None:
        """Take a piece of the body."""
        if self._listener is not None and self.status == 200:
            self._listener(data, now_s)
        else:
            self.body += data


class Connection(asyncio.Protocol):
    """One connection; httptools parses what comes."""

    def __init__(self) -> None:
        """Wait to be connected."""
        self._transport: Any = None
        self._answer: Answer | None = None
        self._done: asyncio.Future[None] | None = None
        self._now_s = 0.0
        self._parser = httptools.HttpResponseParser(self)
        self._keeps = True

    @property
    def is_open(self) -> bool:
        """Whether another exchange can be tried."""
        return self._keeps and self._transport is not None and not self._transport.is_closing()

    async def exchange(self, data: bytes, answer: Answer) -> None:
        """Send a request and wait for the end of its answer.

        When cancelled, the connection is closed.

        Args:
            data: head and body of the request.
            answer: filled as the answer comes.

        Raises:
            ConnectionError: the connection broke.
            ProtocolError: the answer is not HTTP or ended early.
        """
        self._answer = answer
        self._done = asyncio.get_running_loop().create_future()
        try:
            self._transport.write(data)
            await self._done
        except BaseException:
            self.close()
            raise
        finally:
            self._answer = self._done = None

    def close(self) -> None:
        """End the connection at once."""
        self._keeps = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Parse what came, all of it at one time."""
        if self._answer is None:
            self.close()
            return
        self._now_s = time.perf_counter()
        if self._answer.first_byte_s != self._answer.first_byte_s:
            self._answer.first_byte_s = self._now_s
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ProtocolError(f"the answer is not HTTP: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the exchange, unless its answer ends with the connection."""
        self._keeps = False
        answer = self._answer
        if self._done is None or answer is None:
            return
        ends_here = answer.status and not {"content-length", "transfer-encoding"} & set(
            answer.headers
        )
        if ends_here and exc is None:
            self.on_message_complete()
        else:
            self._fail(
                exc
                if isinstance(exc, ConnectionError)
                else ConnectionResetError("the server closed the connection")
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        if self._answer is not None:
            self._answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Keep the status."""
        if self._answer is not None:
            self._answer.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """Hand on a piece of the body."""
        if self._answer is not None:
            self._answer.take(body, self._now_s)

    def on_message_complete(self) -> None:
        """End the exchange; an informational answer is followed by the real one."""
        if self._answer is not None and 100 <= self._answer.status < 200:
            return
        self._keeps = self._keeps and self._parser.should_keep_alive()
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _fail(self, error: Exception) -> None:
        """End the exchange with an error."""
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)


class ConnectionPool:
    """Open connections to one server, used again as long as the server keeps them."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Open none yet."""
        self.endpoint = endpoint
        self._tls = endpoint.tls
        self._free: list[Connection] = []

    async def exchange(self, data: bytes, answer: Answer) -> None:
        """Send a request on a free or new connection.

        A kept connection that the server has meanwhile closed is replaced once, as long as nothing
        came back on it.

        Args:
            data: head and body of the request.
            answer: filled as the answer comes.

        Raises:
            OSError: no connection, or it broke.
            ProtocolError: the answer is not HTTP or ended early.
        """
        # Only a kept connection is tried twice: the server may have closed it while it was idle. On
        # a fresh one, or after the first byte, a second try could run the request twice.
        while self._free:
            kept = self._free.pop()
            if kept.is_open:
                try:
                    return await self._on(kept, data, answer)
                except ConnectionError:
                    if answer.status:
                        raise
                break
        _, fresh = await asyncio.get_running_loop().create_connection(
            Connection, self.endpoint.host, self.endpoint.port, ssl=self._tls
        )
        await self._on(fresh, data, answer)

    async def _on(self, connection: Connection, data: bytes, answer: Answer) -> None:
        """Run an exchange and keep the connection if it may be kept."""
        await connection.exchange(data, answer)
        if connection.is_open:
            self._free.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close the free connections."""
        while self._free:
            self._free.pop().close()

"""HTTP of one connection, on which a request has only so long to arrive.

A client that sends its request byte by byte costs a connection and the memory of what came, for as
long as it likes; hundreds of them cost a server its sockets.
"""

import asyncio
import functools
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from steelyard.serve.front.api.errors import ApiError
from steelyard.serve.front.gateway.exchange import LATE

__all__ = ["TimedProtocol", "timed"]

_MAX_HEAD_BYTES = 64 * 2**10
"""Longest head of a request; the longest that browsers send are a quarter of it."""

_REASONS = {408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


def timed(limit_s: float) -> Any:
    """Return what makes the protocol of a connection.

    Args:
        limit_s: longest time for the head of a request, and again for its body.

    Returns:
        A class but for that time, as the server's configuration takes it.
    """
    return functools.partial(TimedProtocol, limit_s=limit_s)


class TimedProtocol(HttpToolsProtocol):
    """Answers 408 and closes the connection when a request does not arrive in time.

    A request that comes whole, as nearly all do, costs no timer.
    """

    def __init__(self, *args: Any, limit_s: float, **kwargs: Any) -> None:
        """Start without a connection.

        Args:
            *args: arguments that the server gives.
            limit_s: longest time for the head of a request, and again for its body.
            **kwargs: named arguments that the server gives.
        """
        super().__init__(*args, **kwargs)
        self._limit_s = limit_s
        self._part = ""
        self._head_bytes = 0
        self._due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Wait for a request."""
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; what is still missing of a request then has to come in time."""
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._part == "head":
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES:
                self._refuse(431, f"the headers are longer than {_MAX_HEAD_BYTES} bytes")
                return
        # Blank lines between two requests begin none, but they end the wait for the next one.
        is_idle = not self._is_answering and self.timeout_keep_alive_task is None
        if self._due is None and (self._part or is_idle):
            self._arm()

    def on_message_begin(self) -> None:
        """Begin a head; the time since the connection was made counts."""
        super().on_message_begin()
        self._part = "head"
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        """Begin a body."""
        super().on_headers_complete()
        self._disarm()
        self._part = "body"

    def on_message_complete(self) -> None:
        """End a request."""
        super().on_message_complete()
        self._disarm()
        self._part = ""

    @property
    def _is_answering(self) -> bool:
        """Whether a request of this connection is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _arm(self) -> None:
        """Begin to wait."""
        self._due = self.loop.call_later(self._limit_s, self._run_out)

    def _disarm(self) -> None:
        """Stop waiting."""
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _run_out(self) -> None:
        """Refuse what has not come in time."""
        self._due = None
        if self.transport.is_closing():
            return
        if self.pipeline or (self._part == "head" and self._is_answering):
            # The request before is still being answered: the client has nothing to hurry for, and
            # an answer now would stand amid the other one.
            self._arm()
        elif self._part == "head":
            self._refuse(408, f"the headers did not come within {self._limit_s:g} s")
        elif self._part == "body" and self._is_answering:
            # The application reads the body, and answers as it does to any request it refuses.
            words = f"the body did not come within {self._limit_s:g} s; send less at once"
            self.scope.setdefault("state", {})[LATE] = words
            self.cycle.keep_alive = False
            self.cycle.message_event.set()
        elif not self._is_answering:  # nothing was sent, or the rest of what was refused already
            self.transport.close()

    def _refuse(self, status: int, words: str) -> None:
        """Answer a request that has not come as far as the application."""
        body = ApiError(status, words).body
        head = (
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n"
        )
        self.transport.write(head % (status, _REASONS[status], len(body)) + body)
        self.transport.close()

"""One HTTP request and its answer, straight on ASGI messages."""

import asyncio
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any

from steelyard.serve.front.api.errors import ApiError
from steelyard.serve.front.gateway.stages import StageClock
from steelyard.serve.front.limits.keys import Client

__all__ = ["LATE", "Exchange", "Receive", "Scope", "Send"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_JSON = (b"content-type", b"application/json")
_EVENTS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

LATE = "late"
"""Key in a request's state that holds, when its body takes too long, the words to say so."""

_LONGEST_STALL_S = 60.0
_CHECK_STALL_S = 10.0
"""A client that takes nothing for so long counts as gone; it would keep its place among the
requests in flight for ever."""


class Exchange:
    """Reads one request and writes its answer.

    Attributes:
        path: path of the URL.
        method: method of the request.
        request_id: what the client sent as `x-request-id`, or made up.
        clock: where the time goes; it begins now.
        client: owner of the key.
        status: status of the answer, 0 before.
        outcome: finish reason or status, for the metrics.
        started: whether headers were sent.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take an ASGI request."""
        self.clock = StageClock()
        self.path = scope["path"]
        self.method = scope["method"]
        self._headers = dict(scope["headers"])
        self._state = scope.get("state", {})
        given = self._headers.get(b"x-request-id", b"")
        self.request_id = (
            given if 0 < len(given) <= 128 and given.isascii() else secrets.token_hex(8).encode()
        )
        self.client: Client
        self.status = 0
        self.outcome = ""
        self.started = False
        self._stalled_s = math.inf
        self._receive = receive
        self._send = send

    def header(self, name: bytes) -> bytes:
        """Return a header, empty when it was not sent."""
        return self._headers.get(name, b"")

    async def body(self, limit_bytes: int) -> bytes:
        """Read the body.

        Args:
            limit_bytes: longest body taken.

        Returns:
            All of it.

        Raises:
            ApiError: 413 when it is longer, 408 when it takes too long; the rest is not read.
            ConnectionError: the client left.
        """
        length = self.header(b"content-length")
        if length.isdigit() and int(length) > limit_bytes:
            raise self._too_large(limit_bytes)
        parts = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError("the client left")
            part = message.get("body", b"")
            size += len(part)
            if size > limit_bytes:
                raise self._too_large(limit_bytes)
            parts.append(part)
            if not message.get("more_body"):
                return b"".join(parts)
            if LATE in self._state:
                raise ApiError(408, self._state[LATE])

    async def until_gone(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work until it ends or the client is gone, whichever comes first.

        Args:
            work: coroutine that writes the answer.

        Raises:
            ConnectionError: the client left; the work was cancelled.
        """
        # The work runs in this task and only the watcher in one of its own. So the watcher has to
        # cancel this task; `left` tells that from a cancellation from outside.
        task = asyncio.current_task()
        assert task is not None
        watch = asyncio.ensure_future(self._disconnect())
        left = False

        def leave(_: object) -> None:
            nonlocal left
            if not watch.cancelled():
                left = True
                task.cancel()

        watch.add_done_callback(leave)
        try:
            await work
        except asyncio.CancelledError:
            if left and not task.uncancel():
                raise ConnectionError("the client left") from None
            raise
        finally:
            watch.remove_done_callback(leave)
            watch.cancel()

    async def send_json(
        self,
        status: int,
        body: bytes,
        *,
        stages: bytes = b"",
        headers: list[tuple[bytes, bytes]] | None = None,
        kind: bytes = b"",
    ) -> None:
        """Send a whole answer."""
        extra = [(b"x-stage-times", stages)] if stages else []
        length = (b"content-length", str(len(body)).encode())
        first = (b"content-type", kind) if kind else _JSON
        await self._start(status, [first, length, *extra, *(headers or [])])
        await self._send({"type": "http.response.body", "body": body})

    async def send_error(self, error: ApiError) -> None:
        """Answer with an error."""
        await self.send_json(error.status, error.body, headers=error.headers)

    async def start_stream(self, stages: bytes) -> None:
        """Send the headers of an event stream."""
        await self._start(200, [*_EVENTS, (b"x-stage-times", stages)])

    async def send_piece(self, piece: bytes, *, is_last: bool = False) -> None:
        """Send a part of a stream; waits while the client is slow to read."""
        self._stalled_s = time.perf_counter()
        await self._send({"type": "http.response.body", "body": piece, "more_body": not is_last})
        self._stalled_s = math.inf

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Send the headers."""
        self.status = status
        self.started = True
        named = [*headers, (b"x-request-id", self.request_id)]
        await self._send({"type": "http.response.start", "status": status, "headers": named})

    async def _disconnect(self) -> None:
        """Wait until the client is gone, or has taken nothing of what waits for it for too long."""
        # A client that has closed its side is reported by the server. One that keeps the connection
        # open and reads nothing is not: `send_piece` then waits, and the time of that is looked at.
        while time.perf_counter() - self._stalled_s < _LONGEST_STALL_S:
            try:
                async with asyncio.timeout(_CHECK_STALL_S):
                    if (await self._receive())["type"] == "http.disconnect":
                        return
            except TimeoutError:
                continue

    @staticmethod
    def _too_large(limit_bytes: int) -> ApiError:
        """Return the answer to a long body."""
        return ApiError(413, f"the body is longer than {limit_bytes} bytes; send less at once")

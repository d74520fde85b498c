"""One engine process as its gateway sees it: started, heard, and noticed when it ends."""

import asyncio
import contextlib
import subprocess
import threading
import time
from collections.abc import Callable
from typing import cast

import msgspec

from steelyard.errors import BackendError, DataError
from steelyard.frames import MessageCodec
from steelyard.serve.front.engine.spawn import SpawnedEngine
from steelyard.serve.front.engine.wire import Drain, Failed, Ready, Start, ToEngine, ToGateway

__all__ = ["EngineChild"]

_LINGER_S = 0.05
"""A connection is closed a moment before the end of its process, whose exit code says more."""


class EngineChild(asyncio.Protocol):
    """An engine process and the gateway's end of the socket between them.

    Attributes:
        ended: done, with the reason, as soon as the process or its connection is gone.
        taken: done once it is the one that gets requests.
        heard_s: when it last said something, on the monotonic clock.
    """

    def __init__(self, start: Start) -> None:
        """Keep the parts; `begin` starts the process.

        Args:
            start: what engine to make.
        """
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[str] = loop.create_future()
        self.taken: asyncio.Future[None] = loop.create_future()
        self.heard_s = time.monotonic()
        self._start = start
        self._codec = MessageCodec(ToGateway)
        self._first: asyncio.Future[ToGateway] = loop.create_future()
        self._receive: Callable[[ToGateway], None] | None = None
        self._failure = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._exit: asyncio.Future[int] = loop.create_future()
        self._transport: asyncio.Transport | None = None

    @property
    def process_id(self) -> int:
        """Number of the process, 0 when there is none."""
        process = self._process
        return process.pid if process is not None and not self._exit.done() else 0

    async def begin(self, spawned: SpawnedEngine | None = None) -> None:
        """Wait until a process is ready.

        Args:
            spawned: a process that was started before; one is started now when left out.

        Raises:
            BackendError: it ended before it was ready, or cannot make the engine.
            OSError: no process can be started.
        """
        spawned = spawned or SpawnedEngine()
        self._process = spawned.process
        self._start = msgspec.structs.replace(self._start, spawned_s=spawned.began_s)
        self._watch(spawned.process)
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: self, sock=spawned.listener
        )
        try:
            # The process may end before it ever connects.
            await asyncio.wait({self._first, self.ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            server.close()
            spawned.close()
        self._check_start()

    def take(self, receive: Callable[[ToGateway], None]) -> Ready:
        """Make it the engine that gets requests.

        Args:
            receive: function that takes its messages from now on.

        Returns:
            What it reported of itself.
        """
        self._receive = receive
        self.heard_s = time.monotonic()
        self.taken.set_result(None)
        return cast("Ready", self._first.result())

    def send(self, message: ToEngine) -> None:
        """Send a message; nothing happens once the connection is closing."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._codec.encode(message))

    def kill(self, reason: str = "") -> None:
        """End the process now.

        Args:
            reason: why, in words for clients; its exit code when empty.
        """
        self._failure = self._failure or reason
        if self._process is not None and not self._exit.done():
            with contextlib.suppress(ProcessLookupError):  # its end is not known here yet
                self._process.kill()

    async def end(self, timeout_s: float) -> None:
        """Let the process finish what it has, and end it if it does not.

        Args:
            timeout_s: longest wait.
        """
        self.send(Drain())
        if self._process is not None:
            try:
                await asyncio.wait_for(asyncio.shield(self._exit), timeout_s)
            except TimeoutError:
                self.kill()
                await self._exit
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say what engine to make."""
        self._transport = cast("asyncio.Transport", transport)
        self.send(self._start)

    def data_received(self, data: bytes) -> None:
        """Pass on messages; a broken stream closes the connection, which ends the engine."""
        try:
            for message in self._codec.feed(data):
                self._hear(message)
        except DataError:
            assert self._transport is not None
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the engine as gone: whatever its process still does, nobody would hear of it."""
        asyncio.get_running_loop().call_later(_LINGER_S, self._drop)

    def _hear(self, message: ToGateway) -> None:
        """Take a message: the first says how the start went, the others are the user's."""
        self.heard_s = time.monotonic()
        if not self._first.done():
            self._first.set_result(message)
        elif isinstance(message, Failed):
            self._failure = message.message
        elif self._receive is not None:
            self._receive(message)

    def _drop(self) -> None:
        """End a process that has closed its connection, unless it has ended by itself."""
        self._note_end(self._failure or "it closed its connection")
        self.kill()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Learn of the end of the process, from a thread that sleeps until then."""
        loop = asyncio.get_running_loop()

        def wait() -> None:
            code = process.wait()
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody asks any more
                loop.call_soon_threadsafe(self._note_exit, code)

        threading.Thread(target=wait, name="engine-exit", daemon=True).start()

    def _note_exit(self, code: int) -> None:
        """Keep the exit code."""
        self._exit.set_result(code)
        self._note_end(self._failure or f"exit code {code}")

    def _note_end(self, reason: str) -> None:
        """Keep the first reason."""
        if not self.ended.done():
            self.ended.set_result(reason)

    def _check_start(self) -> None:
        """Refuse an engine that is not ready."""
        if not self._first.done():
            raise BackendError(
                f"the engine process ended before it was ready: {self.ended.result()}",
                hint="see its output above, or lower --pool",
            )
        message = self._first.result()
        if isinstance(message, Failed):
            raise BackendError(f"the engine cannot start: {message.message}", hint=message.hint)

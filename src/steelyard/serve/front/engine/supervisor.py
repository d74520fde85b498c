"""Keeps an engine process running: starts it, hears it, and starts it again when it dies."""

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

from steelyard.errors import BackendError, DataError
from steelyard.frames import MessageCodec
from steelyard.serve.front.engine.wire import (
    Drain,
    Failed,
    GetStats,
    Ready,
    Start,
    ToEngine,
    ToGateway,
)

__all__ = ["EngineSupervisor"]

_MODULE = "steelyard.serve.front.engine.process"
_FIRST_WAIT_S = 0.2
_LONGEST_WAIT_S = 30.0
_STEADY_S = 60.0
_STOP_TIMEOUT_S = 5.0


class EngineUser(Protocol):
    """Who sends an engine its work: it learns of every engine that comes and goes."""

    @property
    def has_work(self) -> bool:
        """Whether the engine owes an answer."""
        ...

    def connect(self, send: Callable[[ToEngine], None], ready: Ready) -> None:
        """Take an engine, the function that sends it a message, and what it reported of itself."""
        ...

    def disconnect(self, reason: str, *, retry: bool = True) -> None:
        """Learn that the engine is gone, why, and whether another one comes."""
        ...

    def receive(self, message: ToGateway) -> None:
        """Take a message of the engine."""
        ...


class _Link(asyncio.Protocol):
    """The gateway's end of the socket."""

    def __init__(self, start: Start, receive: Callable[[ToGateway], None]) -> None:
        """Keep the first message and the function that takes what comes."""
        self._start = start
        self._receive = receive
        self._codec = MessageCodec(ToGateway)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self.send(self._start)

    def data_received(self, data: bytes) -> None:
        """Pass on messages; a broken stream closes the connection, which ends the engine."""
        try:
            for message in self._codec.feed(data):
                self._receive(message)
        except DataError:
            self.close()

    def send(self, message: ToEngine) -> None:
        """Send a message; nothing happens once the connection is closing."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._codec.encode(message))

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()


class EngineSupervisor:
    """Owns the engine process and the socket it connects to, in a folder only this user can enter.

    After a death the engine is started again at once, then with waits that double up to half a
    minute; a minute of steady work resets them. An engine that owes answers and says nothing for
    too long, not even to a question about its counters, is ended.

    Attributes:
        num_restarts: times the engine was started again.
        failure: why there is no engine now, or empty.
        process_id: number of the engine process, 0 when there is none.
    """

    def __init__(
        self,
        start: Start,
        dispatcher: EngineUser,
        count_restart: Callable[[], None] = lambda: None,
        *,
        stall_timeout_s: float = 600.0,
    ) -> None:
        """Keep the parts; `begin` starts.

        Args:
            start: what engine to make.
            dispatcher: takes the engine and its messages.
            count_restart: called at each start but the first.
            stall_timeout_s: longest silence of an engine with work; above its longest step.
        """
        self.num_restarts = 0
        self.failure = "starting"
        self._start = start
        self._dispatcher = dispatcher
        self._count_restart = count_restart
        self._folder = tempfile.TemporaryDirectory(prefix="steelyard-")
        self._path = Path(self._folder.name) / "engine.sock"
        self._server: asyncio.Server | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._link: _Link | None = None
        self._first: asyncio.Future[ToGateway] | None = None
        self._watchers: list[asyncio.Task[None]] = []
        self._stall_timeout_s = stall_timeout_s
        self._begun_s = self._heard_s = 0.0

    @property
    def process_id(self) -> int:
        """Number of the engine process, 0 when there is none."""
        return (
            self._process.pid
            if self._process is not None and self._process.returncode is None
            else 0
        )

    async def begin(self) -> None:
        """Start the engine for the first time and watch it from then on.

        Raises:
            BackendError: it ended before it was ready; the message says why.
        """
        self._server = await asyncio.get_running_loop().create_unix_server(
            self._connect, str(self._path)
        )
        await self._launch()
        self._watchers = [
            asyncio.create_task(self._watch()),
            asyncio.create_task(self._check_pulse()),
        ]

    async def end(self) -> None:
        """Let the engine finish, and end it if it does not."""
        for watcher in self._watchers:
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher
        process = self._process
        if process is not None and process.returncode is None:
            if self._link is not None:
                self._link.send(Drain())
            try:
                await asyncio.wait_for(process.wait(), _STOP_TIMEOUT_S)
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._link is not None:
            self._link.close()
        if self._server is not None:
            self._server.close()
        self._folder.cleanup()

    def _connect(self) -> _Link:
        """Take the connection of a fresh engine."""
        self._link = _Link(self._start, self._hear)
        return self._link

    def _hear(self, message: ToGateway) -> None:
        """Take a message: the first says how the start went, the others are the dispatcher's."""
        self._heard_s = time.monotonic()
        if self._first is not None and not self._first.done():
            self._first.set_result(message)
        elif isinstance(message, Failed):
            self.failure = message.message
        else:
            self._dispatcher.receive(message)

    async def _launch(self) -> None:
        """Start a process and wait until it is ready."""
        self._first = asyncio.get_running_loop().create_future()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", _MODULE, str(self._path)
        )
        self._begun_s = time.monotonic()
        # The process may end before it ever connects, so its end is waited for beside its answer.
        ended = asyncio.ensure_future(self._process.wait())
        await asyncio.wait({self._first, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not self._first.done():
            raise BackendError(
                f"the engine process ended with exit code {ended.result()} before it was ready",
                hint="see its output above, or lower --pool",
            )
        ended.cancel()
        message = self._first.result()
        if not isinstance(message, Ready):
            await self._process.wait()
            assert isinstance(message, Failed)
            raise BackendError(f"the engine cannot start: {message.message}", hint=message.hint)
        assert self._link is not None
        self.failure = ""
        self._dispatcher.connect(self._link.send, message)

    async def _watch(self) -> None:
        """Start the engine again whenever it ends."""
        wait_s = 0.0
        while True:
            assert self._process is not None
            code = await self._process.wait()
            self.failure = self.failure or f"exit code {code}"
            self._dispatcher.disconnect(self.failure)
            # The first restart is at once, so that one lost step is all that clients notice. An
            # engine that dies soon after each start would otherwise keep a processor busy for
            # nothing, hence the doubling.
            wait_s = 0.0 if time.monotonic() - self._begun_s > _STEADY_S else wait_s
            while True:
                await asyncio.sleep(wait_s)
                wait_s = min(max(2 * wait_s, _FIRST_WAIT_S), _LONGEST_WAIT_S)
                self.num_restarts += 1
                self._count_restart()
                try:
                    await self._launch()
                    break
                except (BackendError, OSError) as error:
                    self.failure = str(error)
                    self._dispatcher.disconnect(self.failure, retry=False)

    async def _check_pulse(self) -> None:
        """End an engine that is silent for too long while it owes answers.

        It answers a question between any two steps.
        """
        while True:
            await asyncio.sleep(self._stall_timeout_s / 4)
            if not self._dispatcher.has_work:
                self._heard_s = time.monotonic()
            elif (
                time.monotonic() - self._heard_s > self._stall_timeout_s
                and self._process is not None
            ):
                self.failure = f"it said nothing for {self._stall_timeout_s:g} s"
                self._process.kill()
                self._heard_s = time.monotonic()
            elif self._link is not None:
                self._link.send(GetStats(0))

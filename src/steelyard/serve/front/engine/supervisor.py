"""Keeps engine processes running: one that works, one to spare if asked for, and replaces both."""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from typing import Protocol

from steelyard.errors import BackendError
from steelyard.serve.front.engine.child import EngineChild
from steelyard.serve.front.engine.spawn import SpawnedEngine
from steelyard.serve.front.engine.wire import GetStats, Ready, Start, ToEngine, ToGateway

__all__ = ["EngineSupervisor"]

_FIRST_WAIT_S = 0.2
_LONGEST_WAIT_S = 30.0
_STEADY_S = 60.0
_STOP_TIMEOUT_S = 5.0

_TELL_S = 0.02
"""Starting a process holds the gateway up; those whose streams have ended are told before."""

_FAILED_STARTS = 3
"""Starts in a row that may fail before the requests that wait for an engine are answered: one can
be an accident, more are a machine without memory or a damaged model."""

_SPARE_DELAY_S = 1.0
"""A new spare is started so long after the last one took over, or died: the requests that waited
get the processor first."""


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


class EngineSupervisor:
    """Owns the engine processes.

    After a death the engine is started again at once, then with waits that double up to half a
    minute; a minute of steady work resets them. A spare is an engine like the other one, idle until
    that dies; then it takes over and another spare is started. An engine that owes answers and says
    nothing for too long, not even to a question about its counters, is ended.

    Attributes:
        num_restarts: times an engine took the place of another.
        failure: why there is no engine now, or empty.
    """

    def __init__(
        self,
        start: Start,
        dispatcher: EngineUser,
        count_restart: Callable[[], None] = lambda: None,
        *,
        stall_timeout_s: float = 600.0,
        note_spare: Callable[[float], None] | None = None,
        spawned: SpawnedEngine | None = None,
    ) -> None:
        """Keep the parts; `begin` starts.

        Args:
            start: what engine to make.
            dispatcher: takes the engine and its messages.
            count_restart: called at each start but the first.
            stall_timeout_s: longest silence of an engine with work; above its longest step.
            note_spare: told 1 when a spare is ready and 0 when it no longer is; without it none is
                kept.
            spawned: process of the first engine, when it was started before.
        """
        self.num_restarts = 0
        self.failure = "starting"
        self._start = start
        self._dispatcher = dispatcher
        self._count_restart = count_restart
        self._note_spare = note_spare
        self._spawned = spawned
        self._children: set[EngineChild] = set()
        self._active: EngineChild | None = None
        self._spare: asyncio.Task[EngineChild] | None = None
        self._is_up = asyncio.Event()
        self._watchers: list[asyncio.Task[None]] = []
        self._stall_timeout_s = stall_timeout_s
        self._begun_s = 0.0

    @property
    def process_id(self) -> int:
        """Number of the process of the engine that works, 0 when there is none."""
        return self._active.process_id if self._active is not None else 0

    async def begin(self) -> None:
        """Start the engine for the first time and watch it from then on.

        Raises:
            BackendError: it ended before it was ready; the message says why.
        """
        self._adopt(await self._launch())
        watches = [self._watch(), self._check_pulse()]
        if self._note_spare is not None:
            watches.append(self._keep_spare(self._note_spare))
        self._watchers = [asyncio.create_task(watch) for watch in watches]

    async def end(self) -> None:
        """Let the engine finish, and end it if it does not; one that loads or idles ends now."""
        for watcher in self._watchers:
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher
        for child in list(self._children):
            if child is not self._active:
                child.kill()
            await child.end(_STOP_TIMEOUT_S)
        if self._spare is not None:
            # Its child was killed, so it ends with an error that nobody needs, or has ended.
            await asyncio.gather(self._spare, return_exceptions=True)

    async def _launch(self) -> EngineChild:
        """Start a process and wait until it is ready."""
        child = EngineChild(self._start)
        self._children.add(child)
        child.ended.add_done_callback(lambda _: self._children.discard(child))
        spawned, self._spawned = self._spawned, None
        await child.begin(spawned)
        return child

    def _adopt(self, child: EngineChild) -> None:
        """Send requests to an engine that is ready."""
        self._active = child
        self._begun_s = time.monotonic()
        self.failure = ""
        self._dispatcher.connect(child.send, child.take(self._dispatcher.receive))
        self._is_up.set()

    async def _watch(self) -> None:
        """Put another engine in the place of the one that ends, always."""
        wait_s = 0.0
        while True:
            assert self._active is not None
            # A shield: when this task is cancelled, the engine has not ended.
            self.failure = await asyncio.shield(self._active.ended)
            self._active = None
            self._is_up.clear()
            self._dispatcher.disconnect(self.failure)
            how = "another one is started" if self._spare is None else "the spare takes over"
            _log(f"the engine has ended: {self.failure}; {how}")
            wait_s = 0.0 if time.monotonic() - self._begun_s > _STEADY_S else wait_s
            wait_s = await self._replace(wait_s)

    async def _replace(self, wait_s: float) -> float:
        """Try until there is an engine again; take and return the wait before the next start."""
        num_failed = 0
        while True:
            spare, self._spare = self._spare, None
            # The first restart is at once, so that one lost step is all that clients notice. An
            # engine that dies soon after each start would otherwise keep a processor busy for
            # nothing, hence the doubling. A spare has been started, and waited for, already.
            if spare is None:
                await asyncio.sleep(max(wait_s, _TELL_S))
                wait_s = min(max(2 * wait_s, _FIRST_WAIT_S), _LONGEST_WAIT_S)
            self.num_restarts += 1
            self._count_restart()
            try:
                self._adopt(await (spare or self._launch()))
                return wait_s
            except (BackendError, OSError) as error:
                num_failed += 1
                self.failure = str(error)
                _log(f"no engine could be started: {error}")
                self._dispatcher.disconnect(self.failure, retry=num_failed < _FAILED_STARTS)

    async def _keep_spare(self, note: Callable[[float], None]) -> None:
        """Keep an engine beside the one that works, loaded and idle."""
        wait_s = 0.0
        while True:
            note(0)
            await asyncio.sleep(wait_s)
            await self._is_up.wait()  # two that load at once would only be in each other's way
            launch = self._spare = asyncio.create_task(self._launch())
            try:
                # It may be taken while it loads: then the engine that is gone is awaited there too.
                child = await asyncio.shield(launch)
            except (BackendError, OSError) as error:
                wait_s = min(max(2 * wait_s, _SPARE_DELAY_S), _LONGEST_WAIT_S)
                _log(f"there is no spare engine: {error}; the next try is in {wait_s:g} s")
            else:
                wait_s = _SPARE_DELAY_S
                note(1)
                await asyncio.wait({child.ended, child.taken}, return_when=asyncio.FIRST_COMPLETED)
            if self._spare is launch:
                self._spare = None

    async def _check_pulse(self) -> None:
        """End an engine that is silent for too long while it owes answers.

        It answers a question between any two steps.
        """
        while True:
            await asyncio.sleep(self._stall_timeout_s / 4)
            child = self._active
            if child is None:
                continue
            if not self._dispatcher.has_work:
                child.heard_s = time.monotonic()
            elif time.monotonic() - child.heard_s > self._stall_timeout_s:
                child.kill(f"it said nothing for {self._stall_timeout_s:g} s")
            else:
                child.send(GetStats(0))


def _log(words: str) -> None:
    """Tell who runs the server."""
    print(f"steelyard serve: {words}", file=sys.stderr, flush=True)

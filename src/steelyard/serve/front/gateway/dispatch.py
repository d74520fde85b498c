"""Between calls and the engine.

Sends prompts, hands out each step's tokens, and keeps what is in flight bounded.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable

from steelyard.serve.front.api.errors import ApiError
from steelyard.serve.front.engine.wire import (
    Abort,
    Add,
    Embed,
    Embedded,
    GetStats,
    Ready,
    Stats,
    Step,
    ToEngine,
    ToGateway,
    Update,
)
from steelyard.serve.front.gateway.calls import Call
from steelyard.serve.front.limits.backlog import Backlog
from steelyard.serve.front.metrics import GatewayMetrics

__all__ = ["Dispatcher"]

FLUSH_S = 0.005
"""Text of one sequence goes out at most this often, first and last pieces aside."""

MAX_ATTEMPTS = 3
"""Engines a request is sent to before it is given up; a request that kills each of them must not do
so for ever."""

_STATS_TIMEOUT_S = 2.0


class Dispatcher:
    """Routes frames between calls and one engine at a time.

    Attributes:
        backlog: what is in flight.
        ready: what the engine reported of itself, or None before the first one is up.
        is_up: whether an engine takes frames now.
        engine_wait_s: longest wait of a request for an engine.
    """

    def __init__(
        self, backlog: Backlog, metrics: GatewayMetrics, *, engine_wait_s: float = 60.0
    ) -> None:
        """Start without an engine.

        Args:
            backlog: bound of what is in flight.
            metrics: counts tokens.
            engine_wait_s: longest wait of a request for an engine.
        """
        self.backlog = backlog
        self.ready: Ready | None = None
        self.is_up = False
        self.engine_wait_s = engine_wait_s
        self._reason = "starting"
        self._next_up: asyncio.Future[None] | None = None
        self._metrics = metrics
        self._send: Callable[[ToEngine], None] = _nowhere
        self._keys = 0
        self._rows: dict[int, tuple[Call, int]] = {}
        self._calls: dict[Call, list[int]] = {}
        self._answers: dict[int, asyncio.Future[Stats | Embedded]] = {}
        self._dirty: set[Call] = set()
        self._flushed_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def num_calls(self) -> int:
        """Calls in flight."""
        return len(self._calls)

    @property
    def has_work(self) -> bool:
        """Whether the engine owes an answer."""
        return self.is_up and bool(self._calls or self._answers)

    def submit(self, call: Call) -> None:
        """Take a call; it is sent at once, or when there is an engine again.

        Args:
            call: admitted by the backlog.
        """
        self._calls[call] = []
        if self.is_up:
            self._dispatch(call)
        else:
            self._limit_wait(call)

    def leave(self, call: Call) -> None:
        """Forget a call; what still runs of it is aborted."""
        for key in self._calls.pop(call, ()):
            if self._rows.pop(key, None):
                self._send(Abort(key))
        self._dirty.discard(call)

    async def embed(self, prompts: list[list[int]]) -> Embedded:
        """Ask the engine for vectors; when it dies, ask the next one.

        Args:
            prompts: token ids.

        Returns:
            Its answer.

        Raises:
            ApiError: there was no engine for too long, or too many died of it.
        """
        attempts = 0
        while True:
            await self._until_up()
            attempts += 1
            try:
                return await self._ask(Embed(self._next_key(), prompts))  # pyright: ignore[reportReturnType]
            except ApiError:
                if attempts == MAX_ATTEMPTS:
                    raise

    async def stats(self) -> dict[str, float]:
        """Return the engine's counters; empty when it does not answer in time."""
        try:
            answer = await asyncio.wait_for(self._ask(GetStats(self._next_key())), _STATS_TIMEOUT_S)
        except (ApiError, TimeoutError):
            return {}
        return answer.values if isinstance(answer, Stats) else {}

    def connect(self, send: Callable[[ToEngine], None], ready: Ready) -> None:
        """Take an engine; all calls that wait for one are sent to it.

        Args:
            send: function that sends it a message.
            ready: what it reported of itself.
        """
        self._send = send
        self.ready = ready
        self._metrics.note_start(ready.stages)
        self.is_up = True
        self._tell_waiters()
        for call in list(self._calls):
            # One that has failed is still here until its answer has said so; the engine would
            # work for nobody.
            if not call.is_done:
                self._dispatch(call)

    def disconnect(self, reason: str, *, retry: bool = True) -> None:
        """Learn that the engine is gone.

        Calls of which the client has seen nothing wait for the next one, the others fail.

        Args:
            reason: why, in words for clients.
            retry: False when there is no next one; then all fail.
        """
        self._send = _nowhere
        self.is_up = False
        self._reason = reason
        self._rows.clear()
        if not retry:
            self._tell_waiters()
        for future in self._answers.values():
            if not future.done():
                future.set_exception(self._failure())
        self._answers.clear()
        # A client that has seen nothing cannot tell a second try from the first. One that has seen
        # text can: the rest would come from another draw, or with other rounding.
        for call, keys in self._calls.items():
            keys.clear()
            if call.is_done:
                continue
            if retry and not call.emitted and call.attempts < MAX_ATTEMPTS:
                call.restart()
                self._limit_wait(call)
                continue
            call.fail(self._failure())

    def receive(self, message: ToGateway) -> None:
        """Take a frame of the engine."""
        if isinstance(message, Step):
            self._take_step(message)
        elif isinstance(message, Stats | Embedded):
            future = self._answers.pop(message.key, None)
            if future is not None and not future.done():
                future.set_result(message)

    def _next_key(self) -> int:
        """Make up a key."""
        self._keys += 1
        return self._keys

    def _failure(self) -> ApiError:
        """Return the answer to a request without an engine."""
        return ApiError(
            503,
            f"the engine has ended: {self._reason}; send the request again",
            code="engine_restarted",
            retry_after_s=1.0,
        )

    def _limit_wait(self, call: Call) -> None:
        """Let a call wait for an engine, but not for ever."""

        def give_up() -> None:
            is_waiting = call in self._calls and not self._calls[call]
            if is_waiting and not call.is_done:
                call.fail(self._failure())

        asyncio.get_running_loop().call_later(self.engine_wait_s, give_up)

    async def _until_up(self) -> None:
        """Wait for an engine.

        Raises:
            ApiError: there is none within the limit, or none will come.
        """
        if self.is_up:
            return
        if self._next_up is None:
            self._next_up = asyncio.get_running_loop().create_future()
        # A shield: the future is that of all who wait.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._next_up), self.engine_wait_s)
        if not self.is_up:
            raise self._failure()

    def _tell_waiters(self) -> None:
        """Let those go on who wait for an engine."""
        if self._next_up is not None:
            self._next_up.set_result(None)
            self._next_up = None

    async def _ask(self, message: Embed | GetStats) -> Stats | Embedded:
        """Send a question and wait for its answer."""
        if not self.is_up:
            raise self._failure()
        future = self._answers[message.key] = asyncio.get_running_loop().create_future()
        self._send(message)
        try:
            return await future
        finally:
            self._answers.pop(message.key, None)

    def _dispatch(self, call: Call) -> None:
        """Send all prompts of a call."""
        call.attempts += 1
        # Stamps of both processes are of one clock, the machine's monotonic one, so that they may
        # be subtracted from one another.
        now_s = time.perf_counter()
        call.clock.sent_s = now_s
        if call.clock.tokenized_s == call.clock.tokenized_s:
            call.clock.queued_s = now_s - call.clock.tokenized_s
        keys = self._calls[call]
        for row, prompt in enumerate(call.prompts):
            key = self._next_key()
            keys.append(key)
            self._rows[key] = (call, row)
            self._send(
                Add(
                    key=key,
                    prompt=prompt,
                    params=call.params,
                    priority=call.priority,
                    client=call.client,
                    user=call.user,
                    expected_output=call.expected,
                    sent_s=now_s,
                )
            )

    def _take_step(self, step: Step) -> None:
        """Hand out the tokens of a step and wake who should be told of them."""
        self._metrics.count_step(step)
        for update in step.updates:
            found = self._rows.get(update.key)
            if found is None:  # of a call that was left while the step ran
                continue
            call, row = found
            is_urgent = call.take(row, update, step.ended_s)
            if update.finish_reason or is_urgent:
                self._settle(call, row, update)
            if call.streaming and is_urgent:
                call.wake()
            elif call.streaming:
                self._dirty.add(call)
            elif call.is_done:
                call.wake()
        self._plan_flush()

    def _settle(self, call: Call, row: int, update: Update) -> None:
        """Forget a prompt whose sequences have all ended.

        A stop string ends a sequence here, not in the engine, which is told to stop.
        """
        if call.failure is None and not call.is_prompt_done(row):
            return
        del self._rows[update.key]
        if call.width > 1 or not update.finish_reason:
            self._send(Abort(update.key))

    def _plan_flush(self) -> None:
        """Wake streams with news now, or as soon as the last time is `FLUSH_S` ago."""
        if not self._dirty or self._timer is not None:
            return
        wait_s = self._flushed_s + FLUSH_S - time.perf_counter()
        if wait_s <= 0:
            self._flush()
        else:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._flush)

    def _flush(self) -> None:
        """Wake all streams with news."""
        self._timer = None
        self._flushed_s = time.perf_counter()
        dirty, self._dirty = self._dirty, set()
        for call in dirty:
            call.wake()


def _nowhere(_: ToEngine) -> None:
    """Drop a frame while there is no engine."""

"""The engine's loop: commands in from one thread, steps and news out from another.

Only the thread that steps touches the engine: commands wait in a queue until it has ended a step.
"""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from steelyard.errors import DataError, SteelyardError
from steelyard.frames import Channel
from steelyard.serve.engine import LLM
from steelyard.serve.front.engine.wire import (
    Abort,
    Add,
    Drain,
    Embed,
    Embedded,
    GetStats,
    Stats,
    Step,
    ToEngine,
    ToGateway,
    Update,
)
from steelyard.serve.results import Delta
from steelyard.serve.scheduling.request import Request

__all__ = ["EngineLoop"]


@dataclass(slots=True)
class _Live:
    """A prompt in flight.

    Attributes:
        received_s: when its message came.
        began_s: when the first step with it began.
        is_known: whether the gateway knows of its first token, and so has its stamps.
    """

    received_s: float
    began_s: float = 0.0
    is_known: bool = False


class EngineLoop:
    """Drives an engine for one gateway.

    A reader thread takes commands; `run` steps the engine in the calling thread and sends one
    message per step. Sending waits while the gateway does not read: the engine then stands still
    rather than pile up what nobody takes.

    Attributes:
        llm: the engine; only the thread in `run` touches it.
    """

    def __init__(
        self,
        llm: LLM,
        channel: Channel,
        embed: Callable[[list[list[int]]], Any] | None = None,
    ) -> None:
        """Keep the parts.

        Args:
            llm: an idle engine.
            channel: connection to the gateway.
            embed: function that returns float32 [prompts, width] vectors, or None when the engine
                has no embeddings.
        """
        self.llm = llm
        self._channel = channel
        self._embed = embed
        self._commands: queue.SimpleQueue[tuple[ToEngine | None, float]] = queue.SimpleQueue()
        self._live: dict[str, _Live] = {}
        self._fresh: set[str] = set()
        self._began_s = 0.0
        self._updates: list[Update] = []
        self._is_draining = False

    def run(self) -> None:
        """Take commands and run steps until the gateway is gone, or drains and nothing is left."""
        threading.Thread(target=self._read, name="steelyard-reader", daemon=True).start()
        while self._take_commands():
            if self.llm.scheduler.has_work:
                self._step()
            self._tell()

    def _read(self) -> None:
        """Queue the gateway's commands until it closes the connection."""
        try:
            while (message := self._channel.receive()) is not None:
                self._commands.put((message, time.perf_counter()))
        except (OSError, DataError):
            pass  # a broken connection ends the process as a closed one does
        self._commands.put((None, 0.0))

    def _take_commands(self) -> bool:
        """Run all waiting commands, waiting for one while the engine is idle; False to end."""
        while True:
            is_idle = not self.llm.scheduler.has_work
            if is_idle and self._is_draining:
                return False
            try:
                message, received_s = self._commands.get(block=is_idle and not self._updates)
            except queue.Empty:
                return True
            if message is None:
                return False
            self._obey(message, received_s)

    def _obey(self, message: ToEngine, received_s: float) -> None:
        """Do what one message asks."""
        match message:
            case Add():
                self._add(message, received_s)
            case Abort():
                self._abort(message.key)
            case GetStats():
                self._send(Stats(message.key, asdict(self.llm.stats())))
            case Embed():
                self._send(self._vectors(message))
            case Drain():
                self._is_draining = True

    def _add(self, message: Add, received_s: float) -> None:
        """Hand a prompt to the engine, which checks it; a refusal goes out with the next frame."""
        request = Request(
            id=str(message.key),
            prompt=message.prompt,
            params=message.params,
            arrival_s=message.sent_s,
            priority=message.priority,
            client=message.client,
            user=message.user,
            expected_output=message.expected_output,
        )
        try:
            self.llm.add(request, self.llm.clock.now_s())
        except SteelyardError as error:
            words = f"{error}; {error.hint}" if error.hint else str(error)
            self._updates.append(Update(message.key, 0, [], "refused", message=words))
            return
        self._live[request.id] = _Live(received_s)
        self._fresh.add(request.id)

    def _abort(self, key: int) -> None:
        """Drop a prompt's sequences."""
        self._forget(str(key))
        self.llm.abort(str(key))

    def _forget(self, name: str) -> None:
        """Tell nothing more of a prompt."""
        self._live.pop(name, None)
        self._fresh.discard(name)

    def _vectors(self, message: Embed) -> Embedded:
        """Run prompts for their vectors."""
        if self._embed is None:
            return Embedded(message.key, 0, b"", "this engine has no embeddings")
        try:
            values = self._embed(message.prompts)
        except SteelyardError as error:
            return Embedded(message.key, 0, b"", str(error))
        return Embedded(message.key, int(values.shape[1]), values.astype("<f4").tobytes())

    def _step(self) -> None:
        """Run one step and note its tokens."""
        before_s, self._began_s = self._began_s, time.perf_counter()
        result = self.llm.step()
        if result.plan is None:
            return
        if self._fresh:
            # An asynchronous engine returns the results of the step that it launched one call
            # before, so that is when this step began.
            began_s = before_s if self.llm.driver.asynchronous else self._began_s
            for name in self._fresh.intersection(result.plan.request_ids):
                self._fresh.remove(name)
                self._live[name].began_s = began_s
        now_s = time.perf_counter()
        for delta in result.deltas:
            self._note(delta, now_s)
        for request in result.finished:
            self._forget(request.id)

    def _note(self, delta: Delta, now_s: float) -> None:
        """Put what a sequence got into the next frame."""
        live = self._live.get(delta.request_id)
        if live is None:
            return
        stamps = None if live.is_known else (live.received_s, live.began_s, now_s)
        live.is_known = True
        update = Update(
            int(delta.request_id),
            delta.index,
            delta.tokens,
            delta.finish_reason,
            logprobs=delta.logprobs or None,
            tops=delta.top_logprobs or None,
            stamps=stamps,
            message=delta.error,
        )
        self._updates.append(update)

    def _tell(self) -> None:
        """Send one frame with all news."""
        if self._updates:
            self._send(Step(self._updates, time.perf_counter()))
            self._updates = []

    def _send(self, message: ToGateway) -> None:
        """Write a frame; a closed connection is noticed by the reader."""
        try:
            self._channel.send(message)
        except OSError:
            self._commands.put((None, 0.0))

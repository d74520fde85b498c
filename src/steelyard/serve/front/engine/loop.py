"""The engine's loop: frames in from one thread, steps and frames out from another."""

from __future__ import annotations

import queue
import socket
import threading
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from steelyard.errors import DataError, SteelyardError
from steelyard.serve.front.engine.wire import (
    Abort,
    Add,
    Drain,
    Embed,
    Embedded,
    FrameReader,
    GetStats,
    Stats,
    Step,
    ToEngine,
    ToGateway,
    Update,
    encode_frame,
)
from steelyard.serve.scheduling.request import Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.serve.engine import LLM
    from steelyard.serve.results import Delta

__all__ = ["EngineLoop"]

_READ_BYTES = 256 * 1024


@dataclass(slots=True)
class _Live:
    """A prompt in flight.

    When it was received, when the first step with it began, and whether its first token was
    told.
    """

    received_s: float
    began_s: float = 0.0
    is_told: bool = False


class EngineLoop:
    """Drives an engine for one gateway.

    A reader thread takes frames; `run` steps the engine in the calling thread and writes one frame
    per step. Writing blocks when the gateway does not read, so that nothing piles up here.

    Attributes:
        llm: the engine; only the thread in `run` touches it.
    """

    def __init__(
        self,
        llm: LLM,
        connection: socket.socket,
        embed: Callable[[list[list[int]]], Any] | None = None,
    ) -> None:
        """Keep the parts.

        Args:
            llm: idle.
            connection: to the gateway.
            embed: gives float32 [prompts, width] vectors, or None when the engine has none.
        """
        self.llm = llm
        self._connection = connection
        self._embed = embed
        self._commands: queue.SimpleQueue[tuple[ToEngine | None, float]] = queue.SimpleQueue()
        self._live: dict[str, _Live] = {}
        self._fresh: set[str] = set()
        self._began_s = 0.0
        self._updates: list[Update] = []
        self._is_draining = False

    def run(self) -> None:
        """Take frames and run steps until the gateway is gone or told to drain and nothing is left."""
        threading.Thread(target=self._read, name="steelyard-reader", daemon=True).start()
        while self._take_commands():
            if self.llm.scheduler.has_work:
                self._step()
            self._tell()

    def _read(self) -> None:
        """Cut the gateway's bytes into commands until it closes the connection."""
        reader = FrameReader(ToEngine)
        try:
            while data := self._connection.recv(_READ_BYTES):
                now_s = time.perf_counter()
                for message in reader.feed(data):
                    self._commands.put((message, now_s))  # pyright: ignore[reportArgumentType]
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
        """Hand a prompt to the engine; what it refuses is told in the next frame."""
        request = Request(
            id=str(message.key),
            prompt=message.prompt,
            params=message.params,
            arrival_s=message.sent_s,
            priority=message.priority,
            client=message.client,
            expected_output=message.expected_output,
        )
        try:
            self._check(message)
            self.llm.add(request, self.llm.clock.now_s())
        except SteelyardError as error:
            told = f"{error}; {error.hint}" if error.hint else str(error)
            self._updates.append(Update(message.key, 0, [], "refused", message=told))
            return
        self._live[request.id] = _Live(received_s)
        self._fresh.add(request.id)

    def _check(self, message: Add) -> None:
        """Refuse what the sampler cannot honor; a grammar is compiled here, before anything waits for it."""
        self.llm.runner.sampler.check(message.params, self.llm.model.architecture.vocab_size)

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
            return Embedded(message.key, 0, b"", "this engine gives no embeddings")
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
        stamps = None if live.is_told else (live.received_s, live.began_s, now_s)
        live.is_told = True
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
            self._connection.sendall(encode_frame(message))
        except OSError:
            self._commands.put((None, 0.0))

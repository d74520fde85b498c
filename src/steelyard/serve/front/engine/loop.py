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
from steelyard.serve.scheduling.beam import best_hypotheses
from steelyard.serve.scheduling.request import Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.serve.engine import LLM
    from steelyard.serve.scheduling.step import StepPlan

__all__ = ["EngineLoop"]

_READ_BYTES = 256 * 1024


@dataclass(slots=True)
class _Live:
    """A request in flight and how much of its output was told."""

    key: int
    index: int
    request: Request
    received_s: float
    began_s: float = 0.0
    num_told: int = 0

    def news(self) -> Update | None:
        """Give what is new since the last time, if anything is."""
        request, start = self.request, self.num_told
        tokens = request.output[start:]
        if not tokens and not request.finish_reason:
            return None
        stop = self.num_told = start + len(tokens)
        stamps = None if start else (self.received_s, self.began_s, request.first_token_s)
        wanted = request.params.logprobs
        return Update(
            self.key,
            self.index,
            tokens,
            request.finish_reason or "",
            logprobs=None if wanted is None else request.logprobs[start:stop],
            tops=request.top_logprobs[start:stop] if wanted else None,
            stamps=stamps,
            message=request.error,
        )


class EngineLoop:
    """Drives an engine for one gateway.

    A reader thread takes frames; `run` steps the engine in the calling thread and writes one frame per step. Writing blocks when the
    gateway does not read, so that nothing piles up here.

    Attributes:
        llm: the engine; only the thread in `run` touches it.
    """

    def __init__(self, llm: LLM, connection: socket.socket, embed: Callable[[list[list[int]]], Any] | None = None) -> None:
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
        self._fresh: dict[str, float] = {}
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
            self.llm.add(request, self.llm.clock.now_s())
        except SteelyardError as error:
            told = f"{error}; {error.hint}" if error.hint else str(error)
            self._updates.append(Update(message.key, 0, [], "refused", message=told))
            return
        family = request.family
        members = family.members if family and not family.is_ranked else [request]
        for index, member in enumerate(members):
            self._live[member.id] = _Live(message.key, index, member, received_s)
        self._fresh[request.id] = received_s

    def _abort(self, key: int) -> None:
        """Drop a prompt's sequences."""
        self._fresh.pop(str(key), None)
        live = self._live.get(str(key))
        if live is not None:
            self._forget(live.request)
        self.llm.abort(str(key))

    def _forget(self, root: Request) -> None:
        """Tell nothing more of a prompt's sequences."""
        for member in root.family.members if root.family else (root,):
            self._live.pop(member.id, None)

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
        begin_s = time.perf_counter()
        plan, _, finished = self.llm.step()
        if plan is None:
            return
        self._note_begun(plan, begin_s)
        for request in plan.sampled:
            live = self._live.get(request.id)
            if live is not None and not (request.family and request.family.is_ranked):
                self._note(live)
        for request in finished:
            if request.family and request.family.is_ranked:
                self._note_ranked(request)
            self._forget(request)

    def _note(self, live: _Live) -> None:
        """Put what is new of a sequence into the next frame."""
        if update := live.news():
            self._updates.append(update)

    def _note_ranked(self, root: Request) -> None:
        """Put the likeliest outputs of a prompt into the next frame, once all of them ended."""
        live, family = self._live.get(root.id), root.family
        if live is None or family is None:
            return
        if not family.is_beam:
            for index, member in enumerate(family.outputs()):
                self._note(_Live(live.key, index, member, live.received_s, live.began_s))
            return
        stamps = (live.received_s, live.began_s, root.first_token_s)
        wants = root.params.logprobs is not None
        for index, found in enumerate(best_hypotheses(family)):
            logprobs = found.logprobs if wants else None
            self._updates.append(Update(live.key, index, found.tokens, found.finish_reason, logprobs=logprobs, stamps=stamps))

    def _note_begun(self, plan: StepPlan, begin_s: float) -> None:
        """Stamp prompts that ran for the first time."""
        for name in self._fresh.keys() & set(plan.request_ids) if self._fresh else ():
            del self._fresh[name]
            root = self._live[name].request
            for member in root.family.members if root.family else (root,):
                if live := self._live.get(member.id):
                    live.began_s = begin_s

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

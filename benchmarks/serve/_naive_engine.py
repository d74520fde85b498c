"""The engine of the naive front: a thread of the same process, and one call per token."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from steelyard.errors import BackendError
from steelyard.serve.engine import LLM
from steelyard.serve.scheduling import request as scheduling_request
from steelyard.serve.scheduling.params import SamplingParams

__all__ = ["EngineService", "Event"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something a request's caller should know.

    Attributes:
        token: a new output token, or None.
        finish_reason: "stop", "length", "abort" or "error" when the request ended, else empty.
        message: what went wrong when the reason is "error".
    """

    token: int | None = None
    finish_reason: str = ""
    message: str = ""


class EngineService:
    """Drives an engine in a thread of its own.

    Attributes:
        llm: the engine; only the service's thread may change it while it runs.
        failure: what stopped the thread, or empty.
    """

    def __init__(self, llm: LLM) -> None:
        """Keep the engine; `start` begins."""
        self.llm = llm
        self.failure = ""
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._listeners: dict[str, Callable[[Event], None]] = {}
        self._thread = threading.Thread(target=self._drive, name="steelyard-engine", daemon=True)
        self._count = 0
        self._lock = threading.Lock()

    @property
    def is_alive(self) -> bool:
        """Whether the engine's thread takes requests."""
        return self._thread.is_alive() and not self.failure

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Abort everything in flight and end the thread."""
        self._commands.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def submit(
        self, prompt: list[int], params: SamplingParams, listener: Callable[[Event], None]
    ) -> str:
        """Queue a request.

        Args:
            prompt: token ids.
            params: sampling parameters.
            listener: called in the engine's thread with each event; the last one has a finish
                reason. It must not block.

        Returns:
            The request's id.

        Raises:
            ConfigError: the request could never finish.
            BackendError: the engine's thread has ended.
        """
        if not self.is_alive:
            raise BackendError(
                f"the engine has stopped: {self.failure or 'shut down'}",
                hint="start the server again",
            )
        with self._lock:
            self._count += 1
            name = f"request-{self._count}"
        request = scheduling_request.Request(
            id=name, prompt=prompt, params=params, arrival_s=self.llm.clock.now_s()
        )
        self.llm.check(request)
        self._commands.put(lambda: self._add(request, listener))
        return name

    def abort(self, request_id: str) -> None:
        """Drop a request; nothing happens when it has ended."""
        self._commands.put(lambda: self._abort(request_id))

    def _add(self, request: scheduling_request.Request, listener: Callable[[Event], None]) -> None:
        """Hand a request to the engine."""
        self._listeners[request.id] = listener
        self.llm.add(request, self.llm.clock.now_s())

    def _abort(self, request_id: str) -> None:
        """Drop a request and tell its listener."""
        if self.llm.abort(request_id):
            self._listeners.pop(request_id)(Event(finish_reason="abort"))

    def _drive(self) -> None:
        """Take commands and run steps until told to stop."""
        try:
            while self._take_commands():
                self._step()
        except Exception as error:  # a failed step must end every request with a message
            self.failure = f"{type(error).__name__}: {error}"
        for listener in self._listeners.values():
            listener(
                Event(finish_reason="error", message=self.failure or "the server is shutting down")
            )
        self._listeners.clear()

    def _take_commands(self) -> bool:
        """Run all waiting commands, waiting for one while the engine is idle; False to stop."""
        while True:
            try:
                command = self._commands.get(block=not self.llm.scheduler.has_work)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()

    def _step(self) -> None:
        """Run one step and hand out its tokens."""
        _, tokens, finished = self.llm.step()
        ended = {request.id: request for request in finished}
        for name, token in tokens.items():
            request = ended.get(name)
            if request is None:
                self._listeners[name](Event(token=token))
                continue
            reason = request.finish_reason or "stop"
            self._listeners.pop(name)(
                Event(token=None if reason == "stop" else token, finish_reason=reason)
            )

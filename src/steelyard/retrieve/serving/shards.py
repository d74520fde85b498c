"""Shards of a service: an index in this process, or one in a process of its own."""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from steelyard.errors import BackendError, SteelyardError
from steelyard.frames import Channel
from steelyard.retrieve.serving.live import LiveIndex
from steelyard.retrieve.serving.wire import (
    AskAbout,
    ShardAbout,
    ShardAnswer,
    ShardAsk,
    ShardRefusal,
    shard_codec,
)
from steelyard.retrieve.serving.worker import answer_ask

__all__ = ["IndexShard", "LocalIndex", "ProcessIndex", "ShardDownError", "StartedShard"]

_OPEN_S = 120.0
_ANSWER_S = 30.0


class ShardDownError(BackendError):
    """The process of a shard has ended or does not answer."""


class IndexShard(Protocol):
    """One index of a service."""

    @property
    def name(self) -> str:
        """Its file, for messages and metrics."""
        ...

    def ask(self, ask: ShardAsk) -> ShardAnswer:
        """Return its answer.

        Args:
            ask: the question.

        Returns:
            The answer, no refusal.

        Raises:
            ShardDownError: it does not answer.
            SteelyardError: it refuses.
        """
        ...

    def close(self) -> None:
        """End it; changes are kept."""
        ...


@runtime_checkable
class StartedShard(Protocol):
    """A shard outside this process, which comes back after it has died."""

    def start(self) -> ShardAbout:
        """Return what its index holds as soon as it answers, started again where none runs."""
        ...


class LocalIndex:
    """An index in this process."""

    def __init__(self, live: LiveIndex) -> None:
        """Take an index.

        Args:
            live: the index; whoever opened it closes it.
        """
        self.name = str(live.path)
        self._live = live
        self._lock = threading.Lock()
        # The first search may compile: whoever asks first does not wait for that.
        live.search(np.zeros((1, live.dim), np.float32), 1)

    def ask(self, ask: ShardAsk) -> ShardAnswer:
        """Return the answer, as `IndexShard.ask`."""
        with self._lock:
            answer = answer_ask(self._live, ask)
            if self._live.is_due():
                self._live.settle()
        return _checked(answer)

    def close(self) -> None:
        """Do nothing: the index belongs to another."""


class ProcessIndex:
    """An index in a process of its own, which is started again where it has died."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """Start the process.

        Args:
            path: file of the index.
            read_only: take no changes.

        Raises:
            SteelyardError: the index cannot be opened.
            ShardDownError: the process ended before it had.
        """
        self.name = str(path)
        self._mode = "read" if read_only else "write"
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._is_opening = False
        self.start()

    def start(self) -> ShardAbout:
        """Start the process where none runs; return what its index holds."""
        with self._lock:
            if self._process is None:
                return self._started()
        about = self.ask(AskAbout())
        assert isinstance(about, ShardAbout)
        return about

    def _started(self) -> ShardAbout:
        self._is_opening = True
        try:
            return self._opened()
        finally:
            self._is_opening = False

    def _opened(self) -> ShardAbout:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "steelyard.retrieve.serving.worker"]
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), self.name, self._mode],
                pass_fds=[theirs.fileno()],
                # Ctrl-C in a terminal goes to the server alone, which ends its shards itself.
                start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"},
            )
        self._channel = Channel(ours, shard_codec(ShardAnswer))
        self._channel.set_timeout(_OPEN_S)
        try:
            about = _checked(self._received())
        except SteelyardError:
            self._end()
            raise
        self._channel.set_timeout(_ANSWER_S)
        assert isinstance(about, ShardAbout)
        return about

    def ask(self, ask: ShardAsk) -> ShardAnswer:
        """Return the answer, as `IndexShard.ask`."""
        # A large index opens for long: an answer without it is better than none until then.
        if self._is_opening:
            raise self._down()
        with self._lock:
            if self._channel is None:
                raise self._down()
            try:
                self._channel.send(ask)
            except OSError as error:
                self._end()
                raise self._down() from error
            answer = self._received()
        return _checked(answer)

    def _received(self) -> ShardAnswer:
        """Wait for an answer; a process that is late is ended, as its answers would be mixed up."""
        assert self._channel is not None
        try:
            answer = self._channel.receive()
        except (OSError, SteelyardError) as error:
            self._end()
            raise self._down() from error
        if answer is None:
            self._end()
            raise self._down()
        return answer

    def _down(self) -> ShardDownError:
        return ShardDownError(
            f"the shard {self.name} does not answer", hint="it is started again; ask once more"
        )

    def _end(self) -> None:
        """Kill the process: what it acknowledged stands in its log."""
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._channel = self._process = None

    def close(self) -> None:
        """End the process after it has written its changes into the file."""
        with self._lock:
            if self._channel is None or self._process is None:
                return
            self._channel.close()
            try:
                self._process.wait(_ANSWER_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._channel = self._process = None


def _checked(answer: ShardAnswer) -> ShardAnswer:
    """Raise a refusal as the error that it is."""
    if isinstance(answer, ShardRefusal):
        raise answer.error()
    return answer

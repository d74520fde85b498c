"""Shards of a service as actors of a Ray cluster, spread over its machines (extra `[ray]`)."""

import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from steelyard.errors import BackendError, SteelyardError
from steelyard.ray_cluster import RayRoom
from steelyard.retrieve.serving.live import LiveIndex, live_index
from steelyard.retrieve.serving.shards import ShardDownError
from steelyard.retrieve.serving.wire import (
    AddRows,
    AskAbout,
    RemoveRows,
    ShardAbout,
    ShardAnswer,
    ShardAsk,
    ShardRefusal,
)
from steelyard.retrieve.serving.worker import answer_ask

__all__ = ["RayIndex", "RayShards", "ShardHolder"]

_OPEN_S = 120.0
_ANSWER_S = 30.0


class ShardHolder:
    """The actor of one shard; Ray makes it anew, on the same machine or another, where it dies.

    It then reads its file and the log of changes beside it, as a process that was started again
    does. Messages are those of the process, as bytes.
    """

    def __init__(self, path: str, read_only: bool) -> None:
        """Open the index.

        Args:
            path: file of the index, found on whatever machine this is.
            read_only: take no changes.
        """
        self._path, self._read_only = Path(path), read_only
        self._open = ExitStack()
        self._live: LiveIndex | None = None
        self.opened()

    def opened(self) -> bytes:
        """Open the index unless it is; return what it holds, or why it cannot be opened.

        An error of the constructor would be printed with its traceback on every machine, and Ray
        would not begin the actor again.
        """
        try:
            return msgspec.msgpack.encode(answer_ask(self._opened(), AskAbout()))
        except SteelyardError as error:
            return msgspec.msgpack.encode(ShardRefusal.of(error))

    def _opened(self) -> LiveIndex:
        if self._live is None:
            own = live_index(self._path, read_only=self._read_only)
            live = self._open.enter_context(own)
            # The first search may compile: whoever asks first does not wait for that.
            live.search(np.zeros((1, live.dim), np.float32), 1)
            self._live = live
        return self._live

    def ask(self, ask: bytes) -> bytes:
        """Return the answer to a message; nothing where the index cannot be opened."""
        try:
            live = self._opened()
        except SteelyardError:
            # It could be once: the shard is down, and the others answer without it.
            return b""
        return msgspec.msgpack.encode(answer_ask(live, msgspec.msgpack.decode(ask, type=ShardAsk)))

    def settle(self) -> None:
        """Sort new vectors into the index where they have become many."""
        if self._live is not None and self._live.is_due():
            self._live.settle()

    def close(self) -> None:
        """Write changes into the file."""
        self._open.close()

    def process_id(self) -> int:
        """Return the number of its process on its machine."""
        return os.getpid()


class RayIndex:
    """An index that an actor holds."""

    def __init__(self, ray: Any, actor: Any, name: str) -> None:
        """Take an actor.

        Args:
            ray: the module.
            actor: a `ShardHolder`.
            name: file of its index.
        """
        self.name, self.actor, self._ray = name, actor, ray
        self._is_up = True

    def start(self) -> ShardAbout:
        """Wait until the actor, which Ray begins again, answers; return what its index holds.

        Returns:
            What it holds.

        Raises:
            ShardDownError: it does not answer in two minutes.
        """
        about = self._asked(AskAbout(), _OPEN_S)
        assert isinstance(about, ShardAbout)
        self._is_up = True
        return about

    def ask(self, ask: ShardAsk) -> ShardAnswer:
        """Return the answer, as `IndexShard.ask`."""
        if not self._is_up:
            raise self._down()
        answer = self._asked(ask, _ANSWER_S)
        if isinstance(ask, AddRows | RemoveRows):
            self.actor.settle.remote()
        return answer

    def close(self) -> None:
        """End the actor after it has written its changes into the file."""
        # Of an actor that does not, what it acknowledged stands in its log.
        with suppress(self._ray.exceptions.RayError):
            self._ray.get(self.actor.close.remote(), timeout=_ANSWER_S)
        self._ray.kill(self.actor)

    def _asked(self, ask: ShardAsk, timeout_s: float) -> ShardAnswer:
        """Ask the actor; one that is late, dead or about to be begun again is down."""
        try:
            found = self._ray.get(
                self.actor.ask.remote(msgspec.msgpack.encode(ask)), timeout=timeout_s
            )
        except self._ray.exceptions.RayError as error:
            self._is_up = False
            raise self._down() from error
        if not found:
            self._is_up = False
            raise self._down()
        answer: ShardAnswer = msgspec.msgpack.decode(found, type=ShardAnswer)
        if isinstance(answer, ShardRefusal):
            raise answer.error()
        return answer

    def _down(self) -> ShardDownError:
        return ShardDownError(
            f"the shard {self.name} does not answer", hint="Ray begins it again; ask once more"
        )


class RayShards:
    """Starts actors on a cluster; they end with the process that started them.

    Files are found under the same path on each machine.
    """

    def __init__(self, address: str, *, shards: int, cpus: float = 1.0, wait_s: float = 30.0):
        """Join a cluster and reserve room.

        Args:
            address: address of the cluster; "auto" for the one that this machine belongs to.
            shards: actors that there will be.
            cpus: processors that each reserves.
            wait_s: longest wait for room.

        Raises:
            BackendError: Ray is not installed, no cluster answers, or it has no room.
        """
        self._room = RayRoom(address, actors=shards, of_what="shards", cpus=cpus, wait_s=wait_s)
        self._count = 0

    def start(self, path: Path, *, read_only: bool = False) -> RayIndex:
        """Start the actor of one shard.

        Args:
            path: file of the index.
            read_only: take no changes.

        Returns:
            The shard, which answers.

        Raises:
            BackendError: it does not answer in time.
            SteelyardError: its index cannot be opened there.
        """
        ray, where = self._room.ray, path.resolve()
        actor = self._room.placed(ShardHolder, self._count).remote(str(where), read_only)
        self._count += 1
        try:
            told = msgspec.msgpack.decode(
                ray.get(actor.opened.remote(), timeout=_OPEN_S), type=ShardAnswer
            )
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[-1]
            ray.kill(actor)
            raise BackendError(
                f"the shard {where} has not started: {reason}",
                hint="the package must be installed on every machine of the cluster",
            ) from error
        if isinstance(told, ShardRefusal):
            ray.kill(actor)
            refused = told.error()
            hint = f"{refused.hint}; files lie under the same path on every machine"
            raise type(refused)(f"the shard {where} has not started: {refused}", hint=hint)
        return RayIndex(ray, actor, str(path))

    def close(self) -> None:
        """Return the room to the cluster; shards are closed before."""
        self._room.release()

"""Replicas as processes of this machine: started, asked whether they are ready, drained."""

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from steelyard.config import dump, load
from steelyard.errors import BackendError, ConfigError
from steelyard.runs.host import process_started
from steelyard.sim.control import Command

__all__ = ["ServeReplicas", "is_healthy"]

_PATIENCE_S = 1.0
_GLANCE_S = 0.05


def is_healthy(port: int) -> bool:
    """Return whether a server on this machine answers "/health" with 200."""
    try:
        address = f"http://127.0.0.1:{port}/health"
        with urllib.request.urlopen(address, timeout=_PATIENCE_S) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def _is_free(port: int) -> bool:
    """Return whether no process of this machine listens on a port."""
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) != 0


class _Process(Protocol):
    """A process that this one started, or one that it found."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def send_signal(self, sig: int, /) -> None: ...

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int: ...


@dataclass(frozen=True, slots=True)
class _Found:
    """A process that a controller before this one started; only its parent could wait for it.

    Attributes:
        pid: its number.
        started: mark of its start: a later process of the same number has another one.
    """

    pid: int
    started: str

    def poll(self) -> int | None:
        """Return 0 where it has ended, None where it runs."""
        return None if self.started and process_started(self.pid) == self.started else 0

    def send_signal(self, sig: int, /) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended.

        Args:
            timeout: most seconds; None for any number.

        Returns:
            0: its exit status is its parent's to know.

        Raises:
            TimeoutExpired: it has not within the timeout.
        """
        until_s = time.monotonic() + (float("inf") if timeout is None else timeout)
        while self.poll() is None:
            if time.monotonic() >= until_s:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(_GLANCE_S)
        return 0


@dataclass(frozen=True, slots=True)
class _Kept:
    """What the file of the replicas says of one."""

    pid: int
    started: str
    port: int


@dataclass(slots=True)
class _Replica:
    """A process, its port, and whether it was seen ready."""

    process: _Process
    port: int
    is_ready: bool = False


class ServeReplicas:
    """Holds as many processes of `steelyard serve` as the last command asked for.

    The actuator for "replicas" of `sim.control.drive`; `ready` and `starting` are its meters. A
    command whose number is not above the last one is ignored. Replicas that are let go are sent
    SIGTERM, upon which the server finishes what it has begun; after `drain_s` they are killed.
    Replicas that died are started again with the next command or `refresh`. They outlive a
    controller that is killed: the next one with the same file goes on with them.

    Attributes:
        ports: ports of the replicas that were seen ready, for a load balancer.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        first_port: int,
        most: int,
        drain_s: float = 60.0,
        is_ready: Callable[[int], bool] = is_healthy,
        file: Path | None = None,
    ) -> None:
        """Start nothing yet, but go on with what the file names and what still runs.

        Args:
            arguments: words of the command, such as steelyard serve run MODEL --port {port}; each
                "{port}" becomes the replica's own port.
            first_port: port of the first replica; others follow it.
            most: most replicas at a time, those that drain not counted.
            drain_s: seconds that a replica has to finish.
            is_ready: tells whether the server of a port takes requests.
            file: JSON file that names the processes; None where nobody goes on with them.

        Raises:
            ConfigError: no word holds "{port}", ports run out of range, or the file holds something
                else.
        """
        if not any("{port}" in word for word in arguments):
            raise ConfigError("the command of a replica has no {port}", hint="add --port {port}")
        # A replica that drains still holds its port, so that there are twice as many.
        if not 0 < first_port <= 65_536 - 2 * most or most < 1:
            raise ConfigError(f"{most} replicas from port {first_port} on do not fit below 65536")
        self._arguments, self._first, self._most = list(arguments), first_port, most
        self._drain_s, self._is_ready = drain_s, is_ready
        self._file = file
        kept = load(file, tuple[_Kept, ...]) if file is not None and file.exists() else ()
        found = [_Replica(_Found(item.pid, item.started), item.port) for item in kept]
        self._held = [item for item in found if item.process.poll() is None]
        self._leaving: list[tuple[_Replica, float]] = []
        self._wanted, self._sequence = len(self._held), -1

    @property
    def ports(self) -> list[int]:
        """Ports of the replicas that were seen ready."""
        return [item.port for item in self._held if item.is_ready]

    def __call__(self, command: Command) -> None:
        """Start or let go processes, until as many are held as the command asks for.

        Args:
            command: command for "replicas".

        Raises:
            ConfigError: the number is out of range.
            BackendError: a process cannot be started.
        """
        if command.sequence <= self._sequence:
            return
        wanted = round(command.value)
        if not 0 <= wanted <= self._most:
            raise ConfigError(f"{wanted} replicas were asked for, but at most {self._most} may be")
        self._sequence, self._wanted = command.sequence, wanted
        self.refresh()

    def refresh(self) -> None:
        """Start again what died, kill what drains for too long, and ask who is ready."""
        self._held = [item for item in self._held if item.process.poll() is None]
        for place, (item, until_s) in reversed(list(enumerate(self._leaving))):
            if item.process.poll() is not None:
                del self._leaving[place]
            elif time.monotonic() > until_s:
                item.process.kill()
        while len(self._held) < self._wanted:
            self._held.append(self._start())
            # At once: a replica that no file names would outlive a controller that is killed now.
            self._write()
        # Those that are not ready yet have the least to lose.
        self._held.sort(key=lambda item: not item.is_ready)
        while len(self._held) > self._wanted:
            item = self._held.pop()
            item.process.send_signal(signal.SIGTERM)
            self._leaving.append((item, time.monotonic() + self._drain_s))
            self._write()
        for item in self._held:
            item.is_ready = item.is_ready or self._is_ready(item.port)

    def _start(self) -> _Replica:
        """Start a process on the lowest free port."""
        used = {item.port for item in (*self._held, *(item for item, _ in self._leaving))}
        ports = range(self._first, 65_536)
        # A port that somebody else holds would let the replica die at once, over and over.
        port = next(item for item in ports if item not in used and _is_free(item))
        words = [word.replace("{port}", str(port)) for word in self._arguments]
        try:
            # Its own session: Ctrl-C in the controller's terminal lets the replicas drain.
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
        except OSError as error:
            raise BackendError(
                f"cannot start {words[0]}: {error.strerror}", hint="check the command"
            ) from error
        return _Replica(process, port)

    def _write(self) -> None:
        """Name the processes that are held."""
        if self._file is not None:
            pids = [(item.process.pid, item.port) for item in self._held]
            dump(tuple(_Kept(pid, process_started(pid), port) for pid, port in pids), self._file)

    def ready(self) -> float:
        """Return how many replicas take requests."""
        self.refresh()
        return float(len(self.ports))

    def starting(self) -> float:
        """Return how many replicas were started and take no requests yet."""
        return float(len(self._held) - len(self.ports))

    def close(self) -> None:
        """Let all replicas finish, and wait until they have ended."""
        self._wanted = 0
        self.refresh()
        for item, until_s in self._leaving:
            try:
                item.process.wait(max(until_s - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                item.process.kill()
                item.process.wait()
        self._leaving = []

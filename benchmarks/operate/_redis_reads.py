"""Batches of keys read from a redis-server on this host, by the cheapest client there can be.

Keys and values are of one width, so that a command is written and its answer read as columns of
numpy; a client that parses reply by reply would be several times slower.
"""

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from benchmarks import peers

from steelyard.errors import BackendError

__all__ = ["RedisReader", "redis_binary", "redis_server"]

_KEY_BYTES = 8


def redis_binary() -> Path | None:
    """Return a redis-server, that of the machine or the peer's; None where there is none."""
    found = shutil.which("redis-server")
    if found:
        return Path(found)
    try:
        folder = peers.python("redis-server").parent.parent
    except BackendError:
        return None
    return next(folder.glob("lib/python*/site-packages/*/bin/redis-server"), None)


@contextmanager
def redis_server(binary: Path) -> Iterator[Path]:
    """Run a server that keeps nothing on disk; yields its Unix socket."""
    folder = Path(tempfile.mkdtemp(prefix="steelyard-redis-"))
    path = folder / "socket"
    command = [str(binary), "--port", "0", "--unixsocket", str(path), "--dir", str(folder)]
    server = subprocess.Popen(
        [*command, "--save", "", "--appendonly", "no", "--loglevel", "warning"],
        stdout=subprocess.DEVNULL,
    )
    try:
        end_s = time.monotonic() + 10
        while not path.exists():
            if time.monotonic() > end_s or server.poll() is not None:
                raise BackendError(f"{binary} does not start")
            time.sleep(0.02)
        yield path
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


class RedisReader:
    """Reads and writes rows of one width over one connection."""

    def __init__(self, path: Path, width: int) -> None:
        """Connect; values have `width` bytes."""
        self._width = width
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(str(path))
        self._stride = len(self._head()) + width + 2

    def _head(self) -> bytes:
        return b"$%d\r\n" % self._width

    def _columns(self, values: np.ndarray) -> np.ndarray:
        """Return rows of bytes as bulk strings, [N, head + W + 2]."""
        head = np.frombuffer(b"$%d\r\n" % values.shape[1], np.uint8)
        tail = np.frombuffer(b"\r\n", np.uint8)
        rows = len(values)
        return np.hstack([np.tile(head, (rows, 1)), values, np.tile(tail, (rows, 1))])

    def put(self, keys: np.ndarray, values: np.ndarray) -> None:
        """Write rows by MSET."""
        names = self._columns(keys.astype(np.uint64).view(np.uint8).reshape(-1, _KEY_BYTES))
        pairs = np.hstack([names, self._columns(values)])
        head = b"*%d\r\n$4\r\nMSET\r\n" % (1 + 2 * len(keys))
        self._socket.sendall(head + pairs.tobytes())
        if self._receive(5) != b"+OK\r\n":
            raise BackendError("redis-server refused MSET")

    def get(self, keys: np.ndarray) -> np.ndarray:
        """Read rows that exist by MGET, [N, W]."""
        names = self._columns(keys.astype(np.uint64).view(np.uint8).reshape(-1, _KEY_BYTES))
        self._socket.sendall(b"*%d\r\n$4\r\nMGET\r\n" % (1 + len(keys)) + names.tobytes())
        head = len(b"*%d\r\n" % len(keys))
        answer = self._receive(head + len(keys) * self._stride)
        rows = np.frombuffer(answer, np.uint8, offset=head).reshape(len(keys), self._stride)
        return rows[:, len(self._head()) : -2]

    def _receive(self, size: int) -> bytes:
        """Read so many bytes."""
        found = bytearray(size)
        view, place = memoryview(found), 0
        while place < size:
            count = self._socket.recv_into(view[place:])
            if not count:
                raise BackendError("redis-server has closed the connection")
            place += count
        return bytes(found)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

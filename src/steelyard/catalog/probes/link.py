"""Latency and bandwidth between two processes: loopback TCP, pipes, shared memory."""

import mmap
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from steelyard.catalog.probes import echo
from steelyard.catalog.probes.timing import Clock, Samples, Timed, host_clock, repeat
from steelyard.errors import CalibrationError

__all__ = ["link_rates"]

_MESSAGE_BYTES = 8 * 2**20
_TIMEOUT_S = 20.0


def link_rates(*, quick: bool, clock: Clock = host_clock) -> dict[str, Timed]:
    """Start a second process and exchange messages with it.

    Args:
        quick: fewer repetitions.
        clock: times a number of exchanges.

    Returns:
        Samples of the four exchanges by the field of the calibration. A latency is half of the time
        of one byte and its answer; a rate counts a large message over TCP with a one-byte answer,
        or its copies into shared memory here and out of it there.

    Raises:
        CalibrationError: the second process does not answer.
    """
    shared_memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        prefix="steelyard-", dir=shared_memory if os.access(shared_memory, os.W_OK) else None
    ) as folder:
        path = Path(folder) / "link"
        path.write_bytes(bytes(_MESSAGE_BYTES))
        try:
            return _exchange(path, clock, repeats=9 if quick else 31)
        except (OSError, subprocess.SubprocessError) as error:
            raise CalibrationError(
                f"the second process of the link probe failed: {error}",
                hint="allow processes of this user to connect over 127.0.0.1",
            ) from error


def _exchange(path: Path, clock: Clock, repeats: int) -> dict[str, Timed]:
    """Run the far end and time the exchanges with it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(_TIMEOUT_S)
        port = str(server.getsockname()[1])
        # Run as a file, isolated: the far end starts fast and loads nothing of the package.
        far_end = [sys.executable, "-I", str(echo.__file__)]
        command = [*far_end, port, str(path), str(_MESSAGE_BYTES)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        ) as far:
            try:
                round_trip, message = _over_tcp(server, clock, repeats)
                pipe, shared = _over_pipes(far, path, clock, repeats)
            except BaseException:
                far.kill()
                raise
    return {
        "link_latency_s": (_halved(round_trip), 0.0),
        "link_bytes_per_s": (message, float(_MESSAGE_BYTES)),
        "shared_latency_s": (_halved(pipe), 0.0),
        "shared_bytes_per_s": (shared, float(_MESSAGE_BYTES)),
    }


def _halved(samples: Samples) -> Samples:
    """Turn round trips into one way."""
    return Samples(tuple(seconds / 2 for seconds in samples.seconds))


def _over_tcp(server: socket.socket, clock: Clock, repeats: int) -> tuple[Samples, Samples]:
    """Time small and large messages over loopback TCP."""
    link, _ = server.accept()
    with link:
        link.settimeout(_TIMEOUT_S)
        # Without this a small message waits for the answer to the one before it.
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Each message stands behind its length.
        small, large = (size.to_bytes(8, "little") + bytes(size) for size in (1, _MESSAGE_BYTES))

        def send(message: bytes) -> None:
            link.sendall(message)
            if link.recv(1) != b"k":
                raise OSError("the link closed")

        return _both(lambda: send(small), lambda: send(large), clock, repeats)


def _over_pipes(
    far: subprocess.Popen[bytes], path: Path, clock: Clock, repeats: int
) -> tuple[Samples, Samples]:
    """Time bytes over pipes, and copies through shared memory signalled by them."""
    assert far.stdin is not None and far.stdout is not None
    out = far.stdin.fileno()
    back = far.stdout.fileno()

    def ask(command: bytes) -> None:
        os.write(out, command)
        if os.read(back, 1) != b"k":
            raise OSError("the pipe closed")

    with (
        path.open("r+b") as file,
        mmap.mmap(file.fileno(), _MESSAGE_BYTES) as shared,
        memoryview(shared) as view,
    ):
        message = memoryview(bytearray(_MESSAGE_BYTES))

        def hand_over() -> None:
            view[:] = message
            ask(b"c")

        return _both(lambda: ask(b"p"), hand_over, clock, repeats)


def _both(
    small: Callable[[], None], large: Callable[[], None], clock: Clock, repeats: int
) -> tuple[Samples, Samples]:
    """Time a small and a large exchange."""
    return (
        repeat(small, clock, repeats=repeats, least_s=0.01),
        repeat(large, clock, repeats=repeats, least_s=0.01, most_s=2.0),
    )

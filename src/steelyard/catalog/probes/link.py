"""Latency and bandwidth between two processes of this machine.

Loopback TCP, pipes, shared memory.
"""

import mmap
import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from steelyard.catalog.probes.timing import Samples, host_clock, repeat
from steelyard.errors import CalibrationError

__all__ = ["LinkRates", "link_rates"]

_MESSAGE_BYTES = 8 * 2**20
_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Timed exchanges with a second process.

    Attributes:
        tcp_one_way: half of one byte over loopback TCP and its answer.
        tcp_message: `message_bytes` over loopback TCP and a one-byte answer.
        pipe_one_way: half of one byte over a pipe and its answer.
        shared_message: `message_bytes` copied into shared memory here and out of it there.
        message_bytes: size of the large messages.
    """

    tcp_one_way: Samples
    tcp_message: Samples
    pipe_one_way: Samples
    shared_message: Samples
    message_bytes: int


def link_rates(*, quick: bool) -> LinkRates:
    """Start a second process and exchange messages with it.

    Args:
        quick: fewer repetitions.

    Returns:
        Samples of all four exchanges.

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
            return _exchange(path, repeats=9 if quick else 31)
        except (OSError, subprocess.SubprocessError) as error:
            hint = "allow processes of this user to connect over 127.0.0.1"
            raise CalibrationError(
                f"the second process of the link probe failed: {error}", hint=hint
            ) from error


def _exchange(path: Path, repeats: int) -> LinkRates:
    """Run the far end and time the exchanges with it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(_TIMEOUT_S)
        port = server.getsockname()[1]
        command = [
            sys.executable,
            "-I",
            str(Path(__file__).with_name("echo.py")),
            str(port),
            str(path),
            str(_MESSAGE_BYTES),
        ]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        ) as far:
            try:
                round_trip, message = _over_tcp(server, repeats)
                pipe, shared = _over_pipes(far, path, repeats)
            except BaseException:
                far.kill()
                raise
    return LinkRates(_halved(round_trip), message, _halved(pipe), shared, _MESSAGE_BYTES)


def _halved(samples: Samples) -> Samples:
    """Turn round trips into one way."""
    return Samples(tuple(seconds / 2 for seconds in samples.seconds))


def _over_tcp(server: socket.socket, repeats: int) -> tuple[Samples, Samples]:
    """Time small and large messages over loopback TCP."""
    link, _ = server.accept()
    with link:
        link.settimeout(_TIMEOUT_S)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        small, large = _framed(1), _framed(_MESSAGE_BYTES)

        def send(message: bytes) -> None:
            link.sendall(message)
            if link.recv(1) != b"k":
                raise OSError("the link closed")

        round_trip = repeat(lambda: send(small), host_clock, repeats=repeats, least_s=0.01)
        return round_trip, repeat(
            lambda: send(large), host_clock, repeats=repeats, least_s=0.01, most_s=2.0
        )


def _framed(size: int) -> bytes:
    """Make a message of `size` bytes behind its length."""
    return size.to_bytes(8, "little") + bytes(size)


def _over_pipes(far: subprocess.Popen[bytes], path: Path, repeats: int) -> tuple[Samples, Samples]:
    """Time bytes over pipes, and copies through shared memory signalled by them."""
    assert far.stdin is not None and far.stdout is not None
    out, back = far.stdin.fileno(), far.stdout.fileno()

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

        round_trip = repeat(lambda: ask(b"p"), host_clock, repeats=repeats, least_s=0.01)
        return round_trip, repeat(hand_over, host_clock, repeats=repeats, least_s=0.01, most_s=2.0)

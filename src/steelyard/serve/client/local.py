"""A server of our own for as long as it is needed."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from steelyard.errors import BackendError, ConfigError

__all__ = ["local_server", "server_for"]

_START_S = 180.0
_LOG_BYTES = 2**20
_ADDRESS = "serving on "
"""Begins the line that a server prints once it listens."""


@contextlib.contextmanager
def server_for(target: str, name: str = "") -> Iterator[str]:
    """Return the address of a server.

    The target itself, or of one that serves the model in that folder meanwhile.

    Args:
        target: an address, a folder with config.json, or a GGUF file.
        name: what the model in the folder is called; the folder's name when empty.

    Yields:
        The address.

    Raises:
        ConfigError: a folder without a model.
        BackendError: the server did not start.
    """
    from steelyard.nn.gguf.header import is_gguf

    folder = Path(target).expanduser()
    if not folder.exists():
        yield target
        return
    if not ((folder / "config.json").is_file() or is_gguf(folder)):
        raise ConfigError(
            f"{target} is no model folder: it has no config.json",
            hint="name the folder a model was saved in, a .gguf file, or an address",
        )
    with local_server(folder, *(("--name", name) if name else ())) as url:
        yield url


@contextlib.contextmanager
def local_server(folder: Path, *options: str) -> Iterator[str]:
    """Serve a model in a process of its own, on a free port of this machine, until the block ends.

    Args:
        folder: folder of the model.
        *options: further words of `steelyard serve`, such as "--pool", "1 GiB".

    Yields:
        The address.

    Raises:
        BackendError: the server did not start; its last words are in the message.
    """
    command = [sys.executable, "-m", "steelyard", "serve", str(folder), "--port", "0", *options]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            yield _wait(process, log.fileno())
        finally:
            process.terminate()
            try:
                process.wait(timeout=10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: "subprocess.Popen[bytes]", log: int) -> str:
    """Wait until the server names its address, and return it."""
    end_s = time.monotonic() + _START_S
    while True:
        has_ended = process.poll() is not None
        # Read at a place of its own: the server shares the file's position and writes there.
        lines = os.pread(log, _LOG_BYTES, 0).decode(errors="replace").splitlines()
        for line in lines:
            if line.startswith(_ADDRESS):
                return line.removeprefix(_ADDRESS)
        if has_ended or time.monotonic() > end_s:
            break
        time.sleep(0.1)
    state = "ended" if has_ended else f"was not ready in {_START_S:g} s"
    told = [line for line in lines if line.strip()] or ["it said nothing"]
    errors = [line for line in told if "error" in line.lower()]
    raise BackendError(
        f"the server {state}: {(errors or told)[-1]}",
        hint="try it alone: steelyard serve MODEL_DIR",
    )

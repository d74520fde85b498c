"""A server of our own for as long as it is needed."""

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from steelyard.errors import BackendError, ConfigError
from steelyard.serve.client.load import list_models
from steelyard.serve.client.wire.address import Endpoint

__all__ = ["local_server", "server_for"]

_START_S = 180.0


@contextlib.contextmanager
def server_for(target: str) -> Iterator[str]:
    """Return the address of a server.

    The target itself, or of one that serves the model in that folder meanwhile.

    Args:
        target: an address, or a folder with config.json.

    Yields:
        The address.

    Raises:
        ConfigError: a folder without a model.
        BackendError: the server did not start.
    """
    folder = Path(target).expanduser()
    if not folder.is_dir():
        yield target
        return
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"{target} is no model folder: it has no config.json",
            hint="name the folder a model was saved in, or an address",
        )
    with local_server(folder) as url:
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
    port = _free_port()
    command = [
        sys.executable,
        "-m",
        "steelyard",
        "serve",
        str(folder),
        "--port",
        str(port),
        *options,
    ]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(process, Endpoint.parse(url), log)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(timeout=10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_port() -> int:
    """Find a port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait(
    process: "subprocess.Popen[bytes]",
    endpoint: Endpoint,
    log: tempfile.SpooledTemporaryFile | object,
) -> None:
    """Wait until the server lists its model."""
    end_s = time.monotonic() + _START_S
    while time.monotonic() < end_s and process.poll() is None:
        with contextlib.suppress(BackendError):
            if list_models(endpoint):
                return
        time.sleep(0.1)
    log.seek(0)  # pyright: ignore[reportAttributeAccessIssue]
    lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]  # pyright: ignore[reportAttributeAccessIssue]
    state = "ended" if process.poll() is not None else f"gave no answer in {_START_S:g} s"
    errors = [line for line in lines if "error" in line.lower()]
    raise BackendError(
        f"the server {state}: {(errors or lines or ['it said nothing'])[-1]}",
        hint="try it alone: steelyard serve MODEL_DIR",
    )

"""Servers of the front's benchmarks.

The gateway with its engine process, and the naive front, over the same model folder.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard.catalog.architecture import Architecture
from steelyard.serve.client.load import list_models
from steelyard.serve.client.wire.address import Endpoint

__all__ = ["Running", "make_model", "naive", "ours", "refresh"]

ENGINE_CORE, FRONT_CORE = 1, 0
"""With two cores: engine on one, gateway and load on the other."""

_PROGRAM = """
import json, sys
from steelyard.serve.front.launch import ServeOptions, serve
options = {name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(sys.argv[2]).items()}
serve(sys.argv[1], ServeOptions(**options))
"""
_START_TIMEOUT_S = 120.0


@dataclass
class Running:
    """A server under test.

    Attributes:
        process: its first process.
        endpoint: where it answers.
    """

    process: subprocess.Popen[Any]
    endpoint: Endpoint

    @property
    def engine_pid(self) -> int:
        """The engine's process; the first process when it is the same."""
        listed = subprocess.run(
            ["ps", "-o", "pid=,args=", "--ppid", str(self.process.pid)],
            capture_output=True,
            text=True,
            check=False,
        )
        found = [
            int(line.split()[0]) for line in listed.stdout.splitlines() if "engine.process" in line
        ]
        return found[0] if found else self.process.pid

    def cpu_s(self) -> float:
        """Processor seconds of the first process."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_bytes(self, pid: int = 0) -> int:
        """Resident memory of a process, the first one by default."""
        return int(
            Path(f"/proc/{pid or self.process.pid}/statm").read_text().split()[1]
        ) * os.sysconf("SC_PAGE_SIZE")


def make_model(folder: Path, *, hidden_size: int, num_layers: int, vocab_size: int = 4096) -> float:
    """Save a Llama with random weights and a byte-level tokenizer whose further pieces are words.

    It says words only.

    Args:
        folder: made.
        hidden_size: width, a multiple of 32.
        num_layers: depth.
        vocab_size: of model and tokenizer.

    Returns:
        Parameters, in millions.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from steelyard.nn import checkpoint
    from steelyard.nn.transformer import build

    heads = max(hidden_size // 64, 2)
    arch = Architecture(
        name="bench-llama",
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=max(heads // 2, 1),
        head_dim=hidden_size // heads,
        intermediate_size=hidden_size * 11 // 4,
        vocab_size=vocab_size,
        max_positions=1024,
        tied_embeddings=False,
    )
    model = build(arch, seed=0).eval()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    assert model.output is not None
    with torch.inference_mode():
        model.output.weight[: len(letters)] = (
            0.0  # half a character would be held back, and the first text come late
        )
    checkpoint.save(model, folder)
    pieces = [*letters, *(f"Ġword{number}" for number in range(vocab_size - len(letters)))]
    tokenizer = Tokenizer(
        models.BPE(vocab={piece: index for index, piece in enumerate(pieces)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return sum(item.numel() for item in model.parameters()) / 1e6


def _free_port() -> int:
    """Find a port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def _running(command: list[str], port: int) -> Iterator[Running]:
    """Start a server, wait until it answers, and end it."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    server = Running(process, Endpoint.parse(f"http://127.0.0.1:{port}"))
    try:
        limit_s = time.monotonic() + _START_TIMEOUT_S
        while not _answers(server):
            assert process.poll() is None and time.monotonic() < limit_s, "the server did not start"
            time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(server: Running) -> bool:
    """Whether a server lists its model."""
    from steelyard.errors import BackendError

    try:
        return bool(list_models(server.endpoint))
    except BackendError:
        return False


@contextlib.contextmanager
def ours(folder: Path, *, is_pinned: bool = True, **options: Any) -> Iterator[Running]:
    """Serve by gateway and engine process.

    Args:
        folder: of the model.
        is_pinned: engine and gateway on a core each.
        options: of `ServeOptions`.

    Yields:
        The server.
    """
    port = _free_port()
    pins = {"engine_cores": [ENGINE_CORE], "gateway_cores": [FRONT_CORE]} if is_pinned else {}
    settings = {
        "port": port,
        "pool_bytes": 256 * 2**20,
        "threads": 1,
        "max_requests": 512,
        **pins,
        **options,
    }
    with _running(
        [sys.executable, "-c", _PROGRAM, str(folder), json.dumps(settings)], port
    ) as server:
        yield server


@contextlib.contextmanager
def naive(folder: Path, *, cores: str = "") -> Iterator[Running]:
    """Serve by the naive front.

    Args:
        folder: of the model.
        cores: apart by commas, all when empty.

    Yields:
        The server.
    """
    port = _free_port()
    module = "benchmarks.serve._naive_front"
    with _running(
        [sys.executable, "-m", module, str(folder), str(port), cores, str(256 * 2**20)], port
    ) as server:
        yield server


def refresh(seconds: float = 0.5) -> None:
    """Let the machine settle between two runs."""
    time.sleep(seconds)

"""Servers of the front's benchmarks: gateway with engine process, and naive front."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard.catalog.architecture import Architecture
from steelyard.errors import BackendError
from steelyard.serve.client.models import list_models
from steelyard.serve.client.wire.address import Endpoint

__all__ = ["Running", "make_model", "naive", "ours", "refresh", "running"]

ENGINE_CORE, FRONT_CORE = 1, 0
"""With two cores: engine on one, gateway and load on the other."""

_PROGRAM = """
import json, sys
from steelyard.config import convert
from steelyard.serve.front.launch import ServeOptions, serve
serve(sys.argv[1], convert(json.loads(sys.argv[2]), ServeOptions))
"""
_START_TIMEOUT_S = 120.0


@dataclass
class Running:
    """A server under test.

    Attributes:
        process: first process of the server.
        endpoint: address it answers at.
    """

    process: subprocess.Popen[Any]
    endpoint: Endpoint

    @property
    def engine_pid(self) -> int:
        """The process of the engine that works; the first process when it is the same."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it may end meanwhile
                fields = path.read_text().rpartition(")")[2].split()
                if int(fields[1]) == self.process.pid and fields[0] != "Z":
                    found.append((int(fields[19]), int(path.parent.name)))
        # A spare is younger than the engine that works, which was the spare before or the first.
        return min(found)[1] if found else self.process.pid

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
    """Save a Llama with random weights and a byte-level tokenizer; it says words only.

    Args:
        folder: folder to make.
        hidden_size: width, a multiple of 32.
        num_layers: depth.
        vocab_size: tokens of model and tokenizer.

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
        # A token of half a character would be held back, and the first text come late.
        model.output.weight[: len(letters)] = 0.0
    checkpoint.save(model, folder)
    pieces = [*letters, *(f"Ġword{number}" for number in range(vocab_size - len(letters)))]
    tokenizer = Tokenizer(
        models.BPE(vocab={piece: index for index, piece in enumerate(pieces)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return sum(item.numel() for item in model.parameters()) / 1e6


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[Running]:
    """Start a server, wait until it answers, and end it with all that it started.

    Args:
        command: program that prints "serving on" and its address.

    Yields:
        The server.
    """
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving on "), f"the server did not start: {line!r}"
        server = Running(process, Endpoint.parse(line.split()[-1]))
        limit_s = time.monotonic() + _START_TIMEOUT_S
        while not _answers(server):
            assert process.poll() is None and time.monotonic() < limit_s, "the server did not start"
            time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(server: Running) -> bool:
    """Whether a server lists its model."""
    try:
        return bool(list_models(server.endpoint))
    except BackendError:
        return False


@contextlib.contextmanager
def ours(
    folder: Path, *, is_pinned: bool = True, engine: dict[str, Any] | None = None, **options: Any
) -> Iterator[Running]:
    """Serve by gateway and engine process.

    Args:
        folder: folder of the model.
        is_pinned: engine and gateway on a core each.
        engine: fields of `EngineOptions`.
        options: other fields of `ServeOptions`.

    Yields:
        The server.
    """
    kind = {"pool_bytes": 256 * 2**20, "threads": 1} | (engine or {})
    settings = {"port": 0, "max_requests": 512} | options
    if is_pinned:
        kind["cores"] = [ENGINE_CORE]
        settings["gateway_cores"] = [FRONT_CORE]
    words = json.dumps({**settings, "engine": kind})
    with running([sys.executable, "-c", _PROGRAM, str(folder), words]) as server:
        yield server


@contextlib.contextmanager
def naive(folder: Path, *, cores: str = "") -> Iterator[Running]:
    """Serve by the naive front.

    Args:
        folder: folder of the model.
        cores: processor cores separated by commas, all when empty.

    Yields:
        The server.
    """
    command = [sys.executable, "-m", "benchmarks.serve._naive_front", str(folder)]
    with running([*command, cores, str(256 * 2**20)]) as server:
        yield server


def refresh(seconds: float = 0.5) -> None:
    """Let the machine settle between two runs."""
    time.sleep(seconds)

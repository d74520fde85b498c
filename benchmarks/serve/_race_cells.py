"""Cells of the race: one model in one type of weights, all engines in turn.

A cell that is done is kept beside the results, so that a race that was cut off goes on. It is run
again when our engine's sources or a peer's pins have changed since.
"""

import hashlib
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from benchmarks import peers
from benchmarks.machine import processor_class
from benchmarks.serve._json_process import JsonProcess, peer_environment
from benchmarks.serve._race_loads import Load, figure, loads, stream_load
from benchmarks.serve._race_models import RaceModel
from benchmarks.serve._shapes import llama_shape

import steelyard
from steelyard.errors import BackendError
from steelyard.files import write_json

__all__ = ["PEERS", "Cell", "Figures", "kept", "run_cell"]

PEERS = {"vllm": "vllm-cpu", "openvino": "openvino", "llama": "llama-cpp"}
"""Environments of the engines."""
STREAMS = {4: (24, 0.4), 16: (48, 0.7), 64: (96, 0.9)}
"""Most in flight: requests, and their rate over what the best peer finishes of the batch."""
_PROGRAM = Path(__file__).parent / "_race_program.py"
_LIMITS = {
    "max_model_len": 2048,
    "max_num_seqs": 64,
    "token_budget": 512,
    "cache_tokens": 64 * 1536,
}
_REST_S = 0.5
_SOURCES = ("serve/running", "serve/scheduling", "serve/kv")
_KEPT = Path(__file__).parent.parent / "results" / "cells"


@dataclass(frozen=True)
class Cell:
    """A part of the race.

    Attributes:
        model: name of the shape.
        weights: type of the weights of every engine.
        count: requests of the batch.
        rounds: each engine's runs.
        streams: whether the Poisson arrivals run too.
    """

    model: str
    weights: str
    count: int = 64
    rounds: int = 3
    streams: bool = True

    @property
    def path(self) -> Path:
        """Where its figures are kept, by the processor's class."""
        return _KEPT / f"serve_race-{processor_class()}-{self.model}-{self.weights}.json"


@dataclass
class Figures:
    """What a cell found.

    Attributes:
        names: of the engines, with versions.
        values: by engine and load, a figure of each round.
        absent: peers that did not run, and why.
        state: of sources and pins.
    """

    names: dict[str, str] = field(default_factory=dict)
    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    state: str = ""

    def note(self, engine: str, load: str, value: float) -> None:
        """Keep a figure."""
        self.values.setdefault(engine, {}).setdefault(load, []).append(value)


def kept(cell: Cell) -> Figures | None:
    """Return the figures of an earlier run that still hold, or None."""
    if not cell.path.exists():
        return None
    found = Figures(**json.loads(cell.path.read_text()))
    return found if found.state == _state() and not found.absent else None


def run_cell(cell: Cell, model: RaceModel, engines: list[str]) -> Figures:
    """Run all engines in turn.

    Args:
        cell: what to run.
        model: the model, which others may have loaded before.
        engines: peers to run beside ours.

    Returns:
        The figures; those of a whole race are kept.
    """
    found, vocab_size = Figures(state=_state()), llama_shape(cell.model).vocab_size
    with ExitStack() as stack:
        sides = _started(stack, cell, model, engines, found)
        _one_round(sides, loads(2, vocab_size, 0), Figures())  # warms up
        for turn in range(cell.rounds):
            _one_round(sides, loads(cell.count, vocab_size, 1 + turn), found)
        if cell.streams and len(sides) > 1:
            _one_round(sides, _arrivals(cell, found, vocab_size), found)
    if set(engines) == set(PEERS):
        write_json(cell.path, vars(found))
    return found


def _arrivals(cell: Cell, found: Figures, vocab_size: int) -> dict[str, Load]:
    """Draw arrivals whose rate follows the best peer's output tokens per second."""
    best = max(sum(v["batch"]) / cell.rounds for e, v in found.values.items() if e in PEERS)
    per_s = best / 72.0  # mean output tokens of a request
    return {
        f"{streams} streams": stream_load(streams, count, per_s * share, vocab_size)
        for streams, (count, share) in STREAMS.items()
    }


def _one_round(sides: dict[str, JsonProcess], asked: dict[str, Load], found: Figures) -> None:
    """Let every engine answer every load, one engine awake at a time."""
    for name, load in asked.items():
        for engine, side in sides.items():
            with _awake(side):
                answer = side.ask(load.work())
            found.note(engine, name, figure(name, load, answer))


@contextmanager
def _awake(side: JsonProcess) -> Iterator[None]:
    """Wake an engine, and let it settle."""
    side.resume()
    time.sleep(_REST_S)
    yield
    side.pause()


def _started(
    stack: ExitStack, cell: Cell, model: RaceModel, engines: list[str], found: Figures
) -> dict[str, JsonProcess]:
    """Start ours and those peers that have the type; the others are named."""
    sides = {}
    for engine in ["steelyard", *engines]:
        if engine == "vllm" and cell.weights not in ("fp32", "bf16"):
            continue  # it has no product of these types that a folder of random weights can ask for
        try:
            side = _start(engine, cell, model)
        except BackendError as error:
            if engine == "steelyard":
                raise
            found.absent[engine] = str(error)
            print(f"{PEERS[engine]} is absent: {error}. {error.hint}")
            continue
        stack.callback(side.close)
        side.pause()
        sides[engine], found.names[engine] = side, side.name
    return sides


def _start(engine: str, cell: Cell, model: RaceModel) -> JsonProcess:
    """Start an engine in its own interpreter."""
    ours = engine == "steelyard"
    interpreter = sys.executable if ours else str(peers.python(PEERS[engine]))
    options = _LIMITS | {
        "engine": engine,
        "model": str(model.path(engine, cell.weights)),
        "weights": cell.weights,
        "threads": torch.get_num_threads(),
    }
    environment = peer_environment()
    if ours:
        environment["PYTHONPATH"] = str(Path(steelyard.__file__).parent.parent)
    hint = "" if ours else f"python -m benchmarks peers install {PEERS[engine]}"
    return JsonProcess([interpreter, str(_PROGRAM)], options, environment, hint)


def _state() -> str:
    """Return a hash of our engine's sources and the peers' pins."""
    digest = hashlib.sha256(
        json.dumps({name: peers.known()[name] for name in PEERS.values()}).encode()
    )
    root = Path(steelyard.__file__).parent
    for folder in _SOURCES:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".py", ".h", ".cpp"):
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]

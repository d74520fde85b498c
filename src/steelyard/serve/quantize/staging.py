"""The hidden folder in which a quantization works, and what is refused before it begins."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import msgspec

from steelyard.catalog.probes.memory import memory_bytes
from steelyard.config import to_plain
from steelyard.errors import CapacityError, ConfigError
from steelyard.files import read_json, write_json
from steelyard.nn.transformer import Transformer
from steelyard.serve.quantize.options import QuantizeOptions
from steelyard.serve.quantize.sequences import Sequences
from steelyard.units import pretty

__all__ = [
    "RECORD",
    "continue_or_clear",
    "read_source",
    "refuse_small_disk",
    "refuse_small_memory",
]

RECORD = "quantize.json"
"""Name of the file in a written folder that holds what was measured."""
_REFUSED = {
    "gpt2": "its matrices are stored with inputs as rows",
    "gemma3": "it has a half for pictures",
}
"""Types of models that cannot be written, and why."""


def read_source(source: Path, out: Path) -> dict[str, Any]:
    """Read a model's configuration; refuse what cannot be quantized, or replaced.

    Args:
        source: folder of the model.
        out: folder that shall be made or replaced.

    Returns:
        Content of `config.json`.

    Raises:
        ConfigError: the model cannot be quantized, or `out` is something else.
        DataError: there is no model.
    """
    if source.is_file():
        raise ConfigError(
            f"{source} is no folder", hint="give the Hugging Face folder that it was made from"
        )
    config = read_json(source / "config.json")
    if config.get("quantization_config"):
        raise ConfigError(
            f"{source} is quantized already", hint="give the folder that it was made from"
        )
    kind = config.get("model_type")
    if kind in _REFUSED:
        raise ConfigError(
            f"models of type {kind} cannot be quantized: {_REFUSED[kind]}",
            hint="serve it with --weights int8 or int4, which rounds it when it is loaded",
        )
    is_ours = (out / RECORD).is_file()
    if out.resolve() == source.resolve() or (
        out.exists() and not is_ours and (out.is_file() or any(out.iterdir()))
    ):
        raise ConfigError(
            f"{out} exists and was not written by this command", hint="name another with --out"
        )
    return config


def continue_or_clear(stage: Path, source: Path, options: QuantizeOptions) -> None:
    """Keep what an equal run has left in the hidden folder, and remove all else.

    Args:
        stage: the hidden folder.
        source: folder of the model.
        options: how it is quantized.
    """
    files = [*source.glob("*.safetensors"), source / "config.json"]
    inputs = [path for path in (*files, options.calibrate) if path and path.exists()]
    facts = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(inputs)]
    plain = to_plain(options)
    del plain["threads"]
    key = hashlib.sha256(msgspec.json.encode([plain, facts])).hexdigest()
    note = stage / "job.json"
    if note.exists() and read_json(note) == {"key": key}:
        return
    for path in stage.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != ".lock":
            path.unlink()
    write_json(note, {"key": key})


def refuse_small_disk(model: Transformer, stage: Path, methods: int) -> None:
    """Refuse a disk that the layers of all methods and the finished folder would fill.

    Args:
        model: what is quantized.
        stage: the hidden folder.
        methods: number of compared methods.

    Raises:
        CapacityError: there is too little room.
    """
    # A folder at one byte per weight at most; tables stay as they are.
    tables = sum(item.nbytes for name, item in model.state_dict().items() if "layers" not in name)
    layers = sum(item.numel() for name, item in model.state_dict().items() if "layers" in name)
    needed = 2 * tables + (methods + 1) * layers
    free = shutil.disk_usage(stage).free
    if needed > free:
        raise CapacityError(
            f"{pretty(needed, 'byte')} are needed beside {stage}, and {pretty(free, 'byte')} free",
            hint="choose another --out folder, or one --method",
        )


def refuse_small_memory(model: Transformer, sequences: Sequences, streams: int) -> None:
    """Refuse what memory cannot hold.

    Args:
        model: what is quantized.
        sequences: those that pass it.
        streams: how many times they do at once.

    Raises:
        CapacityError: there is too little memory.
    """
    arch = model.architecture
    layer = max(sum(item.numel() for item in layer.parameters()) for layer in model.layers)
    widest = max(arch.intermediate_size, arch.num_heads * arch.head_dim, arch.hidden_size)
    needed = 4 * (
        streams * sequences.tokens.numel() * arch.hidden_size
        # The layer, its copy, and what rounding holds; the moments and their inverse.
        + 4 * layer
        + 4 * widest**2
    )
    there = memory_bytes("cpu")
    if needed > there:
        raise CapacityError(
            f"{pretty(needed, 'byte')} of memory are needed, of {pretty(there, 'byte')}",
            hint="lower --calibration-tokens, or choose one --method",
        )

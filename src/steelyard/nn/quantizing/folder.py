"""A folder of quantized weights that `checkpoint.load` and `transformers` read."""

import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from steelyard.nn.checkpoint import finish_folder, shard_names
from steelyard.nn.mapped import write_tensors
from steelyard.nn.names import slots
from steelyard.nn.quantizing.stack import StackRecipe, layer_file, module_schemes
from steelyard.nn.quantizing.tensors import quantization_config
from steelyard.nn.transformer import Transformer

__all__ = ["write_quantized"]

_CARRIED = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)
"""What a folder may hold beside weights and configuration."""
_SHARD_BYTES = 2**30


def write_quantized(
    model: Transformer,
    config: dict[str, Any],
    source: Path,
    recipe: StackRecipe,
    layers: tuple[Path, str],
    folder: Path,
) -> int:
    """Write a folder from layers that `stack.quantize_stack` left.

    Memory holds one file of weights at a time.

    Args:
        model: what was quantized; what lies outside its layers is stored as it is.
        config: content of its `config.json`.
        source: its folder, whose tokenizer is carried along.
        recipe: how it was quantized.
        layers: the folder of the layers, and the method that is taken.
        folder: folder that is written; what lies in it is removed.

    Returns:
        Bytes of all tensors.

    Raises:
        CapacityError: the disk is full.
    """
    kind = config["model_type"]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    outside = folder / "outside.part"
    state = model.state_dict()
    kept = [slot for slot in slots(model.architecture, kind) if not slot.name.startswith("layers.")]
    write_tensors(outside, {slot.parts[0]: state[slot.name].contiguous() for slot in kept})
    count = model.architecture.num_layers
    files = [layer_file(*layers, index) for index in range(count)] + [outside]
    places, total = _join(files, folder)
    outside.unlink()
    modules = module_schemes(model, kind, recipe)
    for name in _CARRIED:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    settings = {"quantization_config": quantization_config(modules, recipe.zero_points)}
    finish_folder(folder, config | settings, places, total)
    return total


def _join(files: list[Path], folder: Path) -> tuple[dict[str, str], int]:
    """Write the tensors of small files as few larger ones; return where each is, and all bytes."""
    shards: list[list[Path]] = [[]]
    used = 0
    for path in files:
        size = path.stat().st_size
        if used and used + size > _SHARD_BYTES:
            shards.append([])
            used = 0
        shards[-1].append(path)
        used += size
    places: dict[str, str] = {}
    total = 0
    for name, parts in zip(shard_names(len(shards)), shards, strict=True):
        tensors = {key: item for path in parts for key, item in load_file(path).items()}
        write_tensors(folder / name, tensors, {"format": "pt"})
        places |= dict.fromkeys(tensors, name)
        total += sum(item.nbytes for item in tensors.values())
    return places, total

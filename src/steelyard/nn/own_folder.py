"""Folders of models that no Hugging Face class has the shape of, in this package's own layout.

`config.json` holds the architecture, and the weight files hold the parameters by their own names.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from steelyard.catalog.architecture import Architecture
from steelyard.config import convert, to_plain
from steelyard.errors import DataError
from steelyard.nn.mapped import Weights

__all__ = [
    "INDEX",
    "OWN_TYPE",
    "WEIGHTS",
    "fill_from",
    "own_architecture",
    "own_config",
    "own_state",
]

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
"""Files of a folder's weights: all of them, or where each stands."""
OWN_TYPE = "steelyard"
"""`model_type` of such a folder."""


def own_config(arch: Architecture) -> dict[str, Any]:
    """Return the content of `config.json`.

    Args:
        arch: any architecture.

    Returns:
        JSON values.
    """
    return {"model_type": OWN_TYPE, "architecture": to_plain(arch)}


def own_architecture(config: Mapping[str, Any], directory: Path) -> Architecture:
    """Read what `own_config` wrote.

    Args:
        config: content of `config.json`.
        directory: its folder, for messages.

    Returns:
        The architecture.

    Raises:
        ConfigError: a field is missing, unknown or of another type.
    """
    where = f"{directory / 'config.json'}: architecture"
    return convert(config.get("architecture", {}), Architecture, where=where)


def own_state(model: nn.Module) -> dict[str, Tensor]:
    """Return what a model's files hold.

    Args:
        model: any module.

    Returns:
        Tensors by name, of modules that stand in two places the first alone.
    """
    found: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        found.setdefault(id(tensor), (name, tensor))
    return {name: tensor.detach().contiguous() for name, tensor in found.values()}


def fill_from(
    model: nn.Module, weights: Weights, directory: Path, dtype: torch.dtype | None
) -> None:
    """Read the parameters of a model.

    Args:
        model: laid out as its architecture says.
        weights: the files.
        directory: their folder, for messages.
        dtype: type of the result; None for that of each tensor as stored.

    Raises:
        DataError: a tensor is missing, left over, or has another shape.
    """
    wanted = {name: tuple(tensor.shape) for name, tensor in own_state(model).items()}
    found = {name: tuple(weights.entry(name).shape) for name in weights.files}
    if wanted != found:
        names = sorted(
            name for name in wanted.keys() | found if wanted.get(name) != found.get(name)
        )
        first = names[0]
        raise DataError(
            f"{directory}: {len(names)} tensors are not the model's; {first} has shape "
            f"{found.get(first, 'none')}, but config.json asks for {wanted.get(first, 'none')}",
            hint="config.json and weights must belong to the same model",
        )
    state = {name: weights.files[name].read(name).to(dtype).clone() for name in wanted}
    # What is missing stands in two places; nothing else is, as compared above.
    model.load_state_dict(state, strict=False, assign=True)

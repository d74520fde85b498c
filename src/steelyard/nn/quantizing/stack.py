"""All layers of a model in fewer bits, one after another, each kept on disk as it is done."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from steelyard.nn.mapped import write_tensors
from steelyard.nn.names import slots
from steelyard.nn.quantizing.layer import (
    MATRICES,
    LayerRecipe,
    Method,
    StoredType,
    group_of,
    quantize_layer,
)
from steelyard.nn.quantizing.states import HiddenStates, wide_layer
from steelyard.nn.quantizing.tensors import fill_layer, layer_tensors
from steelyard.nn.slot import Slot
from steelyard.nn.transformer import Transformer

__all__ = [
    "Losses",
    "Passage",
    "StackRecipe",
    "layer_file",
    "layer_slots",
    "module_schemes",
    "quantize_stack",
    "uniform",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class StackRecipe:
    """How a model is rounded.

    Attributes:
        types: type of each matrix, by name, for every layer.
        group: weights that share a scale.
        zero_points: whether int4 groups have zero points.
    """

    types: tuple[Mapping[str, StoredType], ...]
    group: int
    zero_points: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """Sequences on which a loss is measured.

    Attributes:
        rows: which of all sequences.
        first: tokens before this one are given, not predicted.
    """

    rows: slice
    first: int = 0


Losses = dict[str, Tensor]
"""Nats per token of each sequence, by passage."""


def layer_slots(model: Transformer, model_type: str, index: int) -> list[Slot]:
    """Return the stored places of a layer's parameters, by their names in the layer."""
    start = f"layers.{index}."
    return [
        replace(slot, name=slot.name.removeprefix(start))
        for slot in slots(model.architecture, model_type)
        if slot.name.startswith(start)
    ]


def layer_file(folder: Path, method: str, index: int) -> Path:
    """Return the file of a layer that was rounded by a method."""
    return folder / method / f"layer-{index:05d}.safetensors"


def module_schemes(
    model: Transformer, model_type: str, recipe: StackRecipe
) -> dict[str, tuple[int, int]]:
    """Return bits and group of each stored linear module; see `tensors.quantization_config`."""
    found: dict[str, tuple[int, int]] = {}
    for index, types in enumerate(recipe.types):
        for slot in layer_slots(model, model_type, index):
            name = slot.name.removesuffix(".weight")
            if name not in MATRICES:
                continue
            group = group_of(slot.width, recipe.group)
            kind = "int8" if types[name] == "int4" and not group else types[name]
            scheme = {"int4": (4, group), "int8": (8, 0), "plain": (0, 0)}[kind]
            found |= {part.removesuffix(".weight"): scheme for part in slot.parts}
    return found


@torch.no_grad()
def quantize_stack(
    model: Transformer,
    model_type: str,
    recipe: StackRecipe,
    methods: tuple[Method, ...],
    folder: Path,
    *,
    tokens: Tensor,
    calibration: slice,
    passages: dict[str, Passage],
    advance: Callable[[int, str], None] = lambda done, words: None,
) -> dict[str, Losses]:
    """Round a model with each of several methods, layer by layer, and measure what it loses.

    A layer that a killed run has left in the folder is taken from there. Losses are those of the
    stored tensors as the loader reads them, with activations in float32.

    Args:
        model: model on the CPU; mapped from its file, it needs no more memory than a float32 layer,
            the moments of its activations, and a residual stream per method and one more.
        model_type: type that its `config.json` names.
        recipe: how.
        methods: compared methods.
        folder: where layers are kept, see `layer_file`.
        tokens: int64 [S, T], all sequences.
        calibration: those that codes may be chosen by.
        passages: those that losses are measured on.
        advance: told the layers done, and a few words.

    Returns:
        Losses by method; "before" for those of the model itself.

    Raises:
        ConfigError: weights or activations are not finite.
        CapacityError: the disk is full.
    """
    before = HiddenStates(model, tokens)
    states: dict[Method, HiddenStates] = {method: before.copy() for method in methods}
    dtype = model.embedding.weight.dtype
    for index in range(model.architecture.num_layers):
        places = layer_slots(model, model_type, index)
        for method, standing in states.items():
            path = layer_file(folder, method, index)
            layer = wide_layer(model, index)
            if not path.exists():  # a run that was killed has left those it had finished
                each = LayerRecipe(
                    types=recipe.types[index],
                    method=method,
                    group=recipe.group,
                    zero_points=recipe.zero_points,
                    dtype=dtype,
                )
                codes = quantize_layer(layer, each, standing, calibration)
                write_tensors(path, layer_tensors(layer, codes, places, dtype))
            # Read back, so that the next layer sees what the loader will.
            fill_layer(layer, places, path)
            standing.advance(layer)
            advance(index, method)
        before.advance(wide_layer(model, index))
        advance(index + 1, "")
    found = {"before": before} | states
    return {
        name: {key: item.losses(part.first, part.rows) for key, part in passages.items()}
        for name, item in found.items()
    }


def uniform(num_layers: int, kind: StoredType) -> tuple[Mapping[str, StoredType], ...]:
    """Return one type for all matrices of so many layers."""
    return tuple(dict.fromkeys(MATRICES, kind) for _ in range(num_layers))

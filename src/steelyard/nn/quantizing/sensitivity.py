"""How much the loss changes when one matrix alone is rounded, and when chosen ones are together."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from steelyard.nn.layer import DecoderLayer
from steelyard.nn.quantizing.layer import (
    MATRICES,
    LayerRecipe,
    StoredType,
    group_of,
    quantize_layer,
)
from steelyard.nn.quantizing.stack import Passage
from steelyard.nn.quantizing.states import HiddenStates, matrix_of, wide_layer
from steelyard.nn.transformer import Transformer

__all__ = ["Sensitivity", "losses_together", "measure_sensitivity"]

_ROUNDED: tuple[StoredType, ...] = ("int4", "int8")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sensitivity:
    """What rounding one matrix does.

    Attributes:
        layer: its layer.
        matrix: its name in the layer.
        kind: type it is rounded to; "plain" for none.
        num_bytes: bytes that it then takes.
        losses: change of the loss of each sequence, float64 [S], nats per token.
    """

    layer: int
    matrix: str
    kind: StoredType
    num_bytes: int
    losses: Tensor


@torch.no_grad()
def measure_sensitivity(
    model: Transformer,
    recipe: LayerRecipe,
    *,
    tokens: Tensor,
    calibration: slice,
    choice: Passage,
    advance: Callable[[int, str], None] = lambda done, words: None,
) -> list[Sensitivity]:
    """Round each matrix of a model alone, in each type, and measure the loss of the whole model.

    Args:
        model: model on the CPU.
        recipe: how matrices are rounded; its types are not looked at.
        tokens: int64 [S, T], all sequences.
        calibration: those that codes are fitted to.
        choice: those that the loss is measured on.
        advance: told the layers done, and a few words.

    Returns:
        One record for each matrix and type.

    Raises:
        ConfigError: weights or activations are not finite.
    """
    states = HiddenStates(model, tokens)
    (whole,) = _losses_after(states, [_readable(model, 0)], choice)
    found: list[Sensitivity] = []
    for index in range(model.architecture.num_layers):
        layers: dict[tuple[str, StoredType], DecoderLayer] = {}
        for name in MATRICES:
            for kind in _ROUNDED:
                types: dict[str, StoredType] = dict.fromkeys(MATRICES, "plain")
                types[name] = kind
                layers[name, kind] = layer = wide_layer(model, index)
                quantize_layer(layer, replace(recipe, types=types), states, calibration)
        losses = dict(
            zip(layers, _losses_after(states, list(layers.values()), choice), strict=True)
        )
        for name in MATRICES:
            matrix = matrix_of(model.layers[index], name)
            for kind in (*_ROUNDED, "plain"):
                found.append(
                    Sensitivity(
                        layer=index,
                        matrix=name,
                        kind=kind,
                        num_bytes=_num_bytes(matrix, kind, recipe),
                        losses=losses.get((name, kind), whole) - whole,
                    )
                )
        states.advance(_readable(model, index))
        advance(index + 1, "sensitivity")
    return found


@torch.no_grad()
def losses_together(
    model: Transformer,
    recipe: LayerRecipe,
    types: Sequence[Mapping[str, StoredType]],
    *,
    tokens: Tensor,
    calibration: slice,
    choice: Passage,
) -> Tensor:
    """Round the matrices of all layers, one after another, and measure the loss.

    Args:
        model: model on the CPU.
        recipe: how matrices are rounded; its types are not looked at.
        types: type of each matrix, by name, for every layer; all "plain" for the model as it is.
        tokens: int64 [S, T], all sequences.
        calibration: those that codes are fitted to.
        choice: those that the loss is measured on.

    Returns:
        Nats per token of each of these, float64 [S].

    Raises:
        ConfigError: weights or activations are not finite.
    """
    states = HiddenStates(model, tokens)
    for index, each in enumerate(types):
        layer = wide_layer(model, index)
        quantize_layer(layer, replace(recipe, types=each), states, calibration)
        states.advance(layer)
    return states.losses(choice.first, choice.rows)


def _readable(model: Transformer, index: int) -> nn.Module:
    """Return a layer in float32, itself where it is."""
    is_wide = model.embedding.weight.dtype == torch.float32
    return model.layers[index] if is_wide else wide_layer(model, index)


def _losses_after(states: HiddenStates, variants: list[nn.Module], choice: Passage) -> list[Tensor]:
    """Return the losses of sequences that pass each variant of the next layer and then the rest."""
    moving = []
    for layer in variants:
        twin = copy.copy(states)
        twin.hidden, twin.tokens = states.hidden[choice.rows].clone(), states.tokens[choice.rows]
        twin.advance(layer)
        moving.append(twin)
    for index in range(states.index + 1, states.model.architecture.num_layers):
        # One layer for all variants: where it has to be widened, it is widened once.
        layer = _readable(states.model, index)
        for twin in moving:
            twin.advance(layer)
    return [twin.losses(choice.first) for twin in moving]


def _num_bytes(matrix: Tensor, kind: StoredType, recipe: LayerRecipe) -> int:
    """Return the bytes of a matrix [N, K] as it is stored."""
    rows, width = matrix.shape
    group = group_of(width, recipe.group)
    if kind == "plain":
        return matrix.numel() * recipe.dtype.itemsize
    if kind == "int8" or not group:
        return matrix.numel() + rows * recipe.dtype.itemsize
    return matrix.numel() // 2 + rows * (width // group) * (4 + recipe.zero_points) // 2

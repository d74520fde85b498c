"""The matrices of one layer in fewer bits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from steelyard.errors import ConfigError
from steelyard.nn.layer import DecoderLayer
from steelyard.nn.numerics.int4 import GROUPS, Int4Groups, round_int4
from steelyard.nn.numerics.int4_scales import best_scales
from steelyard.nn.numerics.int8 import Int8Rows, quantize_int8
from steelyard.nn.quantizing.awq import protect
from steelyard.nn.quantizing.gptq import gptq_int4
from steelyard.nn.quantizing.moments import InputMoments, input_moments
from steelyard.nn.quantizing.states import HiddenStates, matrix_of

__all__ = ["MATRICES", "LayerRecipe", "Method", "StoredType", "group_of", "quantize_layer"]

MATRICES = ("qkv", "out", "up", "down")
"""The matrices of a layer, in the order in which activations meet them."""
StoredType = Literal["int4", "int8", "plain"]
"""How a matrix is stored: in groups of 16 levels, with a scale per output, or as it was."""
Method = Literal["nearest", "awq", "gptq", "awq+gptq"]
"""How int4 codes are found; the last three need activations."""

Record = Int4Groups | Int8Rows


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerRecipe:
    """How a layer is rounded.

    Attributes:
        types: type of each of `MATRICES`.
        method: how int4 codes are found.
        group: weights that share a scale.
        zero_points: whether int4 groups have zero points.
        dtype: type in which plain tensors are stored.
    """

    types: Mapping[str, StoredType]
    method: Method
    group: int
    zero_points: bool
    dtype: torch.dtype

    @property
    def scale_dtype(self) -> torch.dtype:
        """Type of int4 scales: 16 bits, and what readers do not round again."""
        return torch.float16 if self.dtype == torch.float32 else self.dtype


def group_of(width: int, group: int) -> int:
    """Return the largest group of at most `group` weights that divides a row; 0 if none does."""
    return next((size for size in reversed(GROUPS) if size <= group and width % size == 0), 0)


@torch.no_grad()
def quantize_layer(
    layer: DecoderLayer, recipe: LayerRecipe, states: HiddenStates, rows: slice
) -> dict[str, Record]:
    """Round the matrices of a layer.

    Args:
        layer: layer in float32; its other parameters change where input channels are scaled.
        recipe: how.
        states: where calibration sequences stand before the layer, other than for "nearest".
        rows: the calibration sequences among them.

    Returns:
        Codes of each matrix that is not plain; a matrix whose rows no group divides is int8.

    Raises:
        ConfigError: weights or activations are not finite.
    """
    narrow = [name for name in MATRICES if recipe.types[name] == "int4"]
    if "awq" in recipe.method and narrow:
        protect(
            layer,
            input_moments(layer, states, rows, narrow),
            lambda weights, importance: _nearest(weights, recipe, importance).dequantize(),
            recipe.dtype,
        )
    found: dict[str, Record] = {}
    for name in MATRICES:
        matrix, kind = matrix_of(layer, name), recipe.types[name]
        if kind == "plain":
            continue
        if kind == "int8" or not group_of(matrix.shape[1], recipe.group):
            found[name] = quantize_int8(matrix, scale_dtype=recipe.dtype)
        elif recipe.method == "nearest":
            found[name] = _nearest(matrix, recipe, None)
        else:
            # What earlier matrices of the layer lost is in the activations already.
            moment = input_moments(layer, states, rows, [name])[name]
            found[name] = _calibrated(matrix, recipe, moment)
        matrix.copy_(found[name].dequantize())
    return found


def _nearest(weights: Tensor, recipe: LayerRecipe, importance: Tensor | None) -> Int4Groups:
    """Round to the nearest of the best levels."""
    if not torch.isfinite(weights).all():
        raise ConfigError("weights are not finite", hint="quantize the model as it was trained")
    group = group_of(weights.shape[1], recipe.group)
    scales, zeros = best_scales(
        weights,
        group=group,
        zero_points=recipe.zero_points,
        importance=importance,
        dtype=recipe.scale_dtype,
    )
    return round_int4(weights, scales, zeros, group=group)


def _calibrated(weights: Tensor, recipe: LayerRecipe, moment: InputMoments) -> Int4Groups:
    """Round with the moments of what is multiplied with the weights."""
    if "gptq" not in recipe.method:
        return _nearest(weights, recipe, moment.hessian.diagonal())
    return gptq_int4(
        weights,
        moment.hessian,
        group=group_of(weights.shape[1], recipe.group),
        zero_points=recipe.zero_points,
        dtype=recipe.scale_dtype,
    )

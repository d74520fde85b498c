"""Which number type the linear layers of a served model are computed in."""

from typing import Literal, cast

import torch

from steelyard.errors import ConfigError
from steelyard.nn.stored import StoredLinear
from steelyard.nn.transformer import Transformer

__all__ = ["INT4_GROUP", "ComputedIn", "chosen_weights", "head_type", "kv_type"]

ComputedIn = Literal["fp32", "bf16", "int8", "int4"]
"""Names of `cost.WEIGHT_TYPES` that the engine computes in."""
INT4_GROUP = 32
"""Weights that share a scale, as `cost.WEIGHT_TYPES` counts them."""
_CODED: tuple[ComputedIn, ...] = ("int4", "int8")
_STORED: dict[torch.dtype, ComputedIn] = {torch.float32: "fp32", torch.bfloat16: "bf16"}


def chosen_weights(model: Transformer, asked: str) -> ComputedIn | None:
    """Return the type in which the linear layers of a model are computed.

    Args:
        model: a decoder, its weights as they were loaded.
        asked: a type, or "auto" for the one that the model has: that of its codes where it has
            some, "int4" where both have.

    Returns:
        The type; None where only the model's own forward can run it: not on a CPU, or neither
        float32 nor bfloat16.

    Raises:
        ConfigError: a type is asked for that cannot be made of this model.
    """
    weight = next(model.parameters())
    stored = _STORED.get(weight.dtype) if weight.device.type == "cpu" else None
    if asked == "auto":
        kinds = {item.kind for item in model.modules() if isinstance(item, StoredLinear)}
        coded: list[ComputedIn] = [kind for kind in _CODED if kind in kinds]
        return coded[0] if stored and coded else stored
    if stored is None:
        raise ConfigError(
            f"weights are to be {asked}, but the model has {weight.dtype} on {weight.device}",
            hint="leave the type out, or load the model in float32 or bfloat16 on the CPU",
        )
    return cast(ComputedIn, asked)


def kv_type(
    model: Transformer, weights: ComputedIn | None, asked: torch.dtype | None
) -> torch.dtype:
    """Return the type of keys and values.

    Args:
        model: a decoder.
        weights: type in which it is computed, from `chosen_weights`.
        asked: a type, or None for one that is no wider than the computation.

    Returns:
        What is asked; else float32 beside fp32 weights, bfloat16 beside narrower ones, and the
        model's own type where only its own forward runs.
    """
    if asked is not None:
        return asked
    if weights is None:
        return next(model.parameters()).dtype
    return torch.float32 if weights == "fp32" else torch.bfloat16


def head_type(weights: ComputedIn) -> ComputedIn:
    """Return the type of the output head: eight bits where the layers have four."""
    return "int8" if weights == "int4" else weights

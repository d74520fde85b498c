"""Draws initial weights."""

import math

import torch
from torch import Tensor, nn

from steelyard.catalog.architecture import Architecture
from steelyard.nn.initial.schemes import weight_gain
from steelyard.nn.moe.routers import CosineRouter

__all__ = ["fill"]

_RESIDUAL = ("out.weight", "down.weight", "experts.down")
_SCALED = (*_RESIDUAL, "up.weight", "experts.up")
_STEERING = ("qkv.weight", "gate.weight", "cross.queries.weight", "cross.keys_values.weight")
"""Endings of the names of matrices by what their draws depend on."""


@torch.no_grad()
def fill(model: nn.Module, arch: Architecture, generator: torch.Generator) -> None:
    """Fill all parameters, in the order in which the model lists them.

    Norms before attention and MLP alone: normal with standard deviation sqrt(2 / (5 width)), less
    by sqrt(2 layers) where the residual stream is written. With `residual_norm`, `deepnorm` and
    `subln` the matrices of layers have Xavier's deviation times the gain of the scheme. Biases are
    0 and gains 1 (stored as 0 with `unit_offset_norm`).

    Args:
        model: module whose parameters are named as in `nn.transformer.Transformer`.
        arch: its architecture.
        generator: generator of the draws, on the CPU.

    Source: Nguyen and Salazar 2019 (arXiv 1910.05895), section 2.2 (small initialization); Radford
        et al. 2019 (GPT-2), section 2.3 (scaling of residual layers); `initial.schemes`.
    """
    spread = math.sqrt(2 / (5 * arch.hidden_size))
    residual_spread = spread / math.sqrt(2 * arch.num_layers)
    gain = 0.0 if arch.unit_offset_norm else 1.0
    is_scaled = arch.norms_sums or arch.subln
    for name, parameter in model.named_parameters():
        # One generator and one order of draws: the seed then fixes every weight.
        if parameter.ndim == 1 or name.endswith("bias"):
            parameter.fill_(gain if "norm" in name and name.endswith("weight") else 0.0)
        elif is_scaled and name.endswith((*_SCALED, *_STEERING)):
            parameter.normal_(0.0, 1.0, generator=generator)
            parameter.mul_(_deviations(arch, name, parameter))
        else:
            is_residual = name.endswith(_RESIDUAL)
            parameter.normal_(0.0, residual_spread if is_residual else spread, generator=generator)
    for module in model.modules():
        if isinstance(module, CosineRouter):
            module.fill(generator)


def _deviations(arch: Architecture, name: str, parameter: Tensor) -> Tensor:
    """Return Xavier's deviation of each row of a matrix, [R, 1], with the gain of the scheme.

    Matrices that are stored as one are counted as the separate ones they are.
    """
    part = "encoder" if arch.kind == "encoder" or name.startswith("encoder.") else "decoder"
    rows, columns = parameter.shape[-2:]
    gain = weight_gain(arch, part)
    if name.endswith("qkv.weight"):
        keys = arch.num_kv_heads * arch.head_dim
        # Queries and keys only steer a softmax: their scale does not enter the update's.
        outputs, gains = (rows - 2 * keys, keys, keys), (1.0, 1.0, gain)
    elif name.endswith("keys_values.weight"):
        outputs, gains = (rows // 2,) * 2, (1.0, gain)
    elif name.endswith(("up.weight", "experts.up")) and arch.is_gated:
        outputs, gains = (rows // 2,) * 2, (gain, gain)
    else:
        outputs, gains = (rows,), (gain if name.endswith(_SCALED) else 1.0,)
    spreads = [
        torch.full((count, 1), one * math.sqrt(2 / (count + columns)))
        for count, one in zip(outputs, gains, strict=True)
    ]
    return torch.cat(spreads)

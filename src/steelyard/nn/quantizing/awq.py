"""Scales of input channels that protect what large activations multiply."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from steelyard.nn.layer import DecoderLayer
from steelyard.nn.parts.norm import UnitOffsetNorm
from steelyard.nn.quantizing.moments import InputMoments
from steelyard.nn.quantizing.states import matrix_of

__all__ = ["protect"]

_EXPONENTS = tuple(step / 10 for step in range(1, 10))
_ROWS = 256
"""Outputs on which scales are compared: they are shared by all outputs of a matrix."""

Round = Callable[[Tensor, Tensor], Tensor]
"""Returns the weights [N, K] as they come back from their codes, for an importance [K]."""


@torch.no_grad()
def protect(
    layer: DecoderLayer, moments: dict[str, InputMoments], rounded: Round, dtype: torch.dtype
) -> None:
    """Multiply input channels of matrices, and divide what comes before, where rounding gains.

    The layer computes the same; its norms, value rows and linear rows of a gated MLP change. What
    stands behind an MLP that is not homogeneous, or behind no norm, is left alone.

    Args:
        layer: layer in float32; it is changed in place.
        moments: moments of its matrices' inputs, by name.
        rounded: how matrices will be rounded.
        dtype: type in which norms will be stored.

    Source: Lin et al. 2023 (arXiv 2306.00978), equations 4 and 5; channels of values that several
        query heads read share a scale.
    """
    for name, moment in moments.items():
        matrix = matrix_of(layer, name)
        size = _channel_size(layer, name, moment.mean_size)
        before = _before(layer, name)
        if before is None:
            continue
        scales = _best_scales(matrix, moment, size, rounded)
        if scales is not None:
            matrix *= _divide(layer, name, before, scales, dtype)


def _before(layer: DecoderLayer, name: str) -> nn.Module | None:
    """Return what can be divided by scales of a matrix's inputs, None where nothing can."""
    if name == "down":
        return layer.up if layer.mlp_form in ("swiglu", "geglu", "relu") else None
    return {"qkv": layer.attention_norm, "out": layer.qkv, "up": layer.mlp_norm}[name]


def _channel_size(layer: DecoderLayer, name: str, size: Tensor) -> Tensor:
    """Return the size of activations by channel, alike where channels must share a scale."""
    if name != "out":
        return size
    return (
        _by_value_head(layer, size)
        .mean(1, keepdim=True)
        .expand(-1, layer.heads[0] // layer.heads[1], -1)
        .flatten()
    )


def _by_value_head(layer: DecoderLayer, channels: Tensor) -> Tensor:
    """Return channels of all query heads as [KV, queries per value head, D]."""
    return channels.unflatten(0, (layer.heads[1], -1, layer.head_dim))


def _best_scales(
    matrix: Tensor, moment: InputMoments, size: Tensor, rounded: Round
) -> Tensor | None:
    """Return the scales [K] with the least error of outputs, None where none is better than 1."""
    rows = matrix[:: -(-len(matrix) // _ROWS)]
    importance = moment.hessian.diagonal()
    least, best = _output_error(rounded(rows, importance) - rows, moment.hessian), None
    kept = size.clamp(min=1e-4 * float(size.mean()) + 1e-12)
    for exponent in _EXPONENTS:
        scales = kept**exponent
        scales /= (scales.max() * scales.min()).sqrt()
        back = rounded(rows * scales, importance / scales**2) / scales
        error = _output_error(back - rows, moment.hessian)
        if error < least:
            least, best = error, scales
    return best


def _output_error(off: Tensor, hessian: Tensor) -> float:
    """Return the mean square error of outputs, summed over them."""
    return float(((off @ hessian) * off).sum())


def _divide(
    layer: DecoderLayer, name: str, before: nn.Module, scales: Tensor, dtype: torch.dtype
) -> Tensor:
    """Divide the channels before a matrix; return by what they were divided in truth."""
    parts = dict(before.named_parameters())
    weight, shift = parts["weight"], parts.get("bias")
    if name in ("qkv", "up"):
        offset = 1.0 if isinstance(before, UnitOffsetNorm) else 0.0
        return _divide_norm(weight, shift, scales, dtype, offset)
    # Value rows come after those of queries and keys, linear rows after those of the gate.
    by = scales if name == "down" else _by_value_head(layer, scales)[:, 0].flatten()
    weight[-len(by) :] /= by[:, None]
    if shift is not None:
        shift[-len(by) :] /= by
    return scales


def _divide_norm(
    weight: Tensor, shift: Tensor | None, scales: Tensor, dtype: torch.dtype, offset: float
) -> Tensor:
    """Divide gains, and shifts where there are some, as they can be stored."""
    gain = weight + offset
    stored = (gain / scales - offset).to(dtype).float()
    # Gains are rounded when they are stored; the matrix takes up what they lost. Gains of 0 give
    # inputs of 0, whatever the scale.
    by = torch.where((gain != 0) & (stored + offset != 0), gain / (stored + offset), 1.0)
    weight.copy_(torch.where(by != 1.0, stored, weight))
    if shift is not None:
        shift /= by
    return by

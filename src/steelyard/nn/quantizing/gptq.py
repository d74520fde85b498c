"""Rounding of int4 groups that later columns make up for."""

import torch
from torch import Tensor

from steelyard.errors import ConfigError
from steelyard.nn.numerics.groups import num_groups
from steelyard.nn.numerics.int4 import MIDDLE, Int4Groups, divided, pack_nibbles
from steelyard.nn.numerics.int4_scales import best_scales

__all__ = ["gptq_int4"]

_BLOCK = 128
"""Columns whose errors are spread over the later ones in one product."""
_DAMPING = 0.01


def gptq_int4(
    weights: Tensor,
    hessian: Tensor,
    *,
    group: int = 128,
    zero_points: bool = False,
    dtype: torch.dtype = torch.float16,
    by_activation: bool = True,
) -> Int4Groups:
    """Round columns one after another, each time moving the error into the columns to come.

    Scales are searched for as in `best_scales`, with the diagonal of the Hessian as importance.

    Args:
        weights: float32 [N, K], K even.
        hessian: float32 [K, K], the sum or mean of x x^T over what is multiplied with the weights.
        group: weights that share a scale; the last group of a row may be shorter.
        zero_points: whether groups have zero points.
        dtype: type of the scales.
        by_activation: take columns of the largest activations first. Groups stay where they are, so
            that their scales come from the weights as given; otherwise they come from the weights
            that earlier columns have changed.

    Returns:
        The record.

    Raises:
        ConfigError: the Hessian is not finite.

    Source: Frantar et al. 2022 (arXiv 2210.17323), algorithm 1; order and fixed groups as in the
        authors' code (github.com/IST-DASLab/gptq, --act-order and --static-groups).
    """
    width = weights.shape[1]
    diagonal = hessian.diagonal()
    order = diagonal.argsort(descending=True) if by_activation else torch.arange(width)
    # Inputs that are always 0 say nothing about their weights, which then cost nothing.
    left = torch.where(diagonal[order] > 0, weights[:, order], 0.0).T.contiguous()
    factor = _inverse_factor(hessian[order][:, order])
    importance = diagonal.clamp(min=0.0)
    scales, zeros = best_scales(
        weights, group=group, zero_points=zero_points, importance=importance, dtype=dtype
    )
    codes = torch.empty(width, len(weights), dtype=torch.uint8)
    for start in range(0, width, _BLOCK):
        stop = min(start + _BLOCK, width)
        errors = torch.empty(stop - start, len(weights))
        for place in range(start, stop):
            column = int(order[place])
            if not by_activation and column % group == 0:
                part = slice(column, column + group)
                found = best_scales(
                    left[part].T,
                    group=group,
                    zero_points=zero_points,
                    importance=importance[part],
                    dtype=dtype,
                )
                _put(scales, zeros, found, column // group)
            scale = scales[:, column // group].float()
            zero = MIDDLE if zeros is None else zeros[:, column // group].float()
            code = (divided(left[place], scale) + zero).round().clamp(0, 15)
            codes[column] = code.to(torch.uint8)
            error = (left[place] - (code - zero) * scale) / factor[place, place]
            left[place:stop] -= factor[place, place:stop, None] * error
            errors[place - start] = error
        left[stop:] -= factor[start:stop, stop:].T @ errors
    assert scales.shape[1] == num_groups(width, group)
    return Int4Groups(pack_nibbles(codes.T.contiguous()), scales, zeros, group, width)


def _put(
    scales: Tensor, zeros: Tensor | None, found: tuple[Tensor, Tensor | None], at: int
) -> None:
    """Replace the scales and zero points of one group."""
    scales[:, at] = found[0][:, 0]
    if zeros is not None and found[1] is not None:
        zeros[:, at] = found[1][:, 0]


def _inverse_factor(hessian: Tensor) -> Tensor:
    """Return the upper Cholesky factor of the damped inverse, [K, K]."""
    if not torch.isfinite(hessian).all():
        raise ConfigError(
            "activations on the calibration text are not finite",
            hint="check the model, or quantize it without --calibrate",
        )
    mean = float(hessian.diagonal().mean()) or 1.0
    damping = _DAMPING
    while True:
        damped = hessian + torch.eye(len(hessian)) * (damping * mean)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not failed:
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if not failed:
                return upper
        # Few or equal activations leave directions without any: more damping makes up for them.
        damping *= 10

"""Heads: from outputs to a distribution, its loss and its exact quantiles."""

import math
from typing import Literal

import numpy as np
import torch
from scipy.special import ndtri, stdtrit
from torch import Tensor
from torch.nn import functional as F

from steelyard.operate.forecast.bounds import LEVELS
from steelyard.operate.forecast.networks.spline import SPLINE_WIDTH, bend, unbend

__all__ = ["Head", "head_loss", "head_quantiles", "head_width"]

Head = Literal["student-t", "gaussian", "quantile", "flow"]
_MIN_SCALE = 1e-3


def head_width(head: Head) -> int:
    """Return the outputs of a step: one a level, or location, scale and what shapes the law."""
    widths = {"quantile": len(LEVELS), "student-t": 3, "gaussian": 2, "flow": 2 + SPLINE_WIDTH}
    return widths[head]


def head_loss(head: Head, outputs: Tensor, target: Tensor) -> Tensor:
    """Return the loss of each step.

    Args:
        head: kind of the head.
        outputs: [B, H, width].
        target: what came, scaled [B, H]; finite.

    Returns:
        Negative log-likelihood in nats, or the mean quantile loss, doubled, of "quantile", [B, H].

    Source: Woo et al. 2023 (arXiv 2310.05063), section 5.2 (heads); "flow" is a spline of Durkan et
        al. 2019 (arXiv 1906.04032) for each step, so that holes and exact quantiles stay simple.
    """
    if head == "quantile":
        levels = torch.as_tensor(LEVELS, dtype=outputs.dtype, device=outputs.device)
        over = target.unsqueeze(-1) - outputs
        return 2 * torch.maximum(levels * over, (levels - 1) * over).mean(-1)
    center, scale, freedom = _parameters(outputs)
    if head in ("gaussian", "flow"):
        base, bent = (target - center) / scale, torch.zeros_like(target)
        if head == "flow":
            base, bent = unbend(base, outputs[..., 2:])
        return 0.5 * base**2 - bent + scale.log() + 0.5 * math.log(2 * math.pi)
    return -torch.distributions.StudentT(freedom, center, scale).log_prob(target)


def head_quantiles(head: Head, outputs: Tensor) -> Tensor:
    """Return the quantiles at `LEVELS`, exact, not from samples.

    Args:
        head: kind of the head.
        outputs: [B, H, width].

    Returns:
        [B, H, len(LEVELS)], scaled, ascending.
    """
    if head == "quantile":
        return outputs.sort(-1).values
    center, scale, freedom = (part.double().unsqueeze(-1) for part in _parameters(outputs))
    if head in ("gaussian", "flow"):
        units = torch.as_tensor(ndtri(LEVELS)).to(center.device)
        if head == "flow":
            # A monotone map takes quantiles to quantiles, so none has to be sampled.
            spline = outputs[..., 2:].double().unsqueeze(-2)
            units = bend(
                units.expand(*outputs.shape[:-1], -1),
                spline.expand(*outputs.shape[:-1], len(LEVELS), -1),
            )
    else:
        units = torch.as_tensor(stdtrit(freedom.cpu().numpy(), np.asarray(LEVELS)))
    return center + scale * units.to(center.device)


def _parameters(outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return location, scale and degrees of freedom [B, H]; only a Student-T uses the last."""
    # With 2 degrees or fewer a variance would be infinite.
    return (
        outputs[..., 0],
        F.softplus(outputs[..., 1]) + _MIN_SCALE,
        2 + F.softplus(outputs[..., -1]),
    )

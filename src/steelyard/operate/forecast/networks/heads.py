"""Heads: from outputs to a distribution, its loss and its exact quantiles."""

import math
from typing import Literal

import numpy as np
import torch
from scipy.special import ndtri, stdtrit
from torch import Tensor
from torch.nn import functional as F

from steelyard.operate.forecast.bounds import LEVELS

__all__ = ["Head", "head_loss", "head_quantiles", "head_width"]

Head = Literal["student-t", "gaussian", "quantile"]
_MIN_SCALE = 1e-3


def head_width(head: Head) -> int:
    """Return the outputs of a step: one a level, or location, scale and degrees of freedom."""
    return {"quantile": len(LEVELS), "student-t": 3, "gaussian": 2}[head]


def head_loss(head: Head, outputs: Tensor, target: Tensor) -> Tensor:
    """Return the loss of each step.

    Args:
        head: kind of the head.
        outputs: [B, H, width].
        target: what came, scaled [B, H]; finite.

    Returns:
        Negative log-likelihood in nats, or the mean quantile loss, doubled, of "quantile", [B, H].

    Source: Woo et al. 2023 (arXiv 2310.05063), section 5.2 (heads).
    """
    if head == "quantile":
        levels = torch.as_tensor(LEVELS, dtype=outputs.dtype, device=outputs.device)
        over = target.unsqueeze(-1) - outputs
        return 2 * torch.maximum(levels * over, (levels - 1) * over).mean(-1)
    center, scale, freedom = _parameters(outputs)
    if head == "gaussian":
        return 0.5 * ((target - center) / scale) ** 2 + scale.log() + 0.5 * math.log(2 * math.pi)
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
    if head == "gaussian":
        units = torch.as_tensor(ndtri(LEVELS))
    else:
        units = torch.as_tensor(stdtrit(freedom.cpu().numpy(), np.asarray(LEVELS)))
    return center + scale * units.to(center.device)


def _parameters(outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return location, scale and degrees of freedom [B, H]; those of a Gaussian are not used."""
    # With 2 degrees or fewer a variance would be infinite.
    return (
        outputs[..., 0],
        F.softplus(outputs[..., 1]) + _MIN_SCALE,
        2 + F.softplus(outputs[..., -1]),
    )

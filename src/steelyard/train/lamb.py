"""LAMB: Adam's direction, each matrix's step scaled to its own norm, for very large batches."""

from typing import Any

import torch
from torch import Tensor, nn

from steelyard.train.weightwise import Weightwise

__all__ = ["Lamb"]


class Lamb(Weightwise):
    """AdamW whose step of a matrix has the norm lr * |w|; vectors step as in AdamW.

    Source: You et al. 2020 (arXiv 1904.00962), algorithm 2 with phi(z) = z; vectors are left out of
        the scaling as in the authors' code.
    """

    def _update(self, weight: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        """Update one parameter."""
        state = self.state[weight]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(weight)
            state["exp_avg_sq"] = torch.zeros_like(weight)
        state["step"] += 1
        first, second = group["betas"]
        state["exp_avg"].lerp_(gradient, 1 - first)
        state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        steps = state["step"].item()
        root = (state["exp_avg_sq"] / (1 - second**steps)).sqrt_().add_(group["eps"])
        direction = (state["exp_avg"] / root).div_(1 - first**steps)
        direction.add_(weight, alpha=group["weight_decay"])
        rate = group["lr"]
        if weight.ndim >= 2:
            norms = weight.norm(), direction.norm()
            # A matrix of zeros would never move, and nothing moves without a direction.
            if all(norm > 0 for norm in norms):
                rate = rate * float(norms[0] / norms[1])
        weight.sub_(direction, alpha=rate)

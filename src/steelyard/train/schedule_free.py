"""Schedule-free AdamW: gradients between a fast and an averaged iterate, and no cooldown."""

from typing import Any

import torch
from torch import Tensor, nn

from steelyard.train.weightwise import Weightwise

__all__ = ["ScheduleFree"]


class ScheduleFree(Weightwise):
    """AdamW on z; the weights hold y = (1 - b1) z + b1 x; the model to evaluate is the average x.

    Source: Defazio et al. 2024 (arXiv 2405.15682), algorithm 1 and section 4.1: averages weighted
        by the squared rate.
    """

    def _update(self, weight: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        """Update one parameter."""
        state = self.state[weight]
        if not state:
            state |= {name: torch.tensor(0.0) for name in ("step", "largest_rate", "weights")}
            state["z"] = weight.detach().clone()
            state["exp_avg_sq"] = torch.zeros_like(weight)
        state["step"] += 1
        first, second = group["betas"]
        bias = 1 - second ** state["step"].item()
        state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        root = (state["exp_avg_sq"] / bias).sqrt_().add_(group["eps"])
        direction = (gradient / root).add_(weight, alpha=group["weight_decay"])
        rate = group["lr"]
        state["largest_rate"].clamp_(min=rate)
        share = state["largest_rate"].square()
        state["weights"] += share
        pull = float(share / state["weights"]) if rate else 0.0
        # y moves towards z as x does, and by the part of z's own step that it shares.
        weight.lerp_(state["z"], pull).sub_(direction, alpha=rate * (1 - first * (1 - pull)))
        state["z"].sub_(direction, alpha=rate)

    @torch.no_grad()
    def averages(self) -> dict[nn.Parameter, Tensor]:
        """Return x of every parameter that was updated."""
        return {
            weight: weight.lerp(self.state[weight]["z"], 1 - 1 / group["betas"][0])
            for group in self.param_groups
            for weight in group["params"]
            if "z" in self.state[weight]
        }

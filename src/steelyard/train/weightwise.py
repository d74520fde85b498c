"""Optimizers that update one weight after the other."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Weightwise"]


class Weightwise(torch.optim.Optimizer):
    """An optimizer with Adam's options; what it does to a weight is its subclass's."""

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float = 1e-8,
    ) -> None:
        """Take groups of parameters.

        Args:
            params: groups with "params" and "weight_decay".
            lr: learning rate.
            betas: the two decays, as the subclass reads them.
            eps: added to the root of the second moment.
        """
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    @abstractmethod
    def _update(self, weight: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        """Update one parameter."""

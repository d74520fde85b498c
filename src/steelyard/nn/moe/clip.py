"""Clips the norm of gradients, with those of experts counted for less."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from steelyard.errors import ConfigError
from steelyard.nn.moe.experts import MixtureOfExperts

__all__ = ["SparseClip", "expert_parameters"]


def expert_parameters(model: nn.Module) -> list[nn.Parameter]:
    """List the parameters of a model that only some tokens reach.

    Args:
        model: any module.

    Returns:
        Matrices and biases of routed experts; routers, shared experts and norms are not among
        them.
    """
    found: list[nn.Parameter] = []
    for module in model.modules():
        if isinstance(module, MixtureOfExperts):
            parts = (module.up, module.down, module.up_bias, module.down_bias)
            found += [part for part in parts if part is not None]
    return found


class SparseClip:
    """Scales gradients down to a largest norm, as `torch.nn.utils.clip_grad_norm_` does.

    An expert sees few of the tokens, so that its gradient is noisier. Divided by the root of the
    number of experts, or of processes if those are more, it does not rule the norm.

    Source: Ma et al. 2022 (arXiv 2211.13184), section 2.3 and the code of SparseClip.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        experts: Iterable[nn.Parameter] = (),
        *,
        max_norm: float,
        num_experts: int = 1,
        world: int = 1,
    ) -> None:
        """Sort the parameters.

        Args:
            parameters: all that are clipped together.
            experts: those of them that belong to experts, from `expert_parameters`.
            max_norm: largest norm, above 0.
            num_experts: experts of a layer, at least 1.
            world: processes that hold experts, at least 1.

        Raises:
            ConfigError: a number is out of range.
        """
        if not max_norm > 0 or num_experts < 1 or world < 1:
            raise ConfigError(
                f"max_norm {max_norm:g}, num_experts {num_experts} and world {world}: all must be "
                "positive",
                hint="leave num_experts and world at 1 for a dense model on one machine",
            )
        self.max_norm = max_norm
        self._divisor = math.sqrt(max(world, num_experts))
        sparse = {id(parameter) for parameter in experts} if self._divisor > 1 else set()
        every = list(parameters)
        self._dense = [parameter for parameter in every if id(parameter) not in sparse]
        self._experts = [parameter for parameter in every if id(parameter) in sparse]

    @torch.no_grad()
    def __call__(self) -> Tensor:
        """Clip the gradients that are there.

        Returns:
            The norm before, a scalar in which those of experts count for less; non-finite when a
            gradient is.
        """
        dense, experts = (
            torch.nn.utils.get_total_norm(_gradients(group))
            for group in (self._dense, self._experts)
        )
        norm = torch.hypot(dense, experts / self._divisor) if self._experts else dense
        for group in (self._dense, self._experts):
            torch.nn.utils.clip_grads_with_norm_(group, self.max_norm, norm)
        return norm


def _gradients(parameters: list[nn.Parameter]) -> list[Tensor]:
    """Return the gradients that are there."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]

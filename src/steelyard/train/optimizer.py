"""AdamW as language models use it, and the state of optimizers as named tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from steelyard.train.estimator_config import EstimatorConfig

__all__ = ["load_state", "make_optimizers", "named_state"]


def make_optimizers(module: nn.Module, config: EstimatorConfig) -> list[torch.optim.Optimizer]:
    """Make the optimizer: decay on matrices, embeddings included, and none on vectors.

    Args:
        module: its parameters that require gradients are trained.
        config: the run.

    Returns:
        Optimizers that together hold every trained parameter once.

    Source: Loshchilov and Hutter 2019 (arXiv 1711.05101); decay by shape as in Brown et al. 2020
        code that followed.
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = _by_decay(parameters, config.weight_decay)
    return [
        torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, eps=1e-8, fused=True)
    ]


def named_state(
    module: nn.Module, optimizers: Sequence[torch.optim.Optimizer], step: int
) -> dict[str, Tensor]:
    """Return weights, buffers and moments by name, without copies; tied weights stand there once.

    Args:
        module: what is trained.
        optimizers: what `make_optimizers` made for it.
        step: updates done.

    Returns:
        `model.NAME`, `buffer.NAME` and `MOMENT.NAME`; `step.NAME` only of parameters that were not
        updated in every step, for want of a gradient.
    """
    tensors = {f"buffer.{name}": buffer for name, buffer in _buffers(module).items()}
    states = {key: value for item in optimizers for key, value in item.state.items()}
    for name, parameter in module.named_parameters():
        tensors[f"model.{name}"] = parameter.detach()
        for key, value in states.get(parameter, {}).items():
            if isinstance(value, Tensor) and not (key == "step" and float(value) == step):
                tensors[f"{key}.{name}"] = value
    return tensors


def load_state(
    module: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    tensors: dict[str, Tensor],
    step: int,
) -> None:
    """Put named tensors back into a module and its optimizers.

    Args:
        module: module of the same shape as the one saved.
        optimizers: what `make_optimizers` made for it; empty to load weights alone.
        tensors: what `named_state` returned.
        step: updates done.

    Raises:
        KeyError: a tensor is missing.
        RuntimeError: a shape differs.
    """
    owners = {
        parameter: optimizer
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    with torch.no_grad():
        for name, buffer in _buffers(module).items():
            buffer.copy_(tensors[f"buffer.{name}"])
        for name, parameter in module.named_parameters():
            parameter.copy_(tensors[f"model.{name}"])
            if parameter in owners:
                state = _state_of(name, parameter, type(owners[parameter]), tensors, step)
                owners[parameter].state[parameter] = state


_MOMENTS: dict[type[torch.optim.Optimizer], tuple[str, ...]] = {
    torch.optim.AdamW: ("exp_avg", "exp_avg_sq")
}
"""Tensors of a parameter's size that an optimizer keeps; those that count steps do it by "step"."""


def _state_of(
    name: str,
    parameter: nn.Parameter,
    kind: type[torch.optim.Optimizer],
    tensors: dict[str, Tensor],
    step: int,
) -> dict[str, Tensor]:
    """Rebuild an optimizer's state of one parameter; empty for one that was never updated."""
    moments = {
        key: torch.empty_like(parameter).copy_(tensors[f"{key}.{name}"])
        for key in _MOMENTS[kind]
        if f"{key}.{name}" in tensors
    }
    if not moments:
        return {}
    steps = tensors.get(f"step.{name}", torch.tensor(float(step)))
    return {"step": steps.to(parameter.device), **moments}


def _by_decay(parameters: Sequence[nn.Parameter], decay: float) -> list[dict[str, object]]:
    """Group parameters: matrices with decay, vectors without."""
    matrices = [item for item in parameters if item.ndim >= 2]
    vectors = [item for item in parameters if item.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]  # torch refuses an empty group


def _buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that belong to a module's state, such as running statistics."""
    known = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    state = module.state_dict()
    return {name: value for name, value in state.items() if name not in known}

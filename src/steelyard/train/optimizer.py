"""The optimizers a run may ask for, and the state of optimizers as named tensors."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from steelyard.train.estimator_config import EstimatorConfig
from steelyard.train.lamb import Lamb
from steelyard.train.schedule_free import ScheduleFree

__all__ = ["load_state", "make_optimizers", "named_state"]

_SIZED: dict[type[torch.optim.Optimizer], tuple[str, ...]] = {
    torch.optim.AdamW: ("exp_avg", "exp_avg_sq"),
    torch.optim.SGD: ("momentum_buffer",),
    torch.optim.Muon: ("momentum_buffer",),
    Lamb: ("exp_avg", "exp_avg_sq"),
    ScheduleFree: ("z", "exp_avg_sq"),
}
"""Tensors of a parameter's size that each optimizer keeps."""
_SCALARS: dict[type[torch.optim.Optimizer], tuple[str, ...]] = {
    ScheduleFree: ("largest_rate", "weights")
}
"""Numbers it keeps per parameter beside them and the count of steps."""
_COUNT_NOTHING = (torch.optim.SGD, torch.optim.Muon)


def make_optimizers(module: nn.Module, config: EstimatorConfig) -> list[torch.optim.Optimizer]:
    """Make the optimizer of a run: decay on matrices, embeddings included, and none on vectors.

    Muon turns the matrices inside; embeddings, the last linear map, convolutions and vectors are
    left to AdamW, at the same rate: its steps are scaled to the size of AdamW's.

    Args:
        module: its parameters that require gradients are trained.
        config: the run.

    Returns:
        Optimizers that together hold every trained parameter once.

    Source: Loshchilov and Hutter 2019 (arXiv 1711.05101), decay by shape as in Brown et al. 2020
        code that followed; Goyal et al. 2017 (arXiv 1706.02677), section 3 and appendix (SGD with
        Nesterov momentum, the rate outside of the momentum, which needs no correction where the
        rate changes); Jordan et al. 2024 and Liu et al. 2025 (arXiv 2502.16982), section 2.2 (Muon
        at AdamW's rate).
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = _by_decay(parameters, config.weight_decay)
    rate, betas = config.learning_rate, config.betas
    if config.optimizer == "sgd":
        momentum = config.momentum
        return [torch.optim.SGD(groups, lr=rate, momentum=momentum, nesterov=momentum > 0)]
    if config.optimizer == "lamb":
        return [Lamb(groups, lr=rate, betas=betas, eps=1e-6)]
    if config.optimizer == "schedule-free":
        return [ScheduleFree(groups, lr=rate, betas=betas)]
    turned = _inner_matrices(module) if config.optimizer == "muon" else []
    chosen = {id(item) for item in turned}
    rest = [item for item in parameters if id(item) not in chosen]
    made: list[torch.optim.Optimizer] = []
    if turned:
        made.append(
            torch.optim.Muon(
                turned,
                lr=rate,
                weight_decay=config.weight_decay,
                momentum=config.momentum,
                adjust_lr_fn="match_rms_adamw",
            )
        )
    if rest:
        others = _by_decay(rest, config.weight_decay)
        made.append(torch.optim.AdamW(others, lr=rate, betas=betas, eps=1e-8, fused=True))
    return made


def _inner_matrices(module: nn.Module) -> list[nn.Parameter]:
    """List the weights of linear maps that are neither embeddings nor a head."""
    modules = list(module.modules())
    tables = {item.weight for item in modules if isinstance(item, (nn.Embedding, nn.EmbeddingBag))}
    maps = [item for item in modules if isinstance(item, nn.Linear)]
    # The head gives a number per row of an embedding; without embeddings it is the last map.
    rows = {len(table) for table in tables}
    heads = {item.weight for item in maps if len(item.weight) in rows}
    heads |= {item.weight for item in maps[-1:] if not tables}
    left = {id(item) for item in tables | heads}
    return [
        parameter
        for parameter in module.parameters()
        if parameter.requires_grad and id(parameter) in {id(item.weight) for item in maps} - left
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


def _state_of(
    name: str,
    parameter: nn.Parameter,
    kind: type[torch.optim.Optimizer],
    tensors: dict[str, Tensor],
    step: int,
) -> dict[str, Tensor]:
    """Rebuild an optimizer's state of one parameter; empty for one that was never updated."""
    state = {
        key: torch.empty_like(parameter).copy_(tensors[f"{key}.{name}"])
        for key in _SIZED[kind]
        if f"{key}.{name}" in tensors
    }
    if not state or kind in _COUNT_NOTHING:
        return state
    state["step"] = tensors.get(f"step.{name}", torch.tensor(float(step)))
    if kind is torch.optim.AdamW:  # the fused kernel reads it where the weights are
        state["step"] = state["step"].to(parameter.device)
    return state | {key: tensors[f"{key}.{name}"] for key in _SCALARS.get(kind, ())}


def _by_decay(parameters: Sequence[nn.Parameter], decay: float) -> list[dict[str, Any]]:
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

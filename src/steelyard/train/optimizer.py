"""AdamW as language models use it, and its state as named tensors."""

import torch

from steelyard.train.config import TrainConfig

__all__ = ["adamw", "load_state", "named_state"]

_MOMENTS = ("exp_avg", "exp_avg_sq")


def adamw(model: torch.nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """Make the optimizer: decay on matrices, embeddings included, and none on vectors.

    Source: Loshchilov and Hutter 2019 (arXiv 1711.05101); decay by shape as in Brown et al. 2020
    code that followed.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [item for item in parameters if item.ndim >= 2]
    vectors = [item for item in parameters if item.ndim < 2]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}]
    if vectors:  # torch refuses an empty group
        groups.append({"params": vectors, "weight_decay": 0.0})
    return torch.optim.AdamW(
        groups, lr=config.learning_rate, betas=config.betas, eps=1e-8, fused=True
    )


def named_state(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, torch.Tensor]:
    """Return weights and moments by name, without copies; tied weights stand there once."""
    tensors = {}
    for name, parameter in model.named_parameters():
        tensors[f"model.{name}"] = parameter.detach()
        state = optimizer.state.get(parameter, {})
        tensors |= {f"{moment}.{name}": state[moment] for moment in _MOMENTS if moment in state}
    return tensors


def load_state(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    tensors: dict[str, torch.Tensor],
    step: int,
) -> None:
    """Put named tensors back into a model and its optimizer.

    Args:
        model: model of the same architecture as the one saved.
        optimizer: optimizer that `adamw` made for this model.
        tensors: what `named_state` returned.
        step: updates the moments have seen.

    Raises:
        KeyError: a tensor is missing.
        RuntimeError: a shape differs.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[f"model.{name}"])
            moments = {
                moment: torch.empty_like(parameter).copy_(tensors[f"{moment}.{name}"])
                for moment in _MOMENTS
            }
            optimizer.state[parameter] = {
                "step": torch.tensor(float(step), device=parameter.device),
                **moments,
            }

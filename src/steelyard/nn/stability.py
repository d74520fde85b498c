"""Measures how much one step of training changes what a model computes, layer by layer."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steelyard.nn.parts.noise import reseed
from steelyard.nn.transformer import Transformer

__all__ = ["StabilityReport", "growth_exponent", "probe"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StabilityReport:
    """What one step did.

    Attributes:
        update: root mean square change of the model's result, `‖Δf‖` per element.
        update_by_layer: the same of the residual stream after each layer.
        activation_by_layer: root mean square of the residual stream after each layer, before the
            step.
        gradient_by_layer: norm of the gradient of each layer's parameters, all together.
        loss_before: nats per token on the batch.
        loss_after: the same after the step.
    """

    update: float
    update_by_layer: tuple[float, ...]
    activation_by_layer: tuple[float, ...]
    gradient_by_layer: tuple[float, ...]
    loss_before: float
    loss_after: float


Loss = Callable[[Transformer, Tensor], tuple[Tensor, Tensor]]
"""From a model and a batch to the model's result, whose change is measured, and its loss."""


def probe(
    model: Transformer,
    batch: Tensor,
    *,
    rate: float = 1e-4,
    loss: Loss | None = None,
    moves_all: bool = False,
) -> StabilityReport:
    """Take one step of plain gradient descent on a batch, and see what it changes.

    The model is left as it was. With plain descent a weight moves as far as its gradient says, so
    that the result tells of the model and not of an optimizer's normalization. The theory of norm
    schemes bounds what the matrices of the layers do, so they alone are moved by default.

    Args:
        model: a decoder, or an encoder whose head predicts each token itself.
        batch: int64 [B, T].
        rate: learning rate of the step.
        loss: another loss; by default the next token's.
        moves_all: move gains, biases and tables as well, as training does.

    Returns:
        Changes, activations and gradients by layer.

    Source: Wang et al. 2022 (arXiv 2203.00555), section 3.3 (model update).
    """
    compute = loss or _token_loss
    # In training mode with the same draws before and after: the step is the only difference.
    twin = copy.deepcopy(model).train()
    reseed(twin, 0)
    with _streams(twin) as before:
        result, value = compute(twin, batch)
    twin.zero_grad()
    value.backward()
    gradients = tuple(_norm(layer) for layer in twin.layers)
    with torch.no_grad():
        for parameter in (twin if moves_all else twin.layers).parameters():
            if parameter.grad is not None and (moves_all or parameter.ndim > 1):
                parameter -= rate * parameter.grad
    reseed(twin, 0)
    with _streams(twin) as after, torch.no_grad():
        changed, later = compute(twin, batch)
    return StabilityReport(
        update=_rms(changed - result.detach()),
        update_by_layer=tuple(_rms(b - a) for a, b in zip(before, after, strict=True)),
        activation_by_layer=tuple(_rms(stream) for stream in before),
        gradient_by_layer=gradients,
        loss_before=float(value.detach()),
        loss_after=float(later),
    )


def growth_exponent(depths: list[int], updates: list[float]) -> float:
    """Return the power of the depth with which updates grow.

    Args:
        depths: layers of each model; at least two different numbers.
        updates: its update.

    Returns:
        The slope of a least-squares line through the logarithms.
    """
    x, y = (torch.tensor(part, dtype=torch.float64).log() for part in (depths, updates))
    x = x - x.mean()
    return float((x * (y - y.mean())).sum() / x.square().sum())


def _token_loss(model: Transformer, batch: Tensor) -> tuple[Tensor, Tensor]:
    """Return the last hidden states, and the mean loss of the next token; an encoder's own."""
    hidden = model.run(batch, torch.arange(batch.shape[1], device=batch.device), model.attend)
    logits = model.head(hidden)
    if model.architecture.kind == "decoder":
        logits, batch = logits[:, :-1], batch[:, 1:]
    return hidden, F.cross_entropy(logits.flatten(0, 1), batch.flatten())


@contextmanager
def _streams(model: Transformer) -> Iterator[list[Tensor]]:
    """Collect the residual stream after each layer."""
    found: list[Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda _, __, output: found.append(output.detach()))
        for layer in model.layers
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _norm(module: nn.Module) -> float:
    """Return the norm of all gradients of a module."""
    grads = [p.grad for p in module.parameters() if p.grad is not None]
    return float(torch.nn.utils.get_total_norm(grads))


def _rms(values: Tensor) -> float:
    """Return the root mean square."""
    return float(values.detach().square().mean().sqrt())

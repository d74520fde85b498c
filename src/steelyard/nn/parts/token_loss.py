"""Cross-entropy of predicted tokens straight from hidden states and the head's weight.

One table of logits in the type of the products is all that is held: each of its rows becomes what
it was wrong by where it stands, while it is in the cache. Log-softmax and its gradient as
operations of their own write four such tables, three of them in float32.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import handle_torch_function, has_torch_function_variadic

__all__ = ["FEW_LOGITS", "share_errors", "token_losses"]

FEW_LOGITS = 1 << 19
"""Logits that stay in the cache: up to as many, log-softmax by itself is faster."""
_ELEMENTS = {"cpu": FEW_LOGITS}
"""Logits that are turned in float32 at once: 2 MiB on a CPU."""
_ELEMENTS_ELSEWHERE = 1 << 26
"""Other devices are kept busy by larger kernels."""


def token_losses(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each target.

    Under autocast both factors are rounded to its type, as by `F.linear`. Sums are in float32.

    Args:
        hidden: hidden states [..., C].
        weight: weight of the head [V, C].
        targets: int64 of the same leading shape, in [0, V).

    Returns:
        Nats, float32 [...]; their gradient cannot be differentiated again.
    """
    # Modes that watch functions of torch are to see this one too.
    if has_torch_function_variadic(hidden, weight):
        return handle_torch_function(token_losses, (hidden, weight), hidden, weight, targets)
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    losses = _TokenLosses.apply(hidden.flatten(0, -2), weight, targets.flatten())
    assert isinstance(losses, Tensor)
    return losses.view(targets.shape)


def share_errors(losses: Tensor) -> Tensor:
    """Return what the backward pass of losses will use; it must not have run.

    Args:
        losses: result [...] of `token_losses` that requires a gradient.

    Returns:
        Softmax of the logits less 1 at the target, [..., V] in the type of the products.
    """
    assert losses.grad_fn is not None
    node: Any = losses.grad_fn.next_functions[0][0]  # the losses are a view of the node's result
    return node.saved_tensors[2].view(*losses.shape, -1)


class _TokenLosses(torch.autograd.Function):
    """Losses [N] of hidden states [N, C], a head [V, C] and targets [N]."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        """Compute losses, and where a gradient is wanted the errors of the shares [N, V]."""
        wanted = any(ctx.needs_input_grad)
        elements = _ELEMENTS.get(hidden.device.type, _ELEMENTS_ELSEWHERE)
        step = max(1, elements // len(weight))
        losses = hidden.new_empty(len(hidden), dtype=torch.float32)
        logits = hidden @ weight.T if wanted else None
        for begin in range(0, len(hidden), step):
            rows = slice(begin, begin + step)
            part = hidden[rows] @ weight.T if logits is None else logits[rows]
            losses[rows] = _turn(part, targets[rows, None], wanted=wanted)
        if wanted:
            ctx.save_for_backward(hidden, weight, logits)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """Return the gradients of hidden states and of the head."""
        hidden, weight, errors = ctx.saved_tensors
        scale = upstream[:, None].to(hidden.dtype)
        to_hidden = (errors @ weight) * scale if ctx.needs_input_grad[0] else None
        to_weight = errors.T @ (hidden * scale) if ctx.needs_input_grad[1] else None
        return to_hidden, to_weight, None


def _turn(logits: Tensor, targets: Tensor, *, wanted: bool) -> Tensor:
    """Return losses [n] of logits [n, V] and targets [n, 1]; leave errors of the shares there."""
    logs = torch.log_softmax(logits, 1, dtype=torch.float32)
    losses = -logs.gather(1, targets).squeeze(1)
    if wanted:
        logs.exp_().scatter_add_(1, targets, logs.new_full(targets.shape, -1.0))
        logits.copy_(logs)
    return losses

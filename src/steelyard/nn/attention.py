"""Causal attention as plain products: the whole context, or windows of it, capped or not."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

__all__ = ["Attend", "attend_masked", "attend_tail", "causal_attention"]

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Attention as the caller wants it: layer index, queries [..., H, D], keys [..., KV, D], values
[..., KV, D] to [..., H, D]."""

_WIDENED = 256
"""Longest context whose gradients a CPU finds sooner in float32 than in bfloat16."""
_WIDE_TOKENS = 1024
"""Tokens whose gradients are found at once in float32."""
_ROWS = 256
"""Queries whose scores are held at once where windows or caps rule out the fused kernel."""


def causal_attention(
    layer: int,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    window: int = 0,
    softcap: float = 0.0,
) -> Tensor:
    """Attend from each token to itself and all before it, or to a window of them.

    Args:
        layer: not used; part of the `Attend` shape.
        queries: [B, T, H, D].
        keys: [B, T, KV, D]; query head h reads key head h // (H / KV).
        values: [B, T, KV, D].
        window: tokens that each token attends, itself included; 0 for all.
        softcap: cap of the scores; 0 for none.

    Returns:
        [B, T, H, D].
    """
    del layer
    heads = (part.transpose(-3, -2) for part in (queries, keys, values))
    return attend_tail(*heads, window=window, softcap=softcap).transpose(-3, -2)


def attend_tail(
    queries: Tensor, keys: Tensor, values: Tensor, *, window: int = 0, softcap: float = 0.0
) -> Tensor:
    """Attend causally from the last tokens of a context.

    Args:
        queries: [..., H, T, D] of the context's last T tokens.
        keys: [..., KV, S, D] of the whole context, S >= T; of a window, from any token that no
            query's window begins before.
        values: [..., KV, S, D].
        window: tokens that each token attends, itself included; 0 for all.
        softcap: cap of the scores; 0 for none.

    Returns:
        [..., H, T, D].
    """
    length, context = queries.shape[-2], keys.shape[-2]
    before = context - length
    if not softcap and not 0 < window < context:
        grouped = keys.shape[-3] != queries.shape[-3]
        if not before and _is_widened(queries, keys):
            widened = _Widened.apply(queries, keys, values)
            assert isinstance(widened, Tensor)
            return widened
        # is_causal takes the upper left corner of the mask, so it holds for whole contexts only.
        mask = _visible((before, context), (0, context), context, keys.device) if before else None
        return F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped
        )
    parts = []
    for start in range(before, context, _ROWS):
        stop = min(start + _ROWS, context)
        first = max(0, start - window + 1) if window else 0
        mask = _visible((start, stop), (first, stop), window or context, keys.device)
        seen = slice(first, stop)
        rows = queries[..., start - before : stop - before, :]
        parts.append(attend_masked(rows, keys[..., seen, :], values[..., seen, :], mask, softcap))
    return torch.cat(parts, dim=-2)


def attend_masked(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, softcap: float = 0.0
) -> Tensor:
    """Attend where a mask allows it.

    Args:
        queries: [..., H, T, D].
        keys: [..., KV, S, D].
        values: [..., KV, S, D].
        mask: bool, broadcasts to [..., 1, T, S]; each row allows at least one key.
        softcap: c of scores c tanh(score / c), taken before the mask; 0 for none.

    Returns:
        [..., H, T, D].

    Source: Gemma Team 2024 (arXiv 2408.00118), section 2 (logit soft-capping).
    """
    if not softcap:
        grouped = keys.shape[-3] != queries.shape[-3]
        return F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, enable_gqa=grouped
        )
    # Heads of a group lie side by side, so that keys are not repeated for each.
    heads = queries.unflatten(-3, (keys.shape[-3], -1))
    scores = heads @ keys.unsqueeze(-3).transpose(-2, -1) * queries.shape[-1] ** -0.5
    scores = softcap * torch.tanh(scores / softcap)
    shares = scores.float().masked_fill(~mask.unsqueeze(-3), -torch.inf).softmax(-1)
    return (shares.to(values.dtype) @ values.unsqueeze(-3)).flatten(-4, -3)


def _is_widened(queries: Tensor, keys: Tensor) -> bool:
    """Say whether gradients are wanted that float32 finds sooner."""
    return (
        queries.device.type == "cpu"
        and queries.dtype == torch.bfloat16
        and queries.ndim == 4
        and queries.shape == keys.shape
        and queries.shape[-2] <= _WIDENED
        and queries.requires_grad
        and torch.is_grad_enabled()
    )


class _Widened(torch.autograd.Function):
    """Causal attention of bfloat16 [B, H, T, D] by torch's kernels, its gradients in float32.

    The kernel of the gradients multiplies short blocks in bfloat16 at half the speed. Only the
    inputs, the result and the softmax's denominators are kept, as by the kernel itself.
    """

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attend."""
        result, denominators = _FLASH(queries, keys, values, 0.0, True)
        ctx.save_for_backward(queries, keys, values, result, denominators)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of queries, keys and values."""
        queries, keys, values, result, denominators = ctx.saved_tensors
        found = [torch.empty_like(part) for part in (queries, keys, values)]
        # Some sequences at a time: copies in float32 of all would raise the peak of memory.
        rows = max(1, _WIDE_TOKENS // queries.shape[-2])
        for begin in range(0, len(queries), rows):
            part = slice(begin, begin + rows)
            given = (upstream, queries, keys, values, result)
            wide = (item[part].float() for item in given)
            gradients = _FLASH_BACKWARD(*wide, denominators[part], 0.0, True)
            for item, gradient in zip(found, gradients, strict=True):
                item[part] = gradient
        return tuple(found)


def _visible(
    rows: tuple[int, int], columns: tuple[int, int], window: int, device: torch.device
) -> Tensor:
    """Return the mask [T, S] of queries and keys at these positions (first, end)."""
    query = torch.arange(*rows, device=device)[:, None]
    key = torch.arange(*columns, device=device)
    return (key <= query) & (key > query - window)

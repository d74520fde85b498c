"""Rotary positions: queries and keys are turned by an angle that grows with their position."""

from typing import Any

import torch
from torch import Tensor

__all__ = ["rotary_tables", "rotate", "spread"]


def rotary_tables(num_positions: int, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Compute the cosine and sine of every position's angles, in float64 and rounded once to float32.

    Args:
        num_positions: rows P.
        head_dim: width D of a head; even.
        theta: base of the geometric series of wavelengths.

    Returns:
        Cosines and sines, each float32 [P, D / 2].

    Source: Su et al., arXiv:2104.09864, section 3.2.2.
    """
    frequencies = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] * frequencies
    return angles.cos().float(), angles.sin().float()


def spread(cosines: Tensor, sines: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Widen table rows to whole heads, once per step instead of once per layer.

    Args:
        cosines: table rows [..., D / 2].
        sines: table rows of the same shape.
        dtype: of the heads they will turn.

    Returns:
        Cosines and sines [..., 1, D] that broadcast over heads; the first half of the sines is negated, as `rotate` needs it.
    """
    wide_cosines = torch.cat((cosines, cosines), dim=-1).unsqueeze(-2).to(dtype)
    wide_sines = torch.cat((-sines, sines), dim=-1).unsqueeze(-2).to(dtype)
    return wide_cosines, wide_sines


def rotate(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn each head; its halves are the two coordinates, as in Hugging Face's Llama.

    Args:
        heads: [..., H, D].
        cosines: [..., 1, D] from `spread`.
        sines: [..., 1, D] from `spread`.

    Returns:
        The turned heads [..., H, D].
    """
    return _Rotation.apply(heads, cosines, sines)  # pyright: ignore[reportReturnType]


class _Rotation(torch.autograd.Function):
    """A rotation whose gradient is the opposite rotation, so that no activation is kept for it."""

    @staticmethod
    def forward(ctx: Any, heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """Turn by the angle."""
        ctx.save_for_backward(cosines, sines)
        return torch.addcmul(heads * cosines, _swap(heads), sines)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Turn back by the angle."""
        cosines, sines = ctx.saved_tensors
        return torch.addcmul(gradients[0] * cosines, _swap(gradients[0]), sines, value=-1), None, None


def _swap(heads: Tensor) -> Tensor:
    """Exchange the halves of each head."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((second, first), dim=-1)

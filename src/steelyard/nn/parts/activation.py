"""What an MLP applies between its matrices."""

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["activate"]


def activate(form: str, inner: Tensor) -> Tensor:
    """Apply SwiGLU, GeGLU, GELU (both in its tanh form, as in GPT-2 and Gemma), GELU, or ReLU.

    Args:
        form: `mlp` of an architecture.
        inner: [..., I], or [..., 2 I] of a gated form, the gate's columns first.

    Returns:
        [..., I].
    """
    if form == "swiglu":
        gate, value = inner.chunk(2, dim=-1)
        return F.silu(gate) * value
    if form == "geglu":
        gate, value = inner.chunk(2, dim=-1)
        return F.gelu(gate, approximate="tanh") * value
    if form == "gelu-erf":
        # BERT's: the tanh form differs by up to 5e-4 in every layer.
        return F.gelu(inner)
    return torch.relu(inner) if form == "relu" else F.gelu(inner, approximate="tanh")

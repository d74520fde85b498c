"""The loss of a model as the engine computes it, with weights of any type."""

import numpy as np
import torch

from steelyard.nn.transformer import Transformer
from steelyard.serve.scoring import engine_losses

__all__ = ["engine_loss"]


def engine_loss(
    model: Transformer, rows: np.ndarray, kind: str, kv_dtype: torch.dtype | None = None
) -> float:
    """Return nats per token of rows of tokens, each in one step of the engine."""
    losses = engine_losses(model, list(rows), weights=kind, kv_dtype=kv_dtype)
    return float(np.mean([np.mean(row) for row in losses]))

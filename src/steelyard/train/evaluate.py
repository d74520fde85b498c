"""Held-out loss: mean nats per token over windows that are the same for every model and step."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F

from steelyard.train.batches import Batch, count_examples, micro_batches
from steelyard.train.session import Loss

__all__ = ["bits_per_byte", "evaluate", "heldout_windows", "mean_loss"]


def heldout_windows(tokens: np.ndarray, sequence_length: int, max_tokens: int) -> np.ndarray:
    """Cut evenly spread windows that overlap in no predicted token.

    Args:
        tokens: held-out tokens [N], N > `sequence_length`.
        sequence_length: tokens T a window predicts.
        max_tokens: predicted tokens in all windows at most; at least one window is cut.

    Returns:
        int64 [W, T + 1]; a function of nothing but the arguments.
    """
    available = (len(tokens) - 1) // sequence_length
    count = max(1, min(available, max_tokens // sequence_length))
    first = np.arange(count) * available // count * sequence_length
    return np.asarray(tokens)[first[:, None] + np.arange(sequence_length + 1)].astype(np.int64)


def evaluate(
    model: torch.nn.Module,
    windows: np.ndarray,
    *,
    batch_size: int,
    device: str = "cpu",
) -> float:
    """Measure the mean loss of next-token prediction.

    Args:
        model: maps tokens [B, T] to logits [B, T, V].
        windows: int64 [W, T + 1].
        batch_size: windows in one forward pass.
        device: where the model lies.

    Returns:
        Nats per token.
    """
    total = 0.0
    with torch.inference_mode():
        for start in range(0, len(windows), batch_size):
            tokens = torch.from_numpy(windows[start : start + batch_size]).to(device)
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(
                logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="sum"
            )
            total += loss.item()
    return total / (windows.shape[0] * (windows.shape[1] - 1))


def mean_loss(
    loss: Loss, batches: Sequence[Batch], *, device: str = "cpu"
) -> Callable[[torch.nn.Module], float]:
    """Make a measurement of the held-out loss of any module, for `estimator.Estimator`.

    Args:
        loss: mean loss of a batch's examples.
        batches: held-out batches; each counts by its examples.
        device: where the module lies.

    Returns:
        Called with a module, returns its mean loss.
    """
    sizes = [count_examples(batch) for batch in batches]

    def measure(module: torch.nn.Module) -> float:
        total = 0.0
        for batch, size in zip(batches, sizes, strict=True):
            for part in micro_batches(batch, size, device):
                found = loss(module, part)
                mean = found[0] if isinstance(found, tuple) else found
                total += size * float(mean.item())
        return total / sum(sizes)

    return measure


def bits_per_byte(loss: float, bytes_per_token: float) -> float:
    """Convert nats per token to bits per byte, which compares across tokenizers."""
    return loss / math.log(2) / bytes_per_token

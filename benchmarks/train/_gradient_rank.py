"""The gradient of one step, by one process or by one of several that share it.

`python -m benchmarks.train._gradient_rank FILE ACCUMULATION` writes the gradient of the whole step
as one vector; processes that share it are started as torchrun starts them, in one folder.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steelyard.train import EstimatorConfig
from steelyard.train.batches import Batch
from steelyard.train.callback import Callback, StepState
from steelyard.train.estimator import Estimator
from steelyard.train.launch import launched

__all__ = ["Keep", "Points", "classify", "network"]


class Points:
    """Points of ten classes, 256 a step."""

    def batch(self, index: int, /) -> tuple[Tensor, Tensor]:
        """Draw the points of a step and their classes."""
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(256, 32, generator=generator)
        return x, (3 * x[:, :4].sum(1)).long().remainder(10)


def network() -> nn.Module:
    """Make the network, the same in every process."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 10))


def classify(module: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross-entropy."""
    assert isinstance(batch, tuple)
    return F.cross_entropy(module(batch[0]), batch[1])


class Keep(Callback):
    """Keeps the gradient of the last step."""

    name = "keep"

    def before_update(self, state: StepState, /) -> None:
        """Copy the gradient."""
        self.gradient = torch.cat(
            [item.grad.flatten() for item in state.parameters.values() if item.grad is not None]
        )


def gradient(accumulation: int, folder: Path) -> np.ndarray:
    """Return the gradient of a step that this process takes alone or shares."""
    config = EstimatorConfig(
        steps=1,
        batch_size=256,
        accumulation=accumulation,
        optimizer="sgd",
        learning_rate=0.1,
        threads=1,
    )
    keep = Keep()
    with launched() as reducer:
        estimator = Estimator(network(), classify, config, callbacks=[keep], reducer=reducer)
        estimator.fit(Points(), folder)
        return keep.gradient.numpy()


if __name__ == "__main__":
    path = Path(sys.argv[1])
    np.save(path, gradient(int(sys.argv[2]), path.parent / "run"))

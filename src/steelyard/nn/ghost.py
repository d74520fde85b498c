"""Batch norm over parts of fixed size, whatever the batch."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steelyard.errors import ConfigError

__all__ = ["GhostBatchNorm2d"]

_FEWEST = 2


class GhostBatchNorm2d(nn.BatchNorm2d):
    """Batch norm whose statistics are those of `ghost_size` images each.

    The loss function then does not change with the batch or the number of workers that share it: a
    batch of k n images is normed as k workers of n each would. Running statistics move once per
    step, by the mean over the parts.

    Attributes:
        ghost_size: images per part.

    Source: Hoffer et al. 2017 (arXiv 1705.08741), algorithm 1; Goyal et al. 2017 (arXiv
        1706.02677), section 2.3 (a fixed n per worker).
    """

    def __init__(self, num_features: int, ghost_size: int) -> None:
        """Make gains of 1 and biases of 0.

        Args:
            num_features: channels.
            ghost_size: images per part, at least 2; statistics of fewer than 8 are very noisy.

        Raises:
            ConfigError: the size is below 2.
        """
        if ghost_size < _FEWEST:
            raise ConfigError(
                f"ghost_size is {ghost_size}", hint="give at least 2 images per part, better 8"
            )
        super().__init__(num_features)
        self.ghost_size = ghost_size

    def forward(self, x: Tensor) -> Tensor:
        """Norm images.

        Args:
            x: [B, C, H, W]; in training B is a multiple of `ghost_size`.

        Returns:
            The same shape.

        Raises:
            ConfigError: a training batch is no multiple of `ghost_size`.
        """
        if not self.training:
            return super().forward(x)
        if len(x) % self.ghost_size or not len(x):
            raise ConfigError(
                f"a batch of {len(x)} images is no multiple of ghost_size = {self.ghost_size}",
                hint="drop the last, partial batch of an epoch",
            )
        parts, means, variances = [], [], []
        for part in x.split(self.ghost_size):
            # With a momentum of 1 these come to hold the part's own statistics.
            mean = torch.zeros_like(self.weight, dtype=torch.float32)
            variance = torch.zeros_like(mean)
            parts.append(
                F.batch_norm(
                    part, mean, variance, self.weight, self.bias, True, momentum=1.0, eps=self.eps
                )
            )
            means.append(mean)
            variances.append(variance)
        self._follow(torch.stack(means).mean(0), torch.stack(variances).mean(0))
        return torch.cat(parts)

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor) -> None:
        """Move the running statistics towards those of a batch."""
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None and self.momentum is not None
        self.num_batches_tracked.add_(1)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_(variance.to(self.running_var.dtype), self.momentum)

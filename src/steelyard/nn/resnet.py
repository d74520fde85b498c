"""Residual networks for small images."""

import torch
from torch import Tensor, nn

from steelyard.errors import require
from steelyard.nn.convnet import convolution, draw_weights, refuse_empty
from steelyard.nn.ghost import GhostBatchNorm2d

__all__ = ["ResNet"]

_WIDTHS = (16, 32, 64)
_LAYERS_BESIDE = 2
"""The first convolution and the classifier."""
_LAYERS_PER_BLOCK = 6
"""Two convolutions in each of three stages."""


class _Block(nn.Module):
    """Two convolutions of 3x3 whose result is added to their input."""

    def __init__(self, inputs: int, outputs: int, stride: int, ghost_size: int) -> None:
        super().__init__()
        self.conv1 = convolution(inputs, outputs, 3, stride)
        self.norm1 = _norm(outputs, ghost_size)
        self.conv2 = convolution(outputs, outputs, 3)
        self.norm2 = _norm(outputs, ghost_size)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                convolution(inputs, outputs, 1, stride), _norm(outputs, ghost_size)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to [B, C, H, W]."""
        inner = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


class ResNet(nn.Module):
    """A residual network of three stages, for images of about 32x32 and less.

    Convolutions are drawn as He et al. do, the classifier from N(0, .01), and gains of the last
    norm of each block are 0, so that each block starts as the identity.

    Attributes:
        depth: layers with weights: 8, 14, 20, 32, 44, ...
        conv: the first convolution.
        norm: its norm.
        stages: blocks of 16, 32 and 64 channels, each stage but the first at half the resolution.
        fc: the classifier.

    Source: He et al. 2015 (arXiv 1512.03385), section 4.2; Goyal et al. 2017 (arXiv 1706.02677),
        section 5.1 (initialization).
    """

    def __init__(
        self,
        depth: int = 20,
        *,
        in_channels: int = 3,
        num_classes: int = 10,
        width: float = 1.0,
        ghost_size: int = 0,
        zero_init_residual: bool = True,
        seed: int = 0,
    ) -> None:
        """Draw the weights.

        Args:
            depth: 6 n + 2 for n blocks per stage.
            in_channels: channels of an image.
            num_classes: labels.
            width: factor of the channels.
            ghost_size: images per part of batch norm; 0 for the whole batch.
            zero_init_residual: whether blocks start as the identity.
            seed: seed of the draws.

        Raises:
            ConfigError: there is no such depth, or a size is not positive.
        """
        super().__init__()
        self.depth = depth
        blocks, rest = divmod(depth - _LAYERS_BESIDE, _LAYERS_PER_BLOCK)
        require(self, depth=(blocks >= 1 and rest == 0, "6 n + 2, such as 8, 14 or 20"))
        widths = [round(width * channels) for channels in _WIDTHS]
        refuse_empty(in_channels=in_channels, num_classes=num_classes, channels=widths[0])
        self.conv = convolution(in_channels, widths[0], 3)
        self.norm = _norm(widths[0], ghost_size)
        before = [widths[0], *widths]
        self.stages = nn.Sequential(
            *(
                nn.Sequential(
                    _Block(before[stage], channels, 1 if stage == 0 else 2, ghost_size),
                    *(_Block(channels, channels, 1, ghost_size) for _ in range(blocks - 1)),
                )
                for stage, channels in enumerate(widths)
            )
        )
        self.fc = nn.Linear(widths[-1], num_classes)
        draw_weights(self, seed)
        # Goyal et al.: signals pass shortcuts only, until a block has learned something to add.
        if zero_init_residual:
            for module in self.modules():
                if isinstance(module, _Block):
                    nn.init.zeros_(module.norm2.weight)

    def features(self, images: Tensor) -> Tensor:
        """Return what the classifier reads.

        Args:
            images: [B, C, H, W].

        Returns:
            [B, 64 width].
        """
        return self.stages(torch.relu(self.norm(self.conv(images)))).mean((2, 3))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits.

        Args:
            images: [B, C, H, W].

        Returns:
            [B, classes].
        """
        return self.fc(self.features(images))


def _norm(channels: int, ghost_size: int) -> nn.BatchNorm2d:
    """Make a batch norm over the whole batch or over parts."""
    return GhostBatchNorm2d(channels, ghost_size) if ghost_size else nn.BatchNorm2d(channels)

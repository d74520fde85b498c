"""A plain convolutional network for small images, and what image models share."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steelyard.errors import ConfigError

__all__ = ["ConvNet", "convolution", "draw_weights", "refuse_empty"]


class ConvNet(nn.Module):
    """Convolutions of 3x3 with ReLU, each followed by pooling over 2x2, and a classifier.

    It has no batch norm, so that each example's gradient is its own.

    Attributes:
        layers: the convolutions.
        fc: the classifier.
    """

    def __init__(
        self,
        *,
        in_channels: int = 1,
        num_classes: int = 10,
        widths: tuple[int, ...] = (16, 32),
        seed: int = 0,
    ) -> None:
        """Draw the weights as He et al. do, and the classifier from N(0, .01).

        Args:
            in_channels: channels of an image.
            num_classes: labels.
            widths: channels of each convolution; images are halved as often.
            seed: seed of the draws.

        Raises:
            ConfigError: a size is not positive.
        """
        super().__init__()
        refuse_empty(
            in_channels=in_channels, num_classes=num_classes, widths=min(widths, default=0)
        )
        before = (in_channels, *widths)
        self.layers = nn.ModuleList(
            convolution(inputs, outputs, 3, bias=True)
            for inputs, outputs in zip(before, widths, strict=False)
        )
        self.fc = nn.Linear(widths[-1], num_classes)
        draw_weights(self, seed)

    def features(self, images: Tensor) -> Tensor:
        """Return what the classifier reads.

        Args:
            images: [B, C, H, W], at least 2 pixels wide and high per convolution's halving.

        Returns:
            [B, last width].
        """
        hidden = images
        for layer in self.layers:
            hidden = F.max_pool2d(torch.relu(layer(hidden)), 2, ceil_mode=True)
        return hidden.mean((2, 3))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits.

        Args:
            images: [B, C, H, W].

        Returns:
            [B, classes].
        """
        return self.fc(self.features(images))


def convolution(
    inputs: int, outputs: int, size: int, stride: int = 1, *, bias: bool = False
) -> nn.Conv2d:
    """Make a convolution that keeps the resolution, but for its stride.

    Args:
        inputs: channels before.
        outputs: channels after.
        size: width and height of the kernel, odd.
        stride: pixels from one result to the next.
        bias: whether there is a bias per channel.

    Returns:
        The convolution; `draw_weights` is to fill it.
    """
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=bias)


def refuse_empty(**sizes: int) -> None:
    """Refuse sizes below 1, by name.

    Args:
        **sizes: the sizes.

    Raises:
        ConfigError: one is below 1.
    """
    wrong = [f"{name} = {size}" for name, size in sizes.items() if size < 1]
    if wrong:
        raise ConfigError(f"{', '.join(wrong)} of an image model", hint="give at least 1")


@torch.no_grad()
def draw_weights(model: nn.Module, seed: int) -> None:
    """Draw convolutions and classifier; norms keep gains of 1 and biases of 0.

    Args:
        model: it is changed.
        seed: seed of the draws.

    Source: He et al. 2015 (arXiv 1502.01852), equation 14 (by outputs); Goyal et al. 2017 (arXiv
        1706.02677), section 5.1 (the classifier).
    """
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(
                module.weight, mode="fan_out", nonlinearity="relu", generator=generator
            )
        elif isinstance(module, nn.Linear):
            module.weight.normal_(0.0, 0.01, generator=generator)
        if isinstance(module, (nn.Conv2d, nn.Linear)) and module.bias is not None:
            module.bias.zero_()

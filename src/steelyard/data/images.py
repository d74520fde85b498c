"""Images whose classes are known: patterns that are moved, scaled and buried in noise."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from steelyard.data.index import epoch_and_place
from steelyard.errors import require

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["GeneratedImages", "ImageBatches"]

_GRID = 5
"""Corners of a pattern along each side; between them it is smooth."""


@dataclass(frozen=True, kw_only=True)
class GeneratedImages:
    """A classification task of any difficulty: one smooth random pattern per class.

    Each image is its class's pattern, rolled sideways by up to a sixth of its width, times a gain
    of .5 to 1.5, plus normal noise. Training and held-out images are drawn alike.

    Attributes:
        classes: labels, 2 or more.
        channels: channels of an image.
        size: height and width in pixels, 5 or more.
        noise: standard deviation of the noise; patterns have one of about .7.
        examples: training images.
        heldout: held-out images.
        seed: seed of patterns and images.
    """

    classes: int = 10
    channels: int = 3
    size: int = 16
    noise: float = 1.2
    examples: int = 2048
    heldout: int = 1024
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse a task without images.

        Raises:
            ConfigError: a number is out of range.
        """
        counts = ("channels", "examples", "heldout")
        require(
            self,
            classes=(self.classes >= 2, "at least 2"),
            size=(self.size >= _GRID, f"at least {_GRID}"),
            noise=(self.noise >= 0, "0 or more"),
            seed=(self.seed >= 0, "0 or more"),
            **{name: (getattr(self, name) >= 1, "at least 1") for name in counts},
        )

    @cached_property
    def training(self) -> tuple[np.ndarray, np.ndarray]:
        """Images float32 [N, C, S, S] and their classes int64 [N]."""
        return self._draw(self.examples, 1)

    @cached_property
    def held(self) -> tuple[np.ndarray, np.ndarray]:
        """The same of held-out images."""
        return self._draw(self.heldout, 2)

    @cached_property
    def _patterns(self) -> np.ndarray:
        """One pattern per class, [classes, C, S, S]."""
        rng = np.random.default_rng((self.seed, 0))
        corners = rng.standard_normal((self.classes, self.channels, _GRID, _GRID))
        places, columns = np.linspace(0, _GRID - 1, self.size), np.arange(_GRID)
        # Weights of the two corners around each pixel: a product with them interpolates linearly.
        weights = np.maximum(0.0, 1.0 - np.abs(places[:, None] - columns))
        return np.einsum("yi,kcij,xj->kcyx", weights, corners, weights).astype(np.float32)

    def _draw(self, count: int, part: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw images of one part."""
        rng = np.random.default_rng((self.seed, part))
        classes = rng.integers(0, self.classes, count)
        shifts = rng.integers(-(self.size // 6), self.size // 6 + 1, count)
        gains = rng.uniform(0.5, 1.5, (count, 1, 1, 1)).astype(np.float32)
        shape = (count, self.channels, self.size, self.size)
        images = self.noise * rng.standard_normal(shape, dtype=np.float32)
        columns = (np.arange(self.size) - shifts[:, None]) % self.size
        moved = np.take_along_axis(self._patterns[classes], columns[:, None, None, :], axis=-1)
        images += gains * moved
        return images, classes


class ImageBatches:
    """Batches of training images as torch tensors, by the step alone; epochs are permutations."""

    def __init__(self, images: GeneratedImages, batch_size: int, seed: int = 0) -> None:
        """Fix size and order.

        Args:
            images: the task.
            batch_size: images of a batch.
            seed: seed of the order.
        """
        self._task, self._batch_size, self._seed = images, batch_size, seed

    def batch(self, index: int, /) -> "tuple[Tensor, Tensor]":
        """Return the batch of a step.

        Args:
            index: number of the step, from 0.

        Returns:
            Images float32 [B, C, S, S] and their classes int64 [B].
        """
        import torch

        images, classes = self._task.training
        places = index * self._batch_size + np.arange(self._batch_size)
        _, chosen = epoch_and_place(places, len(classes), self._seed)
        return torch.from_numpy(images[chosen]), torch.from_numpy(classes[chosen])

"""Small networks on generated images of which some are much harder than others, and pruned sets."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from steelyard.data.difficulty import entropy, forgetting, margin, prototype_distance
from steelyard.data.index import epoch_and_place
from steelyard.train import EstimatorConfig
from steelyard.train.batches import Batch
from steelyard.train.estimator import Estimator
from steelyard.train.measure import ExampleStatistics

__all__ = ["CLASSES", "Images", "Scores", "held_out_error", "score"]

CLASSES = 10
_SIDE = 12
_BATCH = 64
_NOISE = 0.9
_SCORED_SHARE = 0.2
"""Part of a training whose EL2N scores are averaged."""

Array = NDArray[np.float64]


class Images:
    """Smooth patterns, moved and of their own contrast; rare views stand among common ones.

    Attributes:
        images: [N, 1, 12, 12].
        labels: classes int64 [N], a share of them wrong where it was asked for.
        held: images and right classes that nothing is trained on.
    """

    def __init__(self, count: int, seed: int, *, wrong: float = 0.0) -> None:
        """Draw the images.

        Args:
            count: examples N.
            seed: seed of the draw; the patterns are the same for all.
            wrong: share of labels drawn anew.
        """
        generator = torch.Generator().manual_seed(1000 + seed)
        shapes = torch.randn(CLASSES, 4, 1, 4, 4, generator=torch.Generator().manual_seed(0))
        self.images, self.labels = self._draw(shapes, count, generator)
        self.held = self._draw(shapes, 4000, generator)
        if wrong:
            changed = torch.rand(count, generator=generator) < wrong
            drawn = torch.randint(0, CLASSES, (count,), generator=generator)
            self.labels = torch.where(changed, drawn, self.labels)

    @staticmethod
    def _draw(shapes: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw images and classes: each class has four views, the first of them most common."""
        labels = torch.randint(0, CLASSES, (count,), generator=generator)
        odds = torch.tensor([0.7, 0.18, 0.08, 0.04])
        views = torch.multinomial(odds, count, replacement=True, generator=generator)
        plain = F.interpolate(shapes.flatten(0, 1), size=_SIDE, mode="bilinear")
        plain = plain.unflatten(0, (CLASSES, 4))[labels, views]
        shifts = torch.randint(-1, 2, (count,), generator=generator)
        moved = torch.stack([row.roll(int(by), -1) for row, by in zip(plain, shifts, strict=True)])
        noise = torch.randn(moved.shape, generator=generator)
        return moved + _NOISE * noise, labels

    def kept(self, rows: NDArray[np.int64]) -> "_Epochs":
        """Return batches of some of the examples."""
        place = torch.from_numpy(np.asarray(rows))
        return _Epochs(self.images[place], self.labels[place], place)


@dataclass(frozen=True)
class _Epochs:
    """Batches of images, labels and numbers in a new order each pass."""

    images: Tensor
    labels: Tensor
    numbers: Tensor

    def batch(self, index: int, /) -> tuple[Tensor, Tensor, Tensor]:
        """Return the batch of a step; one of few examples straddles passes."""
        positions = np.arange(index * _BATCH, (index + 1) * _BATCH)
        _, places = epoch_and_place(positions, len(self.labels), 0)
        chosen = torch.from_numpy(places)
        return self.images[chosen], self.labels[chosen], self.numbers[chosen]


def _network(seed: int) -> nn.Module:
    """Make a network of one hidden layer."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(_SIDE**2, 96), nn.ReLU(), nn.Linear(96, CLASSES))


def _loss(module: nn.Module, batch: Batch) -> Tensor:
    """Return the cross-entropy of classes."""
    assert isinstance(batch, tuple)
    return F.cross_entropy(module(batch[0]), batch[1])


def _part(batch: Batch, place: int) -> Tensor:
    """Return images, labels or numbers of a batch."""
    assert isinstance(batch, tuple)
    return batch[place]


def _config(steps: int, seed: int) -> EstimatorConfig:
    """Return how every network is trained."""
    return EstimatorConfig(
        steps=steps,
        batch_size=_BATCH,
        learning_rate=3e-3,
        warmup_steps=steps // 20,
        cooldown_steps=steps // 3,
        weight_decay=0.05,
        seed=seed,
        threads=1,
    )


def held_out_error(images: Images, rows: NDArray[np.int64], steps: int, seed: int) -> float:
    """Train on some of the images.

    Args:
        images: all of them.
        rows: those to train on.
        steps: steps of 64.
        seed: seed of the weights.

    Returns:
        Share of held-out images classified wrongly.
    """
    module = _network(seed)
    pictures, classes = images.held

    def wrong(module: nn.Module) -> float:
        return float((module(pictures).argmax(1) != classes).float().mean())

    with tempfile.TemporaryDirectory() as folder:
        estimator = Estimator(module, _loss, _config(steps, seed), evaluate=wrong)
        found = estimator.fit(images.kept(rows), Path(folder)).eval_loss
    assert found is not None
    return found


@dataclass(frozen=True)
class Scores:
    """How hard the examples are by each metric, of several networks.

    Attributes:
        by_metric: scores [N], higher is harder.
        el2n: EL2N by network [S, N].
    """

    by_metric: dict[str, Array]
    el2n: Array


def score(images: Images, steps: int, nets: int) -> Scores:
    """Score every example by networks trained on all: one training each gives all their metrics.

    Args:
        images: the examples.
        steps: steps of each training.
        nets: networks.

    Returns:
        The scores.
    """
    count = len(images.labels)
    labels = images.labels.numpy()
    early, forgot, late = [], [], []
    for seed in range(nets):
        module = _network(100 + seed)
        watch = ExampleStatistics(
            count,
            ids=lambda batch: _part(batch, 2),
            labels=lambda batch: _part(batch, 1),
            scored_steps=int(_SCORED_SHARE * steps),
        )
        with tempfile.TemporaryDirectory() as folder:
            config = _config(steps, 100 + seed)
            Estimator(module, _loss, config, callbacks=[watch]).fit(
                images.kept(np.arange(count)), Path(folder)
            )
        early.append(watch.el2n.numpy())
        forgot.append(forgetting(watch.forgotten.numpy(), watch.learned.numpy()))
        with torch.no_grad():
            late.append(module(images.images).numpy())
    el2n = np.nan_to_num(np.array(early), nan=float(np.nanmean(early)))
    metrics: dict[str, Callable[[], Array]] = {
        "el2n": lambda: el2n.mean(axis=0),
        "forgetting": lambda: np.mean(forgot, axis=0),
        "margin": lambda: np.mean([margin(item, labels) for item in late], axis=0),
        "entropy": lambda: entropy(np.array(late)),
        "prototypes": lambda: prototypes(images),
    }
    return Scores({name: make() for name, make in metrics.items()}, el2n)


def prototypes(images: Images) -> Array:
    """Return distances to prototypes of the images' main components, without labels."""
    flat = images.images.flatten(1).double().numpy()
    flat = flat - flat.mean(axis=0)
    _, _, axes = np.linalg.svd(flat[:2000], full_matrices=False)
    return prototype_distance(flat @ axes[:24].T, count=4 * CLASSES)

"""Train a residual network on generated images: the general loop with a classifier's loss."""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steelyard.config import to_plain
from steelyard.data.images import ImageBatches
from steelyard.nn.resnet import ResNet
from steelyard.train.batches import Batch
from steelyard.train.estimator import Estimator
from steelyard.train.evaluate import mean_loss
from steelyard.train.kinds.config import ImagesConfig
from steelyard.train.reducer import Reducer
from steelyard.train.result import EstimatorResult, OnStep

__all__ = ["class_loss", "train_images"]


def class_loss(module: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross-entropy of images [B, C, S, S] and classes [B], nats per image."""
    assert isinstance(batch, tuple)
    images, classes = batch
    return F.cross_entropy(module(images).float(), classes)


def train_images(
    config: ImagesConfig,
    directory: Path,
    *,
    on_step: OnStep | None = None,
    reducer: Reducer | None = None,
) -> EstimatorResult:
    """Train to the end, or go on where an earlier call was killed.

    Args:
        config: the run.
        directory: the run's folder: checkpoints and result.
        on_step: called after each step.
        reducer: joins the processes that share each step; None for one process.

    Returns:
        Held-out loss in nats per image, history and measurements.

    Raises:
        ConfigError: the configuration does not fit the run in the folder, there is no such network,
            or the loss diverged.
        StoreError: another process trains in this folder.
        CapacityError: the disk is full.
        BackendError: the device is not there.
    """
    task, shape = config.images, config.network
    network = ResNet(
        shape.depth,
        in_channels=task.channels,
        num_classes=task.classes,
        width=shape.width,
        ghost_size=shape.ghost_size,
        seed=config.seed,
    ).to(config.device)
    size = config.micro_batch_size
    held = [
        tuple(torch.from_numpy(part[start : start + size]) for part in task.held)
        for start in range(0, task.heldout, size)
    ]
    estimator = Estimator(
        network,
        class_loss,
        config,
        evaluate=mean_loss(class_loss, held, device=config.device),
        reducer=reducer,
    )
    batches = ImageBatches(task, config.batch_size, config.seed)
    return estimator.fit(batches, directory, on_step=on_step, data=to_plain(task))

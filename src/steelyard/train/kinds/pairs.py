"""Train an encoder-decoder on a task of inputs and targets: the general loop on loaded rows."""

from collections.abc import Callable
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn

from steelyard.data.convert import SequenceToSequence
from steelyard.data.loader import Loader, TensorBatches, can_pack
from steelyard.data.tasks.mixture import TaskMixture
from steelyard.data.tasks.recipe import DataRecipe
from steelyard.data.tasks.task import Examples, Task
from steelyard.errors import ConfigError
from steelyard.nn import checkpoint, encoder_decoder
from steelyard.train.batches import Batch
from steelyard.train.estimator import Estimator
from steelyard.train.kinds.config import PairsConfig
from steelyard.train.reducer import AloneReducer, Reducer
from steelyard.train.result import EstimatorResult, OnStep

__all__ = ["pair_loss", "train_pairs"]


def pair_loss(module: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross-entropy of the targets of a micro-batch, nats per token."""
    total, weight = _summed(module, batch)
    return total / weight


def train_pairs(
    config: PairsConfig,
    data: DataRecipe,
    directory: Path,
    *,
    on_step: OnStep | None = None,
    reducer: Reducer | None = None,
) -> EstimatorResult:
    """Train to the end, or go on where an earlier call was killed.

    Args:
        config: the run.
        data: the tasks.
        directory: the run's folder: checkpoints, result, and the model in "model".
        on_step: called after each step.
        reducer: joins the processes that share each step; None for one process.

    Returns:
        Held-out loss in nats per target token, history and measurements.

    Raises:
        ConfigError: the configuration does not fit the tasks or the run in the folder, or the loss
            diverged.
        DataError: an example is malformed, or a cache is missing or damaged.
        StoreError: another process trains in this folder.
        CapacityError: the disk is full.
        BackendError: the device is not there.
    """
    joined = reducer or AloneReducer()
    directory = Path(directory)
    training = _loader(config, data, config.task, config.batch_size)
    held = _loader(config, data, config.heldout, config.micro_batch_size)
    model = encoder_decoder.build(config.architecture, seed=config.seed).to(config.device)
    estimator = Estimator(
        model, pair_loss, config, evaluate=_heldout_loss(config, held), reducer=joined
    )
    told = _told_apart(config, data) | {"rates": repr(training.rates)}
    result = estimator.fit(TensorBatches(training), directory, on_step=on_step, data=told)
    if not joined.everyone.rank:
        # Also after a run that was finished before: a kill may have come before the model.
        checkpoint.save(model, directory / "model")
    return result


def _told_apart(config: PairsConfig, data: DataRecipe) -> dict[str, object]:
    """Return what tells the tasks of a run from others: the hash of each one's source and steps."""
    opened = (data.open(name) for name in (config.task, config.heldout))
    tasks = [task for item in opened for task in _tasks(item)]
    return {task.name: task.key for task in tasks if isinstance(task, Task)}


def _tasks(data: Examples | TaskMixture) -> list[Examples]:
    """Return the tasks of a mixture, or the one that it is."""
    return data.tasks if isinstance(data, TaskMixture) else [data]


def _loader(config: PairsConfig, data: DataRecipe, name: str, rows: int) -> Loader:
    """Open a stream of rows."""
    opened = data.open(name, Path(config.cache).expanduser() if config.cache else None)
    _check_vocabulary(config, opened)
    lengths = SequenceToSequence(inputs=config.source_length, targets=config.target_length)
    return Loader(opened, lengths, rows, seed=config.seed, pack=can_pack(opened))


def _check_vocabulary(config: PairsConfig, data: Examples | TaskMixture) -> None:
    """Refuse tokens that the model has no row for."""
    vocabularies = (item.vocabulary for task in _tasks(data) for item in task.features.values())
    largest = max(item.size for item in vocabularies)
    if largest > config.architecture.vocab_size:
        raise ConfigError(
            f"the tasks have {largest} tokens, the architecture vocab_size = "
            f"{config.architecture.vocab_size}",
            hint=f"set vocab_size = {largest} or more",
        )


def _heldout_loss(config: PairsConfig, rows: Loader) -> Callable[[nn.Module], float]:
    """Make the measurement of the held-out loss; every token counts alike."""
    batches = TensorBatches(rows)
    count = -(-config.heldout_rows // rows.batch_size)

    def measure(module: nn.Module) -> float:
        total = weights = 0.0
        for index in range(count):
            batch = {name: part.to(config.device) for name, part in batches.batch(index).items()}
            loss, weight = _summed(module, batch)
            total, weights = total + float(loss), weights + float(weight)
        return total / weights

    return measure


def _summed(module: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the sum of the cross-entropy of targets, and of their weights."""
    assert isinstance(batch, dict)
    logits = module(
        batch["encoder_inputs"],
        batch["decoder_inputs"],
        source_segments=batch["encoder_segments"],
        target_segments=batch["decoder_segments"],
    )
    targets, weights = batch["decoder_targets"].flatten(), batch["decoder_weights"].flatten()
    losses = F.cross_entropy(logits.flatten(0, 1).float(), targets, reduction="none")
    # Rows of padding alone weigh nothing: 1 keeps their mean a number.
    return (losses * weights).sum(), weights.sum().clamp(min=1.0)

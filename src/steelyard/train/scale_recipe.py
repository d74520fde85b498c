"""A recipe at another batch size, and the checks that the larger batch means what it should."""

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from steelyard.errors import ConfigError, DataError, SteelyardWarning
from steelyard.train.batches import Batch, BatchSource, count_examples, micro_batches
from steelyard.train.estimator_config import EstimatorConfig
from steelyard.train.session import Loss

__all__ = ["check_normalisation", "check_sampling", "scale_recipe"]

C = TypeVar("C", bound=EstimatorConfig)

_POWERS = {"linear": 1.0, "sqrt": 0.5, "none": 0.0}


def scale_recipe(
    config: C,
    batch_size: int,
    *,
    rule: Literal["linear", "sqrt", "none"] | None = None,
    warmup_examples: int = 0,
) -> C:
    """Return the run at another batch size that trains on as many examples.

    With k times the batch there are 1/k of the steps, in all parts of the schedule; the rate grows
    by the rule, and the warm-up begins at the rate of the old batch. Weight decay, momentum and
    clipping stay. So does the size of micro-batches, over which batch norms take their statistics:
    `accumulation` grows, to be shared by as many more processes.

    Args:
        config: a run at the batch size it was tuned at.
        batch_size: examples of the new step, a multiple of a micro-batch.
        rule: growth of the rate: k, its root or none; None for "linear" with "sgd" and "sqrt" with
            optimizers that divide by the gradient's size.
        warmup_examples: examples over which the rate grows, five epochs' in the paper; 0 keeps the
            examples of the old warm-up.

    Returns:
        The run.

    Raises:
        ConfigError: the batch is no multiple of a micro-batch, the schedule is a list of
            multipliers, or the parts no longer fit into the steps.

    Source: Goyal et al. 2017 (arXiv 1706.02677), sections 2.1 and 2.2; Krizhevsky 2014 (arXiv
        1404.5997), section 5 (root).
    """
    if batch_size < 1 or batch_size % config.micro_batch_size:
        raise ConfigError(
            f"batch_size {batch_size} is no multiple of a micro-batch of "
            f"{config.micro_batch_size} examples",
            hint="choose a multiple, or change accumulation first",
        )
    if not isinstance(config.schedule, str):
        raise ConfigError(
            "a schedule of multipliers belongs to its number of steps",
            hint="use a named schedule, or make the multipliers for the new steps",
        )
    adaptive = config.optimizer != "sgd"
    chosen = rule or ("sqrt" if adaptive else "linear")
    if adaptive and chosen == "linear":
        warnings.warn(
            f"the linear rule is for sgd; {config.optimizer} takes steps of a size that does not "
            f"follow the gradient's: 'sqrt' suits it better",
            SteelyardWarning,
            stacklevel=2,
        )
    factor = batch_size / config.batch_size
    growth = factor ** _POWERS[chosen]
    warmup = warmup_examples or config.warmup_steps * config.batch_size

    def shrunk(steps: int) -> int:
        return max(1, round(steps / factor)) if steps else 0

    return replace(
        config,
        batch_size=batch_size,
        accumulation=batch_size // config.micro_batch_size,
        steps=shrunk(config.steps),
        learning_rate=config.learning_rate * growth,
        warmup_steps=math.ceil(warmup / batch_size),
        warmup_from=max(config.warmup_from, 1 / growth) if growth > 1 else config.warmup_from,
        cooldown_steps=shrunk(config.cooldown_steps),
        checkpoint_every=shrunk(config.checkpoint_every),
        checkpoint_at=tuple(sorted({shrunk(step) for step in config.checkpoint_at})),
        eval_every=shrunk(config.eval_every),
    )


def check_normalisation(
    module: nn.Module, loss: Loss, batches: BatchSource, config: EstimatorConfig
) -> float:
    """Compare the gradient of a step's micro-batches with that of the whole batch at once.

    A loss that sums over examples, or divides by another count than its own, makes the learning
    rate change with the number of micro-batches. The module is put in evaluation mode meanwhile:
    batch statistics and dropout differ rightly.

    Args:
        module: module that will be trained.
        loss: loss that the estimator takes.
        batches: where batches come from.
        config: the run; it needs two micro-batches.

    Returns:
        Norm of the difference over the norm of the whole batch's gradient.

    Raises:
        ConfigError: they differ by more than 1e-3, or there is one micro-batch.

    Source: Goyal et al. 2017 (arXiv 1706.02677), section 3, remark 3.
    """
    if config.accumulation < 2:
        raise ConfigError(
            "one micro-batch is the whole batch: there is nothing to compare",
            hint="set accumulation to 2 or more",
        )
    batch = batches.batch(0)
    was_training = module.training
    module.eval()
    try:
        whole = _gradient(module, loss, batch, config.batch_size, config)
        parts = _gradient(module, loss, batch, config.micro_batch_size, config)
    finally:
        module.train(was_training)
    error = float((parts - whole).norm() / whole.norm())
    if not error < 1e-3:
        raise ConfigError(
            f"the mean gradient of {config.accumulation} micro-batches differs from that of the "
            f"whole batch by {100 * error:.2g} %: the loss is not the mean over its examples",
            hint="divide the loss by its own number of examples, and by nothing else",
        )
    return error


def _gradient(
    module: nn.Module, loss: Loss, batch: Batch, size: int, config: EstimatorConfig
) -> Tensor:
    """Return the mean gradient of micro-batches of a size, as one float64 vector."""
    trained = [item for item in module.parameters() if item.requires_grad]
    parts = list(micro_batches(batch, size, config.device))
    total: Tensor | None = None
    for part in parts:
        found = loss(module, part)
        mean = found[0] + found[1] if isinstance(found, tuple) else found
        gradients = torch.autograd.grad(mean, trained, allow_unused=True, materialize_grads=True)
        flat = torch.cat([item.flatten().double() for item in gradients]) / len(parts)
        total = flat if total is None else total + flat
    assert total is not None
    return total


def check_sampling(batches: BatchSource, ids: Callable[[Batch], Tensor], *, examples: int) -> None:
    """Refuse a source that repeats or leaves out examples within its first epoch.

    All workers must cut one permutation of the data: a permutation each would sample with
    replacement.

    Args:
        batches: where batches come from.
        ids: returns the numbers of a batch's examples, int64 [B] in 0..examples-1.
        examples: examples of an epoch.

    Raises:
        DataError: an example came twice before all others came once.

    Source: Goyal et al. 2017 (arXiv 1706.02677), section 3, remark 4.
    """
    seen = torch.zeros(examples, dtype=torch.int64)
    for index in range(examples // max(1, count_examples(batches.batch(0)))):
        numbers = ids(batches.batch(index)).cpu()
        seen.index_add_(0, numbers, torch.ones_like(numbers))
        if int(seen.max()) > 1:
            raise DataError(
                f"example {int(seen.argmax())} came twice by batch {index}, while "
                f"{int((seen == 0).sum())} of {examples} had not come yet",
                hint="cut the batches of an epoch from one permutation of all examples",
            )

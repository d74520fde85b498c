"""A perceptron as a learner of tables: `data.learning` hands it rows, `Estimator` trains it."""

import itertools
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from steelyard.data.learning import FitJob, Perceptron
from steelyard.data.learning.learners import Needs
from steelyard.data.learning.losses import mean_loss, start_scores
from steelyard.errors import StoppedEarlyError, require
from steelyard.train.batches import Batch
from steelyard.train.callback import Callback
from steelyard.train.estimator import Estimator
from steelyard.train.estimator_config import EstimatorConfig
from steelyard.train.result import Progress

__all__ = ["NeuralConfig"]

_CHUNK, _POOL = 256, 16
"""Rows that are read together, and how many such parts are mixed."""
_MOST_EPOCHS = 100
_BATCHES = 64
"""Batches that small tables are cut into."""
_SMALLEST, _LARGEST = 32, 1024
_MOST_MEASURED = 50_000
_CHECKPOINTS, _EXPLAINED = 10, 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class NeuralConfig:
    """How a perceptron is fitted to the features of a table.

    Numbers are standardized features; each frequent value of text has a flag, whose weights in the
    first layer are its embedding.

    Attributes:
        hidden: widths of the inner layers.
        rate: peak learning rate.
        weight_decay: decay of the weights.
        dropout: share of inner values that are left out of each step.
        epochs: passes over the rows.
        least_steps: steps that tables of few rows take, in up to 100 passes.
        patience: measures of the rows kept aside without gain after which it ends; 0 never ends.
    """

    needs: ClassVar[Needs] = "features"
    hidden: tuple[int, ...] = (128, 64)
    rate: float = 2e-3
    weight_decay: float = 0.05
    dropout: float = 0.1
    epochs: int = 30
    least_steps: int = 1500
    patience: int = 6

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        require(
            self,
            hidden=(all(width >= 1 for width in self.hidden), "widths of at least 1"),
            rate=(0 < self.rate < 1, "above 0 and below 1"),
            weight_decay=(self.weight_decay >= 0, "at least 0"),
            dropout=(0 <= self.dropout < 1, "0 to below 1"),
            epochs=(self.epochs >= 1, "at least 1"),
            least_steps=(self.least_steps >= 0, "at least 0"),
            patience=(self.patience >= 0, "at least 0"),
        )

    def fit(self, job: FitJob) -> Perceptron:
        """Train a perceptron; features are read in batches from where they lie.

        Args:
            job: features of rows, and what is predicted.

        Returns:
            The weights with the least loss of the rows kept aside; those of the end where none are.

        Raises:
            DataError: no rows are left to learn from, or a class has none among them.
        """
        start = start_scores(job.store.targets, job.store.is_held, job.target)
        batches = _RowBatches(job)
        epochs = max(self.epochs, min(self.least_steps // batches.per_epoch, _MOST_EPOCHS))
        steps = epochs * batches.per_epoch
        config = EstimatorConfig(
            steps=steps,
            batch_size=batches.size,
            learning_rate=self.rate,
            warmup_steps=min(steps // 20, 100),
            schedule="cosine",
            weight_decay=self.weight_decay,
            betas=(0.9, 0.99),
            seed=job.seed,
            eval_every=batches.per_epoch,
            checkpoint_every=max(steps // _CHECKPOINTS, 1),
            # Sums of another number of threads would round otherwise, and end in another model.
            threads=1,
        )
        module = _module(self, job, start)
        best = _BestWeights(module, batches, self.patience)
        estimator = Estimator(
            module, _loss_of(job), config, evaluate=best.measure, callbacks=[best]
        )
        with tempfile.TemporaryDirectory() as name, suppress(StoppedEarlyError):
            folder = Path(name) if job.work is None else job.work
            estimator.fit(batches, folder, on_step=best.watch)
        some = job.rows[:: max(len(job.rows) // _EXPLAINED, 1)]
        return batches.in_own_scale(best.layers()).with_effects(np.array(job.features[some]))


def _module(config: NeuralConfig, job: FitJob, start: NDArray[np.float32]) -> nn.Sequential:
    """Return layers with drawn weights, whose scores begin at the constant prediction."""
    widths, parts = [job.features.shape[1], *config.hidden], []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.seed)
        for wide, width in itertools.pairwise(widths):
            parts += [nn.Linear(wide, width), nn.ReLU(), nn.Dropout(config.dropout)]
        last = nn.Linear(widths[-1], job.target.width)
    with torch.no_grad():
        last.weight.mul_(0.1)
        # Numbers are standardized, so that their constant prediction is 0.
        is_number = job.target.task == "regress"
        last.bias.copy_(torch.zeros(1) if is_number else torch.from_numpy(start))
    return nn.Sequential(*parts, last)


def _loss_of(job: FitJob) -> Callable[[nn.Module, Batch], Tensor]:
    """Return the loss of a batch: squared error, or log loss."""
    is_number, is_two = job.target.task == "regress", job.target.width == 1

    def loss(module: nn.Module, batch: Batch) -> Tensor:
        assert isinstance(batch, tuple), "features and targets"
        rows, targets = batch
        scores = module(rows)
        if is_number:
            return functional.mse_loss(scores[:, 0], targets)
        if is_two:
            return functional.binary_cross_entropy_with_logits(scores[:, 0], targets)
        return functional.cross_entropy(scores, targets.long())

    return loss


class _RowBatches:
    """Batches of rows that are learned from, in an order that is drawn anew for each epoch.

    Parts of 256 rows come in a drawn order, and the rows of sixteen parts in another: a mapped file
    is read on, and rows that lie together are still mixed with others.
    """

    def __init__(self, job: FitJob) -> None:
        self.job, self.rows = job, job.rows
        wanted = 2 ** int(np.log2(max(len(self.rows) / _BATCHES, 1)))
        self.size = min(max(wanted, _SMALLEST), _LARGEST, len(self.rows))
        # Rows that are left over in one epoch are others in the next.
        self.per_epoch = len(self.rows) // self.size
        self.held = job.held[:_MOST_MEASURED]
        self.middle, self.scale = 0.0, 1.0
        if job.target.task == "regress":
            known = np.asarray(job.store.targets)[self.rows]
            self.middle = float(known.mean(dtype=np.float64))
            self.scale = float(known.std(dtype=np.float64)) or 1.0
        self._epoch, self._order = -1, self.rows

    def batch(self, index: int, /) -> Batch:
        """Return the batch of a step."""
        epoch, place = divmod(index, self.per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._drawn(epoch)
        places = self._order[place * self.size : (place + 1) * self.size]
        targets = np.asarray(self.job.store.targets[places], np.float64)
        known = ((targets - self.middle) / self.scale).astype(np.float32)
        return torch.from_numpy(np.array(self.job.features[places])), torch.from_numpy(known)

    def _drawn(self, epoch: int) -> NDArray[np.int64]:
        """Return the rows in the order of an epoch."""
        rng = np.random.default_rng([self.job.seed, epoch])
        parts = np.array_split(self.rows, max(len(self.rows) // _CHUNK, 1))
        order = rng.permutation(len(parts))
        pools = (order[first : first + _POOL] for first in range(0, len(order), _POOL))
        mixed = [rng.permutation(np.concatenate([parts[at] for at in pool])) for pool in pools]
        return np.concatenate(mixed)

    def loss(self, model: Perceptron) -> float:
        """Return the mean loss of rows kept aside."""
        scores = model.scores(self.job.features[self.held])
        return mean_loss(self.job.target, np.asarray(self.job.store.targets[self.held]), scores)

    def in_own_scale(self, layers: list[NDArray[np.float32]]) -> Perceptron:
        """Return layers whose scores have the target's own scale."""
        last = layers[-1].astype(np.float64) * self.scale
        last[:, -1] += self.middle
        return Perceptron(layers=(*layers[:-1], last.astype(np.float32)))


class _BestWeights(Callback):
    """Keeps the weights of the least loss, in checkpoints too, and ends a run that gains no more.

    Attributes:
        name: names its state in checkpoints.
    """

    name = "best-weights"

    def __init__(self, module: nn.Module, batches: _RowBatches, patience: int) -> None:
        """Begin with the weights that the module has.

        Args:
            module: what is trained.
            batches: rows kept aside among them.
            patience: measures without gain after which it ends; 0 never ends.
        """
        self._linear = [part for part in module.modules() if isinstance(part, nn.Linear)]
        self._batches, self._patience = batches, patience
        self._kept, self._least, self._waited = self._now(), np.inf, 0

    def _now(self) -> list[NDArray[np.float32]]:
        """Return the weights as they are."""
        parts = (
            torch.cat([part.weight.detach(), part.bias.detach()[:, None]], dim=1)
            for part in self._linear
        )
        return [np.array(part.cpu().numpy()) for part in parts]

    def measure(self, _module: nn.Module) -> float:
        """Return the loss of the rows kept aside, and keep the weights where it is the least."""
        layers = self._now()
        if not len(self._batches.held):
            self._kept = layers
            return 0.0
        loss = self._batches.loss(self._batches.in_own_scale(layers))
        self._waited = 0 if loss < self._least * (1 - 1e-4) else self._waited + 1
        if loss < self._least:
            self._kept, self._least = layers, loss
        return loss

    def watch(self, now: Progress) -> None:
        """Tell how far the run is; end it where it has waited long enough."""
        self._batches.job.done(None, now.step / now.steps)
        # A call that goes on from the checkpoint of such an end ends here too, with what was kept.
        if self._patience and self._waited >= self._patience:
            raise StoppedEarlyError(f"no gain in {self._waited} measures")

    def layers(self) -> list[NDArray[np.float32]]:
        """Return the weights that were kept."""
        return self._kept

    def tensors(self) -> dict[str, Tensor]:
        """Return the state that a checkpoint keeps."""
        told = {"least": torch.tensor([self._least, self._waited], dtype=torch.float64)}
        return told | {f"layer{at}": torch.from_numpy(part) for at, part in enumerate(self._kept)}

    def restore(self, tensors: dict[str, Any], /) -> None:
        """Take over the state of a checkpoint."""
        least, waited = tensors["least"].tolist()
        self._least, self._waited = float(least), int(waited)
        self._kept = [np.array(tensors[f"layer{at}"].numpy()) for at in range(len(self._kept))]

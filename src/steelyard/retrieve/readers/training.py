"""Readers that learn to use what was looked up for them."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from steelyard.data.index import Permutation
from steelyard.errors import ConfigError
from steelyard.retrieve.readers.reader import PassageReader, prompts
from steelyard.retrieve.readers.windows import ReadingWindows
from steelyard.train import EstimatorConfig
from steelyard.train.batches import Batch
from steelyard.train.estimator import Estimator

if TYPE_CHECKING:
    from steelyard.retrieve.datastore import Candidates

__all__ = ["train_reader"]


def train_reader(
    reader: PassageReader,
    windows: ReadingWindows,
    found: "Candidates",
    config: EstimatorConfig,
    folder: Path,
) -> list[float]:
    """Train a reader on windows with passages in front of them.

    Every window comes with 0 to all of its passages, by turns, so that the reader predicts with
    and without a store.

    Args:
        reader: the reader; its model is trained.
        windows: windows of training text.
        found: passages of each; those of the window's own document must be left out by
            `Candidates.exclude`, else the reader learns to copy what no store will hold.
        config: the run.
        folder: the run's folder, from which a call that was killed goes on.

    Returns:
        Training loss of each step.

    Raises:
        ConfigError: not as many windows as queries, fewer windows than a batch holds, or passages
            of a window's own document.
    """
    if len(found) != len(windows) or len(windows) < config.batch_size:
        raise ConfigError(
            f"passages for {len(found)} windows of {len(windows)}, in batches of "
            f"{config.batch_size}",
            hint="search with the windows' queries, and give a batch of windows or more",
        )
    if "exclude" not in found.steps:
        raise ConfigError(
            "passages of the windows' own documents are among the candidates",
            hint="leave them out: candidates.exclude(windows.sources)",
        )
    source = _Readings(reader, windows, found, config)
    result = Estimator(reader.model, _answer_loss, config).fit(source, folder)
    return [float(value) for value in result.losses]


class _Readings:
    """Windows with passages, in a new order each epoch."""

    def __init__(
        self,
        reader: PassageReader,
        windows: ReadingWindows,
        found: "Candidates",
        config: EstimatorConfig,
    ) -> None:
        self._reader, self._windows, self._found = reader, windows, found
        self._size, self._seed = config.batch_size, config.seed

    def batch(self, index: int, /) -> tuple[Tensor, ...]:
        """Return tokens, and weights of those that are predicted."""
        epoch, place = divmod(index, len(self._windows) // self._size)
        positions = np.arange(place * self._size, (place + 1) * self._size)
        rows = Permutation(len(self._windows), self._seed, epoch)(positions).tolist()
        kept = self._found.ids.shape[1] + 1
        texts = []
        for number, row in enumerate(rows):
            ids = self._found.ids[row][: (index + number) % kept]
            texts.append([self._found.store.text(one) for one in ids.tolist() if one >= 0])
        most = self._reader.model.architecture.max_positions
        tokens, begins = prompts(self._windows, rows, texts, self._reader.tokenizer, most)
        weights = torch.zeros(len(rows), tokens.shape[1] - 1)
        known, wanted = self._windows.known.shape[1], self._windows.wanted.shape[1]
        for line, begin in enumerate(begins):
            # The known part teaches as well: it is text like any other.
            weights[line, max(0, begin - known - 1) : begin - 1 + wanted] = 1.0
        return tokens, weights


def _answer_loss(module: nn.Module, batch: Batch) -> Tensor:
    """Return mean nats of the tokens of the windows."""
    assert isinstance(batch, tuple)
    tokens, weights = batch
    losses = module(tokens[:, :-1], targets=tokens[:, 1:])
    return (losses * weights).sum() / weights.sum()

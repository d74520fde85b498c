"""A small query tower that returns the vectors of a large one; documents stay as they are."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from steelyard.data.index import Permutation
from steelyard.errors import ConfigError
from steelyard.retrieve.towers.encoder import TowerEncoder, padded_tokens, with_tokens
from steelyard.train import EstimatorConfig
from steelyard.train.batches import Batch
from steelyard.train.estimator import Estimator

__all__ = ["VectorLoss", "distill_queries", "distill_to_vectors"]


class VectorLoss:
    """Squared distance to a target vector, and 1 less its cosine.

    Both are of unit vectors, whose squared distance is twice 1 less the cosine, so the weight
    scales the loss and nothing else; it is here as the recipe has both.

    Source: Xia et al. 2024 (ScalingNote, arXiv 2411.15766), stage 2.
    """

    def __init__(self, cosine_weight: float = 1.0) -> None:
        """Take the weight of the cosine.

        Args:
            cosine_weight: lambda of the recipe, 0 or more.
        """
        self.cosine_weight = cosine_weight

    def __call__(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss of a batch of tokens, lengths and target vectors."""
        assert isinstance(batch, tuple)
        tokens, lengths, targets = batch
        found = module(tokens, lengths)
        squared = (found - targets).square().sum(dim=-1)
        return (squared + self.cosine_weight * (1 - (found * targets).sum(dim=-1))).mean()


class _Targets:
    """Texts with the vectors that a student is to return, in a new order each epoch."""

    def __init__(
        self, tokens: list[list[int]], vectors: NDArray[np.float32], size: int, seed: int
    ) -> None:
        """Keep them."""
        self._tokens, self._vectors = tokens, torch.from_numpy(vectors)
        self._size, self._seed = size, seed

    def batch(self, index: int, /) -> tuple[Tensor, ...]:
        """Return the batch of a step."""
        epoch, place = divmod(index, len(self._tokens) // self._size)
        positions = np.arange(place * self._size, (place + 1) * self._size)
        rows = Permutation(len(self._tokens), self._seed, epoch)(positions)
        tokens, lengths = padded_tokens([self._tokens[row] for row in rows.tolist()])
        return tokens, lengths, self._vectors[torch.from_numpy(rows)]


def distill_queries(
    teacher: TowerEncoder,
    student: TowerEncoder,
    texts: Sequence[str],
    config: EstimatorConfig,
    folder: Path,
) -> list[float]:
    """Train a query tower to return the vectors of another; no documents or labels are needed.

    For unit vectors of documents, no score changes by more than the distance between the two
    vectors of a query, so an index of the teacher's documents serves the student as it is.

    Args:
        teacher: encoder whose vectors are wanted.
        student: encoder that is trained; where its vectors have another number of numbers, a map
            to the teacher's is learned behind them, and nothing changes for documents.
        texts: queries, also such as nobody has judged; those without a token are left out, with
            a warning that counts them.
        config: the run.
        folder: the run's folder, from which a call that was killed goes on.

    Returns:
        Training loss of each step.

    Raises:
        ConfigError: there are fewer texts with tokens than a batch holds.

    Source: Xia et al. 2024 (ScalingNote, arXiv 2411.15766), stage 2.
    """
    kept = with_tokens(texts, teacher, student)
    if len(kept) < config.batch_size:
        raise ConfigError(f"batches of {config.batch_size} from {len(kept)} texts")
    return distill_to_vectors(student, kept, teacher.encode(kept), config, folder)


def distill_to_vectors(
    student: TowerEncoder,
    texts: Sequence[str],
    vectors: NDArray[np.float32],
    config: EstimatorConfig,
    folder: Path,
) -> list[float]:
    """Train a query tower to return given vectors, such as a teacher's that were kept.

    Args:
        student: encoder that is trained; see `distill_queries`.
        texts: texts with a token each.
        vectors: unit vectors that are wanted [N, D].
        config: the run.
        folder: the run's folder, from which a call that was killed goes on.

    Returns:
        Training loss of each step.

    Raises:
        ConfigError: not as many vectors as texts, or fewer texts than a batch holds.
        DataError: a text has no token.
    """
    if len(texts) != len(vectors) or len(texts) < config.batch_size:
        raise ConfigError(
            f"{len(vectors)} vectors for {len(texts)} texts in batches of {config.batch_size}",
            hint="give a vector for each text, and as many as a batch holds",
        )
    if student.dim != vectors.shape[1]:
        student.tower.project_to(vectors.shape[1], seed=config.seed)
    source = _Targets(student.tokens(texts), vectors, config.batch_size, config.seed)
    result = Estimator(student.tower, VectorLoss(), config).fit(source, folder)
    return [float(value) for value in result.losses]

"""A query tower trained on pairs against documents that stay as they are."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from steelyard.data.index import Permutation
from steelyard.errors import ConfigError, DataError
from steelyard.retrieve.towers.encoder import TowerEncoder, padded_tokens
from steelyard.retrieve.towers.sources import document_groups
from steelyard.retrieve.towers.training import mine_negatives
from steelyard.train import EstimatorConfig
from steelyard.train.batches import Batch
from steelyard.train.contrastive import info_nce, same_texts
from steelyard.train.estimator import Estimator

__all__ = ["FrozenDocumentsLoss", "refine_queries"]


@dataclass(frozen=True, kw_only=True)
class FrozenDocumentsLoss:
    """InfoNCE of a query tower over vectors that no gradient reaches.

    Attributes:
        temperature: what cosines are divided by.
        margin: see `info_nce`; None for none.
    """

    temperature: float = 0.05
    margin: float | None = None

    def __call__(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss of a batch of tokens, lengths, vectors and their keys."""
        assert isinstance(batch, tuple)
        tokens, lengths, documents, keys = batch
        rows = torch.arange(len(tokens)) * keys.shape[1]
        losses = info_nce(
            module(tokens, lengths),
            documents.flatten(0, 1),
            rows,
            temperature=self.temperature,
            masked=same_texts(keys[:, 0], keys.flatten()),
            margin=self.margin,
        )
        return losses.mean()


class _Questions:
    """Queries with vectors of their own document and hard ones, in a new order each epoch."""

    def __init__(
        self,
        tokens: list[list[int]],
        vectors: NDArray[np.float32],
        chosen: NDArray[np.int64],
        groups: NDArray[np.int64],
        config: EstimatorConfig,
    ) -> None:
        """Keep them; `chosen` [Q, 1 + H] holds places of documents, the own one first."""
        self._tokens, self._chosen, self._groups = tokens, chosen, groups
        self._vectors = torch.from_numpy(vectors)
        self._size, self._seed = config.batch_size, config.seed

    def batch(self, index: int, /) -> tuple[Tensor, ...]:
        """Return the batch of a step."""
        epoch, place = divmod(index, len(self._tokens) // self._size)
        positions = np.arange(place * self._size, (place + 1) * self._size)
        rows = Permutation(len(self._tokens), self._seed, epoch)(positions)
        chosen = self._chosen[rows]
        tokens, lengths = padded_tokens([self._tokens[row] for row in rows.tolist()])
        vectors = self._vectors[torch.from_numpy(chosen)]
        return tokens, lengths, vectors, torch.from_numpy(self._groups[chosen])


def refine_queries(
    student: TowerEncoder,
    documents: NDArray[np.float32],
    texts: tuple[Sequence[str], NDArray[np.int64]],
    config: EstimatorConfig,
    folder: Path,
    *,
    loss: FrozenDocumentsLoss | None = None,
    hard_negatives: int = 7,
    ranks: tuple[int, int] = (30, 200),
    groups: NDArray[np.int64] | None = None,
) -> list[float]:
    """Train a query tower on pairs; vectors of documents, and indexes of them, stay.

    After distillation this is its third stage; alone, it is training end to end against a frozen
    document tower. Hard negatives are mined once, with the tower as it is at the start.

    Args:
        student: encoder that is trained.
        documents: unit vectors of documents [N, D].
        texts: queries, and the place of each one's document [Q].
        config: the run.
        folder: the run's folder, from which a call that was killed goes on.
        loss: temperature and margin.
        hard_negatives: mined documents of each query; 0 for none.
        ranks: ranks of mined documents, see `mine_negatives`.
        groups: number of the group of each document [N]; none is a negative of its group's
            queries. By default documents of equal vectors are a group.

    Returns:
        Training loss of each step.

    Raises:
        ConfigError: vectors of another width than the student's, or fewer queries than a batch.
        DataError: a query without a document, or a text without a token.

    Source: HARNESS-LM 2026 (arXiv 2605.23572): a last contrastive stage behind alignment.
    """
    queries, own = texts
    if documents.shape[1] != student.dim:
        raise ConfigError(
            f"documents of {documents.shape[1]} numbers, the student has {student.dim}",
            hint="distil first, which maps it to the teacher's, or call `tower.project_to`",
        )
    if len(queries) != len(own) or (len(own) and own.max() >= len(documents)):
        raise DataError(f"{len(queries)} queries, documents for {len(own)} of them")
    if len(queries) < config.batch_size:
        raise ConfigError(f"batches of {config.batch_size} from {len(queries)} queries")
    names = _equal_vectors(documents) if groups is None else groups
    chosen = own[:, None]
    if hard_negatives:
        mined = mine_negatives(student.encode(queries), documents, own, ranks=ranks, groups=names)
        # Evenly spread over the ranks, so that a draw holds near and far ones alike.
        columns = np.linspace(0, mined.shape[1] - 1, min(hard_negatives, mined.shape[1]))
        chosen = np.concatenate([chosen, mined[:, columns.round().astype(int)]], axis=1)
    source = _Questions(student.tokens(queries), documents, chosen, names, config)
    result = Estimator(student.tower, loss or FrozenDocumentsLoss(), config).fit(source, folder)
    return [float(value) for value in result.losses]


def _equal_vectors(documents: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the first place of each vector among the documents [N]."""
    texts = [row.tobytes().hex() for row in documents]
    return document_groups(texts, np.arange(len(documents)))

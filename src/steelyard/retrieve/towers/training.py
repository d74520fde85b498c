"""Towers trained on pairs, in rounds with harder negatives each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from steelyard.errors import DataError
from steelyard.nn.towers import TowerPair
from steelyard.retrieve.kinds import IVFFlat
from steelyard.retrieve.towers.encoder import TowerEncoder
from steelyard.retrieve.towers.pairs import TextPairs
from steelyard.retrieve.towers.sources import document_groups
from steelyard.train import EstimatorConfig
from steelyard.train.contrastive import ContrastiveLoss
from steelyard.train.estimator import Estimator

__all__ = ["TrainedTowers", "mine_negatives", "train_towers"]

_FIRST_RANK, _LAST_RANK = 30, 200


@dataclass(frozen=True, kw_only=True)
class TrainedTowers:
    """What training returned.

    Attributes:
        queries: encoder of queries.
        documents: encoder of documents.
        losses: training loss of each step, round after round.
    """

    queries: TowerEncoder
    documents: TowerEncoder
    losses: list[float]


def mine_negatives(
    queries: NDArray[np.float32],
    documents: NDArray[np.float32],
    own: NDArray[np.int64],
    *,
    ranks: tuple[int, int] = (_FIRST_RANK, _LAST_RANK),
    groups: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Return documents that present vectors hold near to a query though they are not its own.

    Args:
        queries: unit vectors [Q, D].
        documents: unit vectors [N, D].
        own: place of each query's document [Q].
        ranks: first rank and the one behind the last; nearer ones are often good answers that
            nobody marked. Both fall where there are fewer documents.
        groups: number of the group of each document [N]; none of the own one's group is returned.

    Returns:
        int64 [Q, H]; none is the query's own or of its group.

    Raises:
        DataError: all documents are of one group.

    Source: Xia et al. 2024 (ScalingNote, arXiv 2411.15766), stage 1.
    """
    names = np.arange(len(documents)) if groups is None else groups
    largest = int(np.unique(names, return_counts=True)[1].max())
    last = min(ranks[1], len(documents) - largest)
    if last < 1:
        raise DataError("all documents are of one group", hint="give documents of several sources")
    first = min(ranks[0], last // 2)
    index = IVFFlat(documents.shape[1], metric="ip")
    index.add(documents)
    found = index.search(queries, last + largest).ids
    # A group may stand at any ranks: it goes behind all others, whose order stays.
    is_own = (names[found] == names[own][:, None]) | (found < 0)
    order = np.argsort(is_own, axis=1, kind="stable")
    return np.take_along_axis(found, order, axis=1)[:, first:last]


def train_towers(
    pair: TowerPair,
    tokenizer: Tokenizer,
    texts: tuple[Sequence[str], Sequence[str], NDArray[np.int64]],
    config: EstimatorConfig,
    folder: Path,
    *,
    loss: ContrastiveLoss | None = None,
    rounds: int = 2,
    hard_negatives: int = 7,
    max_tokens: tuple[int, int] = (32, 256),
    groups: NDArray[np.int64] | None = None,
    ranks: tuple[int, int] = (_FIRST_RANK, _LAST_RANK),
) -> TrainedTowers:
    """Train two towers on queries with their documents.

    The first round has only the other documents of a batch as negatives. Each later one begins by
    searching all documents with the towers as they are by then, and brings what stands high into
    the batches.

    Args:
        pair: the towers; they hold the final weights afterwards.
        tokenizer: makes their tokens.
        texts: queries, documents, and the place of each query's document.
        config: one round; `steps` are those of each.
        folder: a folder per round, from which a call that was killed goes on.
        loss: temperature, margin and chunks.
        rounds: rounds of training, 1 or more.
        hard_negatives: mined documents that each query brings into a batch after the first round.
        max_tokens: tokens of the longest query and the longest document.
        groups: number of the group of each document [N], such as its source; none is a negative
            of its group's queries. By default documents of equal text are a group.
        ranks: ranks of mined documents, see `mine_negatives`.

    Returns:
        Encoders and losses.

    Raises:
        ConfigError: the configuration does not fit the run in the folder, or the loss diverged.
        DataError: a query without a document, or a text without a token.
    """
    queries, documents, own = texts
    sides = (
        TowerEncoder(pair.queries, tokenizer, max_tokens=max_tokens[0]),
        TowerEncoder(pair.documents, tokenizer, max_tokens=max_tokens[1]),
    )
    names = document_groups(documents, np.arange(len(documents))) if groups is None else groups
    losses: list[float] = []
    hard: NDArray[np.int64] | None = None
    for number in range(rounds):
        if number:
            vectors = sides[0].encode(queries), sides[1].encode(documents)
            hard = mine_negatives(*vectors, own, ranks=ranks, groups=names)
        source = TextPairs(
            queries,
            documents,
            own,
            tokens=(sides[0].tokens, sides[1].tokens),
            batch_size=config.batch_size,
            hard=hard,
            hard_in_batch=hard_negatives if number else 0,
            groups=names,
            seed=config.seed + number,
        )
        run = replace(config, seed=config.seed + number)
        estimator = Estimator(pair, loss or ContrastiveLoss(), run)
        result = estimator.fit(source, folder / f"round-{number}")
        losses += [float(value) for value in result.losses]
    return TrainedTowers(queries=sides[0], documents=sides[1], losses=losses)

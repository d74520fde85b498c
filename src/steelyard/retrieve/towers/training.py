"""Towers trained on pairs, in rounds with harder negatives each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from steelyard.nn.towers import TowerPair
from steelyard.retrieve.towers.encoder import TowerEncoder
from steelyard.retrieve.towers.pairs import TextPairs
from steelyard.retrieve.whole import IVFFlat
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
) -> NDArray[np.int64]:
    """Return documents that present vectors hold near to a query though they are not its own.

    Args:
        queries: unit vectors [Q, D].
        documents: unit vectors [N, D].
        own: place of each query's document [Q].
        ranks: first rank and the one behind the last; nearer ones are often good answers that
            nobody marked. Both fall where there are fewer documents.

    Returns:
        int64 [Q, H]; none is the query's own.

    Source: Xia et al. 2024 (ScalingNote, arXiv 2411.15766), stage 1.
    """
    last = min(ranks[1], len(documents) - 1)
    first = min(ranks[0], last // 2)
    index = IVFFlat(documents.shape[1], metric="ip")
    index.add(documents)
    found = index.search(queries, last + 1).ids
    # The own document may stand at any rank: without it, all rows have one rank less.
    is_own = found == own[:, None]
    is_own[:, -1] |= ~is_own.any(axis=1)
    rest = found[~is_own].reshape(len(queries), last)
    return rest[:, first:last]


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
    losses: list[float] = []
    hard: NDArray[np.int64] | None = None
    for number in range(rounds):
        if number:
            hard = mine_negatives(sides[0].encode(queries), sides[1].encode(documents), own)
        source = TextPairs(
            queries,
            documents,
            own,
            tokens=(sides[0].tokens, sides[1].tokens),
            batch_size=config.batch_size,
            hard=hard,
            hard_in_batch=hard_negatives if number else 0,
            seed=config.seed + number,
        )
        run = replace(config, seed=config.seed + number)
        estimator = Estimator(pair, loss or ContrastiveLoss(), run)
        result = estimator.fit(source, folder / f"round-{number}")
        losses += [float(value) for value in result.losses]
    return TrainedTowers(queries=sides[0], documents=sides[1], losses=losses)

"""How good vectors are: entropy of the right document among many, and ranks."""

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError, DataError

__all__ = ["contrastive_entropy", "ndcg", "ranks_of_own"]

_BATCH = 256
Floats = NDArray[np.floating]
Places = NDArray[np.int64]


def contrastive_entropy(
    queries: Floats,
    documents: Floats,
    own: Places,
    *,
    negatives: int = 256,
    temperature: float = 0.05,
    groups: Places | None = None,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Return how surprising each query's document is among it and drawn others.

    Unlike hits and ranks it falls smoothly with size and data, so that laws fit it.

    Args:
        queries: unit vectors [Q, D].
        documents: unit vectors [N, D].
        own: place of each query's document [Q].
        negatives: documents M that are drawn for each query, without repetition.
        temperature: what cosines are divided by: that of the training.
        groups: number of the group of each document [N]; none of the own one's is drawn. By
            default each document is its own group.
        seed: seed of the draws, the same for all towers that are compared.

    Returns:
        Nats [Q].

    Raises:
        ConfigError: fewer than `negatives` documents remain for a query, or a temperature not
            above 0.

    Source: Fang et al. 2024 (arXiv 2403.18684), equation 3: contrastive entropy, 256 negatives.
    """
    if temperature <= 0 or negatives < 1:
        raise ConfigError(f"{negatives} negatives at temperature {temperature:g}")
    names = np.arange(len(documents)) if groups is None else groups
    rng = np.random.default_rng(seed)
    found = np.empty(len(queries))
    for row, place in enumerate(own.tolist()):
        others = np.flatnonzero(names != names[place])
        if len(others) < negatives:
            raise ConfigError(
                f"{len(others)} documents besides that of query {row}, {negatives} are drawn",
                hint="give more documents, or draw fewer",
            )
        drawn = rng.choice(others, negatives, replace=False)
        scores = documents[np.append(place, drawn)] @ queries[row] / temperature
        top = scores.max()
        found[row] = top + np.log(np.exp(scores - top).sum()) - scores[0]
    return found


def ranks_of_own(scores: Floats, own: Places) -> Places:
    """Return how many documents score above each query's own.

    Args:
        scores: [Q, N]; not-a-number counts as the lowest.
        own: place of each query's document [Q].

    Returns:
        Ranks from 0, int64 [Q]; documents of equal score count half, rounded down.
    """
    mine = scores[np.arange(len(own)), own][:, None]
    above = (scores > mine).sum(axis=1)
    return above + ((scores == mine).sum(axis=1) - 1) // 2


def ndcg(ranks: Places, k: int = 10) -> NDArray[np.float64]:
    """Return nDCG@k of queries with one relevant document each.

    Args:
        ranks: rank of the relevant document from 0 [Q].
        k: ranks that count.

    Returns:
        1 / log2(rank + 2) within k ranks, else 0 [Q].

    Raises:
        DataError: k is below 1.

    Source: Jarvelin and Kekalainen 2002, cumulated gain; the ideal gain of one document is 1.
    """
    if k < 1:
        raise DataError(f"k is {k}", hint="look at 1 rank or more")
    return np.where(ranks < k, 1 / np.log2(ranks + 2), 0.0)

"""What a search on its way guesses of its end."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from steelyard.retrieve.multivector.candidates import CandidateSearch

__all__ = ["count_hits", "guessed_places"]


def guessed_places(
    search: CandidateSearch, texts: NDArray[np.float32], shares: Sequence[float], rerank: int
) -> NDArray[np.int64]:
    """Return where candidates that are there after a share of the search stand at its end.

    Args:
        search: index and how far it is searched.
        texts: vectors of queries [Q, D].
        shares: S.
        rerank: candidates R.

    Returns:
        Places at the end, in the order of the guess [S, Q, R]; -1 for those that have fallen out,
        and everywhere for a share after which nothing is left to search.
    """
    found = np.full((len(shares), len(texts), rerank), -1, np.int64)
    for row, share in enumerate(shares):
        steps = [hits.ids for hits, _ in search.steps(texts, rerank, share)]
        if len(steps) < 2:
            # The search was not stopped: nothing was guessed.
            continue
        for query, (early, final) in enumerate(zip(steps[0], steps[-1], strict=True)):
            at_end = {number: place for place, number in enumerate(final.tolist()) if number >= 0}
            found[row, query] = [at_end.get(number, -1) for number in early.tolist()]
    return found


def count_hits(
    search: CandidateSearch,
    texts: NDArray[np.float32],
    shares: Sequence[float],
    reranks: Sequence[int],
) -> NDArray[np.int64]:
    """Count candidates of the end that were there after a share of the search.

    Args:
        search: index and how far it is searched.
        texts: vectors of queries [Q, D].
        shares: S.
        reranks: candidates R.

    Returns:
        Counts [S, R, Q].
    """
    places = guessed_places(search, texts, shares, max(reranks))
    counts = [
        ((places[..., :rerank] >= 0) & (places[..., :rerank] < rerank)).sum(axis=2)
        for rerank in reranks
    ]
    return np.stack(counts, axis=1)

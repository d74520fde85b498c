"""Ranks candidates around seeds: by initial average, by growing one by one, by PageRank."""

import numpy as np
from numpy.typing import NDArray

from steelyard.data.sketch.minhash import agreement, equal_places, similarity
from steelyard.jit import njit

__all__ = ["estimates", "grow", "rank_pagerank", "seed_similarities", "similarity_matrix"]

_DAMPING, _ROUNDS = 0.9, 3
"""Of PageRank. Source: Chamberlain et al. 2016, arXiv 1601.03958."""


def estimates(
    signed: NDArray[np.unsignedinteger], rows: NDArray[np.int64], one: int
) -> NDArray[np.float64]:
    """Return the estimated similarities of accounts and one other.

    Args:
        signed: signatures, [N, K].
        rows: which accounts, [C].
        one: the other account.

    Returns:
        [C], 0 to 1.
    """
    return seed_similarities(signed, rows, np.array([one]))[:, 0]


def seed_similarities(
    signed: NDArray[np.unsignedinteger], candidates: NDArray[np.int64], seeds: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return each candidate's similarity to each seed, [C, S]; its means rank by average."""
    agreed = np.empty((len(seeds), len(candidates)), np.int64)
    agreement(signed, candidates, signed[seeds], agreed)
    return similarity(agreed, signed.shape[1], 8 * signed.dtype.itemsize).T


@njit()
def _grow(
    signed: np.ndarray,
    candidates: np.ndarray,
    scores: np.ndarray,
    seeds: int,
    chance: float,
    taken: np.ndarray,
    reached: np.ndarray,
) -> None:
    """Take the best candidate, average its similarities in, and go on."""
    places = signed.shape[1]
    left = np.arange(len(candidates))
    for turn in range(len(taken)):
        spot, count = 0, len(left) - turn
        for number in range(1, count):
            # Candidates rise in number; of equal ones the lowest is taken, wherever it stands.
            ahead = scores[left[number]] - scores[left[spot]]
            if ahead > 0 or (ahead == 0 and left[number] < left[spot]):
                spot = number
        best = left[spot]
        left[spot] = left[count - 1]
        taken[turn] = best
        reached[turn] = scores[best]
        added = signed[candidates[best]]
        members = seeds + turn
        for number in range(count - 1):
            other = left[number]
            same = equal_places(signed[candidates[other]], added)
            alike = max((same / places - chance) / (1 - chance), 0.0)
            scores[other] = (members * scores[other] + alike) / (members + 1)


def grow(
    signed: NDArray[np.unsignedinteger],
    candidates: NDArray[np.int64],
    initial: NDArray[np.float64],
    num_seeds: int,
    size: int,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Add the candidate of the highest mean similarity to all members, one by one.

    Args:
        signed: signatures, [N, K].
        candidates: accounts, ascending, [C].
        initial: mean similarity of each to the seeds, [C].
        num_seeds: number of seeds, which are the first members.
        size: candidates to take, C at most.

    Returns:
        Places in `candidates` in the order they are taken, and the score that each had then.

    Source: Chamberlain et al. 2016, arXiv 1601.03958.
    """
    bits = 8 * signed.dtype.itemsize
    taken, reached = np.empty(min(size, len(candidates)), np.int64), np.empty(size)
    reached = reached[: len(taken)]
    chance = 0.0 if bits == 32 else 2.0**-bits
    _grow(signed, candidates, initial.copy(), num_seeds, chance, taken, reached)
    return taken, reached


def similarity_matrix(
    signed: NDArray[np.unsignedinteger], rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the estimated similarities of accounts to each other, [C, C]; 0 on the diagonal."""
    found = np.zeros((len(rows), len(rows)))
    for place, row in enumerate(rows):
        found[place, place + 1 :] = estimates(signed, rows[place + 1 :], int(row))
    return found + found.T


def rank_pagerank(
    similarities: NDArray[np.float64], seeds: NDArray[np.int64], *, returns: int = _ROUNDS
) -> NDArray[np.float64]:
    """Rank by personalized PageRank on the graph of similarities.

    Args:
        similarities: similarities of all candidates and seeds, [C, C].
        seeds: places of the seeds in it.
        returns: last rounds, of three, after which what was lost goes back to the seeds. With 1 the
            order is that of a walk without a return, as it was published; three find more.

    Returns:
        [C]; they sum up to 1.

    Source: Chamberlain et al. 2016, arXiv 1601.03958.
    """
    sums = similarities.sum(axis=0)
    flow = np.divide(similarities, sums, out=np.zeros_like(similarities), where=sums > 0)
    rank = np.zeros(len(similarities))
    rank[seeds] = 1 / len(seeds)
    for turn in range(_ROUNDS):
        rank = _DAMPING * (flow @ rank)
        # What was damped, and what stood where nothing leads away, goes back to the seeds.
        if turn >= _ROUNDS - returns:
            rank[seeds] += (1 - rank.sum()) / len(seeds)
    return rank

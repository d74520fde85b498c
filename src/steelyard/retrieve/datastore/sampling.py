"""Which passages a smaller store would hold, and how often too few of them are left."""

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from steelyard.data.sketch.hashing import hash_integers
from steelyard.errors import ConfigError

__all__ = ["failure_probability", "is_sampled", "mean_failure"]


def is_sampled(ids: NDArray[np.int64], share: float, seed: int) -> NDArray[np.bool_]:
    """Return whether each passage is in a store that holds a share of all.

    The number of the passage and the seed alone decide, so the answer is the same for every query
    and every shard.

    Args:
        ids: numbers of passages, any shape.
        share: share of passages that stay, above 0 to 1.
        seed: seed of the draw.

    Returns:
        As `ids`.

    Raises:
        ConfigError: the share is out of range.
    """
    if not 0 < share <= 1:
        raise ConfigError(f"a share of {share:g}", hint="give a share above 0 to 1")
    (salt,) = hash_integers(np.array([seed], np.int64))
    flat = np.ascontiguousarray(ids, dtype=np.int64).ravel()
    # The hash of a hash: numbers in a row and seeds in a row must not be alike.
    drawn = hash_integers((hash_integers(flat) ^ salt).view(np.int64))
    limit = min(int(share * 2.0**64), 2**64 - 1)
    return (drawn <= np.uint64(limit)).reshape(np.shape(ids))


def failure_probability(candidates: int, k: int, share: float) -> float:
    """Return the probability that fewer than k of the candidates are in a sampled store.

    Where that happens, the store itself would have had further passages to offer, and the answer
    from the candidates differs from that of the store.

    Args:
        candidates: candidates K of a query.
        k: passages that are wanted.
        share: share of passages in the store.

    Returns:
        Sum of C(K, i) p^i (1 - p)^(K - i) for i < k.

    Source: Shao et al. 2024 (arXiv 2407.12854), lemma A.3.
    """
    return float(binom.cdf(k - 1, candidates, share))


def mean_failure(candidates: NDArray[np.int64], k: int, share: float) -> float:
    """Return the mean of `failure_probability` over queries.

    Args:
        candidates: candidates K of each query [Q].
        k: passages that are wanted.
        share: share of passages in the store.

    Returns:
        Share of queries that fail, 0 to 1.
    """
    counts, times = np.unique(candidates, return_counts=True)
    return float(binom.cdf(k - 1, counts, share) @ times / times.sum())

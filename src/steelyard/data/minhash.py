"""Near duplicates by MinHash signatures and locality-sensitive hashing, in vectorized numpy."""

import functools
from collections.abc import Callable, Iterable

import numpy as np

__all__ = ["MinHasher", "duplicate_roots", "shingles"]

BANDS, ROWS = 14, 8
"""14 bands of 8 rows find 92 % of pairs with Jaccard similarity 0.8, and all but one in ten
thousand at 0.9.  Source: Penedo et al. 2024 (FineWeb, arXiv 2406.17557), section 3.4."""

_WORD = np.zeros(256, dtype=bool)
_WORD[[*range(48, 58), *range(65, 91), 95, *range(97, 123), *range(128, 256)]] = True
_LOWER = np.arange(256, dtype=np.uint64)
_LOWER[65:91] += 32
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 1 << 64)


def shingles(raw: bytes, width: int = 5) -> np.ndarray:
    """Hash every run of `width` words.

    Words are runs of ASCII letters (in either case), digits, underscores and non-ASCII bytes. A
    prefix sum of a polynomial modulo 2^64 gives all word hashes at once.

    Args:
        raw: a document in UTF-8.
        width: words in a shingle.

    Returns:
        Distinct hashes, uint64, sorted; a document of fewer words is one shingle, one without words
        none.
    """
    codes = np.frombuffer(raw, dtype=np.uint8)
    edges = np.diff(_WORD[codes].astype(np.int8), prepend=0, append=0)
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    if not len(starts):
        return np.zeros(0, dtype=np.uint64)
    # A word's part of the prefix sum is its polynomial times base^start. The base is odd, so it has
    # an inverse modulo 2^64, and base^-start makes equal words hash alike wherever they stand.
    prefix = np.zeros(len(codes) + 1, dtype=np.uint64)
    np.cumsum((_LOWER[codes] + np.uint64(1)) * _powers(_BASE, len(codes)), out=prefix[1:])
    words = _mix((prefix[ends] - prefix[starts]) * _powers(_INVERSE, len(codes))[starts])
    width = min(width, len(words))
    count = len(words) - width + 1
    combined = np.zeros(count, dtype=np.uint64)
    for place in range(width):
        combined = combined * np.uint64(_BASE) + words[place : place + count]
    return np.unique(_mix(combined))


class MinHasher:
    """Turns sets of hashes into signatures whose agreement estimates Jaccard similarity.

    Attributes:
        num_hashes: length of a signature.
    """

    def __init__(self, seed: int = 0, num_hashes: int = BANDS * ROWS) -> None:
        """Draw the hash functions.

        Args:
            seed: seed of the draw.
            num_hashes: length K of a signature.
        """
        self.num_hashes = num_hashes
        generator = np.random.default_rng(seed)
        # An odd factor makes x -> ax + b a permutation of 64-bit numbers: no two hashes collide.
        self._factors = generator.integers(0, 2**64, num_hashes, dtype=np.uint64) | np.uint64(1)
        self._offsets = generator.integers(0, 2**64, num_hashes, dtype=np.uint64)

    def signature(self, hashes: np.ndarray) -> np.ndarray:
        """Sign a set.

        Args:
            hashes: uint64 [N]; of an empty set all places of the signature are the largest value.

        Returns:
            uint32 [K].

        Source: Broder 1997, "On the resemblance and containment of documents".
        """
        least = np.full(self.num_hashes, np.iinfo(np.uint64).max, dtype=np.uint64)
        for start in range(0, len(hashes), 512):  # 512 x 112 x 8 bytes stay in the cache
            block = hashes[start : start + 512, None] * self._factors
            block += self._offsets
            np.minimum(least, block.min(axis=0), out=least)
        # The low bits of a product depend on the low bits of its factors alone; the high ones mix.
        return (least >> np.uint64(32)).astype(np.uint32)


def signatures(
    documents: Iterable[bytes], hasher: MinHasher, done: Callable[[], None] = lambda: None
) -> np.ndarray:
    """Sign documents.

    Args:
        documents: documents in UTF-8.
        hasher: the hash functions.
        done: callback after each document.

    Returns:
        uint32 [N, K].
    """
    rows = []
    for document in documents:
        rows.append(hasher.signature(shingles(document)))
        done()
    return np.array(rows, dtype=np.uint32).reshape(-1, hasher.num_hashes)


def duplicate_roots(signed: np.ndarray, threshold: float = 0.8, bands: int = BANDS) -> np.ndarray:
    """Find clusters of near duplicates.

    Documents that agree in all rows of a band are candidates; those whose signatures agree in at
    least `threshold` of all places are joined.

    Args:
        signed: signatures, uint32 [N, K].
        threshold: least estimated Jaccard similarity, 0..1.
        bands: bands the K rows are cut into; divides K.

    Returns:
        int64 [N]: for each document the first of its cluster; a document that is its own root is
        kept.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    count = len(signed)
    pairs = _candidates(signed, bands)
    agreement = np.zeros(len(pairs))
    for start in range(0, len(pairs), 4096):
        left, right = pairs[start : start + 4096].T
        agreement[start : start + 4096] = (signed[left] == signed[right]).mean(axis=1)
    left, right = pairs[agreement >= threshold].T
    graph = coo_array((np.ones(len(left), dtype=np.int8), (left, right)), shape=(count, count))
    labels = connected_components(graph, directed=False)[1]
    _, first = np.unique(labels, return_index=True)
    return first[labels]


def _candidates(signed: np.ndarray, bands: int) -> np.ndarray:
    """List pairs (earlier, later) of documents that share a band."""
    # All pairs of a bucket of n would be n^2 / 2. Each document is paired with the one before it
    # and with the first: chains reach every member, and an odd one in between breaks none.
    found = [np.zeros((0, 2), dtype=np.int64)]
    for band in np.split(signed.astype(np.uint64), bands, axis=1):
        key = np.zeros(len(signed), dtype=np.uint64)
        for column in band.T:
            key = _mix(key * np.uint64(_BASE) + column)
        order = np.argsort(key, kind="stable")
        same = np.flatnonzero(key[order][1:] == key[order][:-1])
        place = np.arange(len(order))
        fresh = np.concatenate(([True], key[order][1:] != key[order][:-1]))[: len(order)]
        first = np.maximum.accumulate(np.where(fresh, place, 0))
        found.append(np.stack((order[same], order[same + 1]), axis=1))
        found.append(np.stack((order[first[same + 1]], order[same + 1]), axis=1))
    return np.unique(np.concatenate(found), axis=0)


def _powers(base: int, count: int) -> np.ndarray:
    """Return base^0, base^1, ... modulo 2^64."""
    return _power_table(base, max(count - 1, 0).bit_length())[:count]


@functools.cache
def _power_table(base: int, doublings: int) -> np.ndarray:
    """Return the first 2^doublings powers; documents are short, so few tables are ever made."""
    powers = np.ones(1, dtype=np.uint64)
    for _ in range(doublings):
        powers = np.concatenate((powers, powers * np.uint64(pow(base, len(powers), 1 << 64))))
    return powers


def _mix(values: np.ndarray) -> np.ndarray:
    """Scramble 64-bit values.

    Source: Steele et al. 2014 (SplitMix64).
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))

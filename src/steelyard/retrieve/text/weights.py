"""Texts as sparse rows of weighted words."""

from collections.abc import Iterable
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from steelyard.data.sketch.near_duplicates import word_hashes

__all__ = ["WordWeights", "count_words", "sizes"]

_BUCKET_BITS = 20


def count_words(texts: Iterable[bytes]) -> csr_array:
    """Return how often each word stands in each text.

    Words are hashed into 2^20 buckets: of 10^5 different words, one in twenty shares its bucket.

    Args:
        texts: texts in UTF-8.

    Returns:
        float32 [N, 2^20].
    """
    columns, counts, ends = [], [], [0]
    for raw in texts:
        buckets, times = np.unique(word_hashes(raw) >> (64 - _BUCKET_BITS), return_counts=True)
        columns.append(buckets.astype(np.int32))
        counts.append(times.astype(np.float32))
        ends.append(ends[-1] + len(buckets))
    data = np.concatenate([np.empty(0, np.float32), *counts])
    places = np.concatenate([np.empty(0, np.int32), *columns])
    return csr_array((data, places, np.array(ends)), shape=(len(ends) - 1, 1 << _BUCKET_BITS))


def sizes(rows: csr_array) -> tuple[int, int]:
    """Return rows and columns of a sparse matrix."""
    return cast(tuple[int, int], rows.shape)


class WordWeights:
    """Weights of words, from how many texts hold them.

    Attributes:
        buckets: buckets of the words that count, ascending [V].
        rarities: logarithm of texts over texts with the word, plus 1 [V].
    """

    def __init__(self, buckets: NDArray[np.int64], rarities: NDArray[np.float32]) -> None:
        """Take what `fit` found."""
        self.buckets, self.rarities = buckets, rarities

    @classmethod
    def fit(cls, counts: csr_array, most: int, least_texts: int = 2) -> "WordWeights":
        """Weigh words by how few texts hold them.

        Args:
            counts: counts of words [N, B].
            most: words that are kept at most; those in the most texts are, as rare ones join no
                two texts.
            least_texts: texts that must hold a word; fewer where no word would be left.

        Returns:
            The weights.
        """
        num_texts, num_buckets = sizes(counts)
        texts = np.bincount(counts.indices, minlength=num_buckets)
        least = least_texts if (texts >= least_texts).any() else 1
        kept = np.flatnonzero(texts >= least)
        if len(kept) > most:
            kept = np.sort(kept[np.argsort(-texts[kept], kind="stable")[:most]])
        share = (1 + num_texts) / (1 + texts[kept])
        return cls(kept, (np.log(share) + 1).astype(np.float32))

    def rows(self, counts: csr_array) -> csr_array:
        """Return unit rows of weighted words; a text without a known word is a row of zeros.

        Args:
            counts: counts of words [N, B].

        Returns:
            float32 [N, V]: one plus the logarithm of the count, times the rarity.
        """
        count = sizes(counts)[0]
        place = np.searchsorted(self.buckets, counts.indices)
        place[place == len(self.buckets)] = 0
        is_known = self.buckets[place] == counts.indices
        row_of = np.repeat(np.arange(count), np.diff(counts.indptr))[is_known]
        columns = place[is_known]
        values = (1 + np.log(counts.data[is_known])) * self.rarities[columns]
        lengths = np.sqrt(np.bincount(row_of, values**2, minlength=count))
        values = (values / lengths[row_of]).astype(np.float32)
        ends = np.concatenate([[0], np.cumsum(np.bincount(row_of, minlength=count))])
        return csr_array((values, columns, ends), shape=(count, len(self.buckets)))

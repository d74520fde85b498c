"""Two rankings made into one: by ranks, or by a weighted sum of scores."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError
from steelyard.retrieve.index import Hits, SearchStats

__all__ = ["DEPTH", "Fusion"]

DEPTH = 100
"""Passages that each of the two rankings gives."""
_RANK_OFFSET = 60
"""Source: Cormack, Clarke and Buettcher 2009 (Reciprocal Rank Fusion), section 2."""


@dataclass(frozen=True, slots=True)
class Fusion:
    """How scores by words and scores by vectors become one.

    Attributes:
        kind: "weighted" sums scores, each stretched so that the best passage of a ranking has 1 and
            the last 0; "ranks" sums 1 / (60 + rank).
        vector_weight: share of the score by vectors in the sum, 0 to 1.

    Source: Bruch, Gai and Ingber 2022 (arXiv 2210.11934), convex combination of min-max scores;
        Cormack et al. 2009, reciprocal ranks.
    """

    kind: Literal["weighted", "ranks"] = "weighted"
    vector_weight: float = 0.5

    def __post_init__(self) -> None:
        """Refuse weights outside of 0 to 1."""
        if not 0 <= self.vector_weight <= 1:
            raise ConfigError(
                f"a weight of {self.vector_weight:g} for vectors", hint="give it from 0 to 1"
            )

    def told(self) -> str:
        """Return the choice in words."""
        if self.kind == "ranks":
            return "words and vectors by reciprocal ranks"
        return f"{1 - self.vector_weight:.0%} words + {self.vector_weight:.0%} vectors"

    def fuse(self, words: Hits, vectors: Hits, k: int) -> Hits:
        """Return the best of two rankings of the same queries.

        Args:
            words: hits by words, scores from 0.
            vectors: hits by inner products.
            k: passages that are wanted.

        Returns:
            Hits; scores are sums of both parts. What one ranking has not gets nothing from it. Of
            equal sums the smaller number is first.
        """
        count = len(words.ids)
        ids = np.full((count, k), -1, np.int64)
        scores = np.full((count, k), -np.inf, np.float32)
        parts = ((words, 1 - self.vector_weight), (vectors, self.vector_weight))
        for row in range(count):
            numbers, sums = self._summed([(hits, row, weight) for hits, weight in parts])
            order = np.lexsort((numbers, -sums))[:k]
            ids[row, : len(order)], scores[row, : len(order)] = numbers[order], sums[order]
        stats = SearchStats(
            scanned=words.stats.scanned + vectors.stats.scanned,
            probed=vectors.stats.probed,
            reranked=vectors.stats.reranked,
        )
        return Hits(ids=ids, distances=scores, stats=stats)

    def _summed(
        self, parts: list[tuple[Hits, int, float]]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the passages of some rankings, and the sums of their parts."""
        all_numbers: list[NDArray[np.int64]] = []
        all_values: list[NDArray[np.float64]] = []
        for hits, row, weight in parts:
            is_there = hits.ids[row] >= 0
            all_numbers.append(hits.ids[row][is_there])
            values = hits.distances[row][is_there].astype(np.float64)
            # By ranks both count alike, unless one of them is not to count at all.
            share = float(weight > 0) if self.kind == "ranks" else weight
            all_values.append(share * self._parts(values))
        numbers, places = np.unique(np.concatenate(all_numbers), return_inverse=True)
        sums = np.zeros(len(numbers))
        np.add.at(sums, places, np.concatenate(all_values))
        return numbers, sums

    def _parts(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what each place of one ranking gives, the best first."""
        if self.kind == "ranks":
            return 1 / (_RANK_OFFSET + 1 + np.arange(len(values)))
        if not len(values):
            return values
        # A ranking of fewer than all ends where scores are 0, not at its last passage.
        low = values[-1] if len(values) >= DEPTH else min(values[-1], 0.0)
        width = values[0] - low
        return (values - low) / width if width > 0 else np.ones(len(values))

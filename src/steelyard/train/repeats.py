"""Few tokens seen again and again: the part of a source that a run may use."""

import numpy as np

from steelyard.data.index import epoch_and_place
from steelyard.train.source import TokenSource

__all__ = ["RepeatedTokens"]

_SUBSET_SEED = 0
"""Seed of the stream whose beginning is the subset: the same for all runs, so that a smaller
subset lies within a larger one, whatever the seed of a run."""


class RepeatedTokens:
    """The first sequences of a source's stream, in a new order at every pass.

    Source: Muennighoff et al. 2023 (arXiv 2305.16264), section 4 (unique tokens and epochs);
    Hestness et al. 2017 (arXiv 1712.00409), section 3 (shards that contain one another).
    """

    def __init__(self, source: TokenSource, unique_tokens: int, sequence_length: int) -> None:
        """Fix the subset.

        Args:
            source: where tokens come from.
            unique_tokens: tokens of the subset, rounded down to whole sequences; at least one.
            sequence_length: tokens per sequence.
        """
        self._source = source
        self._sequences = unique_tokens // sequence_length

    def batch(self, index: int, batch_size: int, sequence_length: int, seed: int, /) -> np.ndarray:
        """Return the int64 tokens [B, T + 1] of batch `index`."""
        positions = np.arange(index * batch_size, (index + 1) * batch_size)
        _, places = epoch_and_place(positions, self._sequences, seed)
        rows = [
            self._source.batch(place, 1, sequence_length, _SUBSET_SEED) for place in places.tolist()
        ]
        return np.concatenate(rows)

"""Vectors of the words of texts, without any model: what a word is, and what its text is about."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError
from steelyard.retrieve.text.encoder import LatentEncoder
from steelyard.retrieve.text.weights import count_words, sizes

__all__ = ["TokenEncoder"]

Floats = NDArray[np.float32]
_LATENT_SHARE, _CONTEXT, _FEW = 0.5, 0.5, 1.0
"""Length of a word's latent part, how far its text moves that part, and the count of a word at
which it counts half as much as one that stands there very often; chosen on odd Cranfield queries.
"""


class TokenEncoder:
    """Texts into one vector for the whole and one for each different word.

    A word's vector has a fixed random part, which tells it from other words, and a latent part,
    which is that of words in like texts, moved towards the text it stands in. In queries, vectors
    are as long as a word is rare, so that rare words decide.

    Attributes:
        texts: the encoder of whole texts.
        dim: numbers in the vector of a word.
    """

    def __init__(self, texts: LatentEncoder, dim: int = 32) -> None:
        """Draw the fixed parts.

        Args:
            texts: encoder of whole texts, fitted.
            dim: numbers in the vector of a word; a quarter of them, at most, is latent.

        Raises:
            ConfigError: dim is below 4.
        """
        if dim < 4:
            raise ConfigError(f"words of {dim} numbers", hint="give a dim of 4 or more")
        self.texts, self.dim = texts, dim
        self._latent = min(dim // 4, texts.dim)
        rng = np.random.default_rng(0)
        weights = texts.weights
        drawn = rng.standard_normal((len(weights.buckets), dim - self._latent), dtype=np.float32)
        self._words = np.concatenate(
            [
                _LATENT_SHARE * _unit(texts.directions[:, : self._latent]),
                (1 - _LATENT_SHARE**2) ** 0.5 * _unit(drawn),
            ],
            axis=1,
        )
        self._pulls = weights.rarities**2

    @property
    def fingerprint(self) -> str:
        """Name of the encoder: that of its texts, and the numbers of a word."""
        return f"words-{self.dim}-{self.texts.fingerprint}"

    def encode(self, texts: Sequence[str]) -> tuple[Floats, list[Floats]]:
        """Return vectors of documents.

        Args:
            texts: any texts.

        Returns:
            Vectors of the texts [N, D], and of the known words [T, dim] of each; T may be 0.
        """
        return self._encoded(texts, is_query=False)

    def encode_queries(self, texts: Sequence[str]) -> tuple[Floats, list[Floats]]:
        """Return vectors of queries, as of documents; words pull by their rarity, 1 in all."""
        return self._encoded(texts, is_query=True)

    def _encoded(self, texts: Sequence[str], *, is_query: bool) -> tuple[Floats, list[Floats]]:
        """Return vectors of texts and words."""
        whole = self.texts.encode(texts)
        counts = count_words(text.encode() for text in texts)
        known = self.texts.weights.buckets
        found: list[Floats] = []
        for row in range(sizes(counts)[0]):
            part = slice(int(counts.indptr[row]), int(counts.indptr[row + 1]))
            places = np.minimum(np.searchsorted(known, counts.indices[part]), len(known) - 1)
            is_known = known[places] == counts.indices[part]
            words, times = places[is_known], counts.data[part][is_known]
            vectors = self._words[words].copy()
            vectors[:, : self._latent] += _CONTEXT * whole[row, : self._latent]
            vectors = _unit(vectors)
            if is_query:
                lengths = self._pulls[words] / max(float(self._pulls[words].sum()), 1e-9)
            else:
                lengths = np.sqrt(times / (times + _FEW) * (1 + _FEW) / 2)
            found.append((vectors * lengths[:, None]).astype(np.float32))
        return whole, found

    def save(self, path: Path) -> None:
        """Write the encoder; see `LatentEncoder.save`. The numbers of a word are not in it."""
        self.texts.save(path)


def _unit(rows: NDArray[np.generic]) -> Floats:
    """Scale rows to length 1; a row of zeros stays."""
    values = np.asarray(rows, np.float32)
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    return np.divide(values, lengths, out=np.zeros_like(values), where=lengths > 0)

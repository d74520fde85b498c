"""Made documents with token vectors: topics, words by Zipf's law, changed by their context."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.retrieve.multivector.writing import Document

_BATCH = 512
_WORDS, _TOPIC_WORDS, _NOISE, _DETAIL = 20_000, 150, 0.3, 6.0
TEXT_DIM, TOKEN_DIM = 128, 32


@dataclass(frozen=True)
class Queries:
    """Queries made of parts of documents.

    Attributes:
        texts: vectors of the texts [Q, 128].
        tokens: vectors of the tokens [8, 32] of each.
        sources: document that each was made of.
    """

    texts: NDArray[np.float32]
    tokens: list[NDArray[np.float32]]
    sources: NDArray[np.int64]


class TokenDocuments:
    """Documents by number, the same whenever they are made."""

    def __init__(self, count: int, *, topics: int = 400, seed: int = 0) -> None:
        """Draw words and topics.

        Args:
            count: documents.
            topics: topics.
            seed: of everything.
        """
        rng = np.random.default_rng(seed)
        self.count, self.seed = count, seed
        words = rng.normal(size=(_WORDS, TOKEN_DIM)).astype(np.float32)
        self._words = words / np.linalg.norm(words, axis=1, keepdims=True)
        self._topics = rng.normal(size=(topics, TEXT_DIM)).astype(np.float32) / TEXT_DIM**0.5
        self._topic_words = rng.integers(0, _WORDS, (topics, _TOPIC_WORDS))
        self._turn = rng.normal(size=(TOKEN_DIM, TEXT_DIM)).astype(np.float32) / TOKEN_DIM**0.5
        shares = 1 / np.arange(1, _WORDS + 1)
        self._zipf = np.cumsum(shares / shares.sum())

    def batch(self, first: int) -> tuple[NDArray, NDArray, NDArray]:
        """Return texts [B, 128], tokens of all [T, 32] and first tokens [B + 1] from a batch on."""
        size = min(_BATCH, self.count - first)
        rng = np.random.default_rng((self.seed, 1, first))
        lengths = np.clip(np.rint(rng.normal(48, 8, size)), 8, 59).astype(int)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        own = np.repeat(np.arange(size), lengths)
        topics = rng.integers(0, len(self._topics), size)
        zipf = np.searchsorted(self._zipf, rng.random(len(own)))
        # Each document is about a few of its topic's words.
        chosen = rng.integers(0, _TOPIC_WORDS, (size, 20))
        about = self._topic_words[topics[own], chosen[own, rng.integers(0, 20, len(own))]]
        words = np.where(rng.random(len(own)) < 0.5, about, np.minimum(zipf, _WORDS - 1))
        noise = rng.standard_normal((len(own), TOKEN_DIM), dtype=np.float32)
        tokens = self._words[words] + np.float32(_NOISE / TOKEN_DIM**0.5 * 2) * noise
        tokens /= np.linalg.norm(tokens, axis=1, keepdims=True)
        means = np.add.reduceat(tokens, starts[:-1]) / lengths[:, None]
        texts = self._topics[topics] + _DETAIL * means @ self._turn
        return texts / np.linalg.norm(texts, axis=1, keepdims=True), tokens, starts

    def stream(self, first: int = 0) -> Iterator[Document]:
        """Yield documents from a number on."""
        for begin in range(first // _BATCH * _BATCH, self.count, _BATCH):
            texts, tokens, starts = self.batch(begin)
            for place in range(max(first - begin, 0), len(texts)):
                yield begin + place, texts[place], tokens[starts[place] : starts[place + 1]]

    def texts(self) -> Iterator[NDArray[np.float32]]:
        """Yield the vectors of texts, a batch at a time."""
        for begin in range(0, self.count, _BATCH):
            yield self.batch(begin)[0]

    def queries(self, count: int, seed: int = 1) -> Queries:
        """Make queries of parts of drawn documents."""
        rng = np.random.default_rng((self.seed, 2, seed))
        sources = np.sort(rng.choice(self.count, count, replace=False))
        texts, tokens = [], []
        made, at = None, -1
        for source in sources.tolist():
            begin = source // _BATCH * _BATCH
            if begin != at:
                made, at = self.batch(begin), begin
            assert made is not None
            place = source - begin
            own = made[1][made[2][place] : made[2][place + 1]]
            picked = own[rng.choice(len(own), 8, replace=False)]
            picked = picked + 0.1 * rng.standard_normal(picked.shape).astype(np.float32)
            tokens.append(picked / np.linalg.norm(picked, axis=1, keepdims=True))
            text = made[0][place] + 0.06 * rng.standard_normal(TEXT_DIM).astype(np.float32)
            texts.append(text / np.linalg.norm(text))
        order = rng.permutation(count)
        return Queries(
            np.stack(texts)[order].astype(np.float32),
            [tokens[place].astype(np.float32) for place in order],
            sources[order],
        )

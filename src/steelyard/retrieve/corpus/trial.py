"""An index of some passages that is searched as if there were many more of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.retrieve.datastore.searching import PassageEncoder, StoreSearch, encoded_texts
from steelyard.retrieve.datastore.shape import StoreShape
from steelyard.retrieve.ivf import IVF
from steelyard.retrieve.text.lexical import BM25Index
from steelyard.retrieve.work_clock import WorkClock

__all__ = ["CorpusTrial"]

_WORD_BYTES = 20
"""Of a distinct word: its hash, its rarity, and where its list begins."""


class CorpusTrial:
    """Words and vectors of some passages.

    Laid side by side, lists and vectors of these stand for those of all: a word that is in every
    tenth passage stays so, and a search does the work that it will do.

    Attributes:
        words_s: seconds of indexing words.
        vectors_s: seconds of encoding passages and indexing their vectors.
    """

    def __init__(
        self, texts: Sequence[str], shape: StoreShape, encoder: PassageEncoder | None
    ) -> None:
        """Index the passages.

        Args:
            texts: the passages.
            shape: what is indexed.
            encoder: turns texts into vectors; None without vectors.
        """
        self._shape, self._encoder, self._size = shape, encoder, len(texts)
        self._words: BM25Index | None = None
        self._rows: NDArray[np.float32] | None = None
        clock = WorkClock()
        if shape.words:
            self._words = BM25Index.build(text.encode() for text in texts)
        self.words_s = clock.read_s()
        clock = WorkClock()
        if shape.vectors and encoder is not None:
            self._rows = np.concatenate(list(encoded_texts(texts, encoder)))
            filled(shape.index(self._rows.shape[1], len(texts)), self._rows, len(texts))
        self.vectors_s = clock.read_s()

    @property
    def num_words(self) -> int:
        """Distinct words; 0 where words are not indexed."""
        return len(self._words.words) if self._words else 0

    def grown(self, count: int) -> StoreSearch:
        """Return a search of so many passages.

        Args:
            count: passages.

        Returns:
            The search; each passage stands there about count / size times.
        """
        shards: list[IVF] = []
        if self._rows is not None:
            whole = self._shape.index(self._rows.shape[1], count)
            shards = [filled(_learnable(whole, self._size), self._rows, count)]
        words = self._words.tiled(count) if self._words else None
        return StoreSearch(shape=self._shape, encoder=self._encoder, shards=shards, words=words)

    def memory_bytes(self, searched: StoreSearch, count: int, growth: float) -> float:
        """Return the bytes of an index of so many passages.

        Args:
            searched: what `grown` returned.
            count: passages.
            growth: power of the number of passages that distinct words grow with.

        Returns:
            Bytes of lists and vectors.
        """
        total = float(sum(sum(shard.memory_bytes().values()) for shard in searched.shards))
        if searched.words:
            total += sum(searched.words.memory_bytes().values())
            more = (count / self._size) ** growth - 1
            total += _WORD_BYTES * len(searched.words.words) * max(more, 0.0)
        return total


def filled(index: IVF, rows: NDArray[np.float32], count: int) -> IVF:
    """Return an index that was trained on rows and holds so many, each again and again."""
    index.train(rows)
    index.add(np.resize(rows, (count, rows.shape[1])))
    index.memory_bytes()  # what waits to be sorted into cells is
    return index


def _learnable(index: IVF, size: int) -> IVF:
    """Return an index of which the same share is searched, with cells that a sample can place."""
    if index.nlist <= size:
        return index
    settings: dict[str, Any] = index.settings()
    nprobe = round(index.nprobe * size / index.nlist)
    settings["nlist"], settings["nprobe"] = size, max(1, min(nprobe, size))
    return type(index)(**settings)

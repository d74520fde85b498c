"""Scores of passages by the words they share with a query (BM25), by the package bm25s."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.pack import Pack, write_pack
from steelyard.data.sketch.near_duplicates import word_hashes
from steelyard.errors import BackendError, DataError
from steelyard.retrieve.index import Hits, SearchStats, checked_k

if TYPE_CHECKING:
    import bm25s

__all__ = ["BM25Index"]

K1, B = 1.2, 0.75
"""Usual constants of term saturation and of length.

Source: Robertson and Zaragoza 2009 (The Probabilistic Relevance Framework: BM25 and Beyond)."""


class BM25Index:
    """Inverted lists of words with the share of the score that each passage gets of them.

    Words are hashes of 64 bits, as in `word_hashes`; a query sums the lists of its words.

    Attributes:
        words: distinct hashes, ascending uint64 [V].
        rarities: inverse document frequency of each word, float32 [V].
        size: passages.
        num_words: words of all passages.
    """

    def __init__(
        self, words: NDArray[np.uint64], lists: dict[str, NDArray[Any]], size: int, num_words: int
    ) -> None:
        """Take what `build` made.

        Args:
            words: distinct hashes, ascending.
            lists: "starts" [V + 1], "rows" and "scores" [postings].
            size: passages.
            num_words: words of all passages.
        """
        self.words, self._lists, self.size, self.num_words = words, lists, size, num_words
        texts = np.diff(lists["starts"])
        self.rarities = np.log1p((size - texts + 0.5) / (texts + 0.5)).astype(np.float32)

    def __len__(self) -> int:
        """Return how many passages there are."""
        return self.size

    @classmethod
    def build(cls, texts: Iterable[bytes]) -> "BM25Index":
        """Count the words of passages.

        Args:
            texts: passages in UTF-8, in the order of their numbers.

        Returns:
            The index.

        Raises:
            DataError: no passage has a word.
            BackendError: bm25s is not installed.
        """
        hashes = [word_hashes(raw) for raw in texts]
        lengths = [len(found) for found in hashes]
        if not sum(lengths):
            raise DataError(f"none of {len(lengths)} passages has a word")
        words, places = np.unique(np.concatenate(hashes), return_inverse=True)
        ends = np.cumsum(lengths)[:-1]
        rows = [part.tolist() for part in np.split(places.astype(np.int32), ends)]
        engine = _engine()
        engine.index(
            (rows, {place: place for place in range(len(words))}),
            create_empty_token=False,
            show_progress=False,
        )
        lists = {
            "starts": np.asarray(engine.scores["indptr"], np.int64),
            "rows": np.asarray(engine.scores["indices"], np.int32),
            "scores": np.asarray(engine.scores["data"], np.float32),
        }
        return cls(words, lists, len(lengths), sum(lengths))

    @cached_property
    def _scorer(self) -> "bm25s.BM25":
        """Return what sums lists."""
        engine = _engine()
        engine.nonoccurrence_array = None  # only BM25L and BM25+ have one
        engine.scores = {
            "data": self._lists["scores"],
            "indices": self._lists["rows"],
            "indptr": self._lists["starts"],
            "num_docs": self.size,
        }
        return engine

    def places(self, query: str) -> NDArray[np.int64]:
        """Return the places in `words` of those words of a query that any passage has."""
        asked = word_hashes(query.encode())
        found = np.minimum(np.searchsorted(self.words, asked), len(self.words) - 1)
        return found[self.words[found] == asked]

    def scores(self, query: str) -> NDArray[np.float32]:
        """Return the score of every passage.

        Args:
            query: any text.

        Returns:
            float32 [size]; 0 for passages without any of its words.
        """
        places = self.places(query)
        if not len(places):
            return np.zeros(self.size, np.float32)
        return self._scorer.get_scores_from_ids(places.tolist())

    def search(self, queries: Sequence[str], k: int) -> Hits:
        """Return the passages with the highest scores.

        Args:
            queries: texts.
            k: passages of each; fewer, and -1 behind them, where fewer share a word.

        Returns:
            Hits as of an index of inner products; of equal scores the smaller number is first.

        Raises:
            ConfigError: k is below 1.
        """
        checked_k(k)
        ids = np.full((len(queries), k), -1, np.int64)
        distances = np.full((len(queries), k), -np.inf, np.float32)
        scanned = 0
        for row, query in enumerate(queries):
            scores = self.scores(query)
            best = _best(scores, k)
            ids[row, : len(best)], distances[row, : len(best)] = best, scores[best]
            starts = self._lists["starts"]
            places = self.places(query)
            scanned += int((starts[places + 1] - starts[places]).sum())
        return Hits(ids=ids, distances=distances, stats=SearchStats(scanned=scanned))

    def tiled(self, size: int) -> "BM25Index":
        """Return an index of so many passages, among which those of this one recur in turn.

        Args:
            size: passages, 1 or more.

        Returns:
            An index in which each word is in the same share of passages, with the same scores.
        """
        starts, rows, scores = (self._lists[name] for name in ("starts", "rows", "scores"))
        times = -(-size // max(self.size, 1))
        word = np.repeat(np.arange(len(self.words), dtype=np.int64), np.diff(starts))
        # One copy after the other: sorting by word keeps the passages of each list in order.
        order = np.argsort(np.tile(word, times), kind="stable")
        moved = (rows + self.size * np.arange(times, dtype=np.int32)[:, None]).ravel()[order]
        is_there = moved < size
        counts = np.bincount(np.tile(word, times)[order][is_there], minlength=len(self.words))
        lists = {
            "starts": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            "rows": moved[is_there].astype(np.int32),
            "scores": np.tile(scores, times)[order][is_there],
        }
        return BM25Index(self.words, lists, size, round(self.num_words * size / self.size))

    def memory_bytes(self) -> dict[str, int]:
        """Return bytes by part."""
        lists = sum(values.nbytes for values in self._lists.values())
        return {"words": self.words.nbytes + self.rarities.nbytes, "lists": lists}

    def save(self, path: Path) -> None:
        """Write the index.

        Args:
            path: the file; an older one is replaced at the end.

        Raises:
            CapacityError: the disk is full; an older file stays.
        """
        sizes = np.array([self.size, self.num_words], np.int64)
        write_pack(path, {"words": self.words, "sizes": sizes, **self._lists})

    @classmethod
    def open(cls, path: Path) -> "BM25Index":
        """Read an index.

        Args:
            path: file of `save`.

        Returns:
            The index.

        Raises:
            DataError: the file is no such index, or is damaged.
        """
        pack = Pack.open(path)
        if pack.find("rows") is None or pack.find("words") is None:
            raise DataError(f"{path} holds no lists of words", hint="write them by BM25Index.save")
        lists = {name: pack[name] for name in ("starts", "rows", "scores")}
        size, num_words = pack["sizes"].tolist()
        return cls(pack["words"], lists, size, num_words)


def _best(scores: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Return the places of the k highest scores above 0, of equal ones the first."""
    count = min(k, len(scores))
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    # All that tie with the last are looked at, so that the first of them stays.
    places = np.flatnonzero(scores >= max(least, np.finfo(np.float32).tiny))
    return places[np.argsort(-scores[places], kind="stable")][:k]


def _engine() -> "bm25s.BM25":
    """Return an empty index of bm25s."""
    try:
        import bm25s
    except ImportError as error:
        raise BackendError(
            "search by words needs bm25s", hint="pip install 'steelyard[retrieve]'"
        ) from error
    return bm25s.BM25(method="lucene", k1=K1, b=B)

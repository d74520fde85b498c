"""Candidates of queries, and the steps that answer for smaller and cleaner stores without search.

A step that looks at each passage by itself may come in any order with the search: filtering the
best K of a store gives what the filtered store would have given, while enough are left. The steps
are checked for the orders in which that holds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from steelyard.data.sketch import MinHasher
from steelyard.data.sketch.near_duplicates import duplicate_roots, text_signatures, word_counts
from steelyard.errors import ConfigError
from steelyard.retrieve.datastore.overlap import Contamination, overlaps
from steelyard.retrieve.datastore.sampling import is_sampled

if TYPE_CHECKING:
    from steelyard.retrieve.datastore.passages import PassageStore

__all__ = ["Candidates"]

Ids = NDArray[np.int64]
Scores = NDArray[np.float32]
_GRAM_WORDS, _NUM_HASHES, _BANDS = 13, 128, 16

_FILTERS = ("search", "filter", "exclude", "decontaminate")
_AFTER: dict[str, tuple[str, ...]] = {
    "filter": (*_FILTERS, "dedup", "subsample"),
    "exclude": (*_FILTERS, "dedup", "subsample"),
    "decontaminate": (*_FILTERS, "dedup", "subsample"),
    "dedup": _FILTERS,
    "subsample": (*_FILTERS, "dedup"),
    "rerank": (*_FILTERS, "dedup", "subsample"),
    "top": (*_FILTERS, "dedup", "subsample", "rerank"),
}
_WHY = {
    "exclude": "new scores and cuts are of the passages that were there",
    "filter": "new scores and cuts are of the passages that were there",
    "decontaminate": "new scores and cuts are of the passages that were there",
    "dedup": "a smaller store keeps another copy than the one that was drawn, so copies go first",
    "subsample": "a sample of a sample is another store, and cuts come after it",
    "rerank": "passages are scored anew once, before the cut",
    "top": "a cut is the last step",
}
"""For each step, those that may come before it, and why no others may.

Source: Shao et al. 2024 (arXiv 2407.12854), lemmas A.2 to A.4."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """The best passages of each query, after some steps.

    Steps return new candidates, so that one search serves many of them.

    Attributes:
        store: where the texts of passages are.
        ids: numbers of passages [Q, K], the best first; -1 behind the last.
        scores: their scores, highest first; minus infinity behind the last.
        steps: what was done so far, the search first.
        found: candidates that the search returned for each query [Q].
        is_all: whether the search returned all passages of the store.
    """

    store: "PassageStore"
    ids: Ids
    scores: Scores
    steps: tuple[str, ...] = ("search",)
    found: Ids
    is_all: bool = False

    @classmethod
    def of_search(cls, store: "PassageStore", ids: Ids, scores: Scores) -> "Candidates":
        """Return the candidates of a search.

        Args:
            store: where the texts of passages are.
            ids: numbers of passages [Q, K], the best first; -1 behind the last.
            scores: their scores, highest first.

        Returns:
            Candidates without further steps.
        """
        found = (ids >= 0).sum(axis=1)
        return cls(
            store=store,
            ids=ids,
            scores=scores,
            found=found,
            is_all=bool((found >= len(store)).all()),
        )

    def __len__(self) -> int:
        """Return how many queries there are."""
        return len(self.ids)

    def counts(self) -> Ids:
        """Return how many candidates each query has [Q]."""
        return (self.ids >= 0).sum(axis=1)

    def is_short(self, k: int) -> NDArray[np.bool_]:
        """Return for which queries the store itself might have had more than is left here [Q].

        Args:
            k: passages that are wanted.

        Returns:
            True where fewer than k are left though the search left passages out.
        """
        return (self.counts() < k) & (not self.is_all)

    def filter(self, min_words: int = 13) -> "Candidates":
        """Leave out short passages.

        Args:
            min_words: fewest words of a passage that stays.

        Returns:
            The candidates that are left.

        Raises:
            ConfigError: a step came before that may not.
        """
        numbers, places = self._distinct()
        long = word_counts(self.store.raws(numbers)) >= min_words
        return self._kept("filter", _at(long, places))

    def exclude(self, sources: Sequence[str]) -> "Candidates":
        """Leave out passages of the document that a query was taken from.

        Args:
            sources: name of the document of each query [Q]; a name that no passage has leaves
                nothing out.

        Returns:
            The candidates that are left.

        Raises:
            ConfigError: not as many names as queries, or a step came before that may not.
        """
        if len(sources) != len(self):
            raise ConfigError(f"{len(sources)} names of documents for {len(self)} queries")
        places = {name: place for place, name in enumerate(self.store.sources)}
        own = np.array([places.get(name, -1) for name in sources])
        return self._kept("exclude", self.store.sources_of(self.ids) != own[:, None])

    def decontaminate(
        self, texts: Sequence[str], rule: Contamination | None = None
    ) -> "Candidates":
        """Leave out passages that hold the text they are asked about.

        Args:
            texts: text of each query that answers are judged by [Q].
            rule: when a passage counts as a copy.

        Returns:
            The candidates that are left.

        Raises:
            ConfigError: not as many texts as queries, or a step came before that may not.
        """
        if len(texts) != len(self):
            raise ConfigError(f"{len(texts)} texts for {len(self)} queries")
        numbers, places = self._distinct()
        rows, columns = np.nonzero(self.ids >= 0)
        pairs = np.stack([places[rows, columns], rows], axis=1)
        raws = self.store.raws(numbers)
        copies = overlaps(raws, [text.encode() for text in texts], pairs, rule or Contamination())
        stay = np.zeros(self.ids.shape, bool)
        stay[rows, columns] = ~copies
        return self._kept("decontaminate", stay)

    def dedup(self, jaccard: float = 0.8) -> "Candidates":
        """Keep the best of passages that are nearly the same.

        Similarity is estimated by 128 hashes of 13-grams; passages that are similar to a third
        one are of one cluster.

        Args:
            jaccard: least similarity of two passages of a cluster.

        Returns:
            The candidates that are left.

        Raises:
            ConfigError: a step came before that may not.
        """
        numbers, places = self._distinct()
        hasher = MinHasher(seed=0, num_hashes=_NUM_HASHES)
        raws = self.store.raws(numbers)
        signed = text_signatures(raws, hasher, width=_GRAM_WORDS)
        roots = duplicate_roots(signed, jaccard, bands=_BANDS)
        stay = np.zeros(self.ids.shape, bool)
        for row in range(len(self)):
            columns = np.flatnonzero(self.ids[row] >= 0)
            _, firsts = np.unique(roots[places[row, columns]], return_index=True)
            stay[row, columns[firsts]] = True
        return self._kept("dedup", stay)

    def subsample(self, share: float, seed: int = 0) -> "Candidates":
        """Keep the passages that a smaller store would hold.

        Args:
            share: share of passages in that store, above 0 to 1.
            seed: seed of the draw; the same passages stay for every query.

        Returns:
            The candidates that are left.

        Raises:
            ConfigError: the share is out of range, or a step came before that may not.
        """
        return self._kept("subsample", is_sampled(self.ids, share, seed))

    def rerank(self, score: Callable[[int, Sequence[str]], NDArray[np.floating]]) -> "Candidates":
        """Order candidates by new scores; of equal ones the former order stays.

        Args:
            score: returns scores of texts for a query, higher for better, given the place of the
                query and the texts.

        Returns:
            The candidates in their new order.

        Raises:
            ConfigError: a step came before that may not, or not one score per text came.
        """
        self._check("rerank")
        ids, scores = np.full_like(self.ids, -1), np.full_like(self.scores, -np.inf)
        for row in range(len(self)):
            numbers = self.ids[row][self.ids[row] >= 0]
            values = np.asarray(score(row, [self.store.text(n) for n in numbers.tolist()]), "f4")
            if values.shape != numbers.shape:
                raise ConfigError(f"{values.shape} scores for {len(numbers)} texts")
            order = np.argsort(-values, kind="stable")
            ids[row, : len(numbers)], scores[row, : len(numbers)] = numbers[order], values[order]
        return replace(self, ids=ids, scores=scores, steps=(*self.steps, "rerank"))

    def top(self, k: int) -> "Candidates":
        """Keep the k best.

        Args:
            k: passages of each query, 1 or more.

        Returns:
            The candidates that are left, [Q, k].

        Raises:
            ConfigError: k is below 1, or the cut came before.
        """
        self._check("top")
        if k < 1:
            raise ConfigError(f"k is {k}", hint="ask for 1 passage or more")
        room = max(0, k - self.ids.shape[1])
        ids = np.pad(self.ids[:, :k], ((0, 0), (0, room)), constant_values=-1)
        scores = np.pad(self.scores[:, :k], ((0, 0), (0, room)), constant_values=-np.inf)
        return replace(self, ids=ids, scores=scores, steps=(*self.steps, "top"))

    def _distinct(self) -> tuple[Ids, Ids]:
        """Return distinct numbers, and the place among them of each candidate (-1 for none)."""
        numbers = np.unique(self.ids[self.ids >= 0])
        places = np.where(self.ids >= 0, np.searchsorted(numbers, self.ids), -1)
        return numbers, places

    def _kept(self, step: str, stay: NDArray[np.bool_]) -> "Candidates":
        """Return those that stay, moved up."""
        self._check(step)
        stay = stay & (self.ids >= 0)
        rows, columns = np.nonzero(stay)
        places = (np.cumsum(stay, axis=1) - 1)[rows, columns]
        ids, scores = np.full_like(self.ids, -1), np.full_like(self.scores, -np.inf)
        ids[rows, places] = self.ids[rows, columns]
        scores[rows, places] = self.scores[rows, columns]
        return replace(self, ids=ids, scores=scores, steps=(*self.steps, step))

    def _check(self, step: str) -> None:
        """Refuse a step where the answer would not be that of a store."""
        wrong = [name for name in self.steps if name not in _AFTER[step]]
        if wrong:
            raise ConfigError(
                f"{step} after {wrong[0]}: {_WHY[step]}",
                hint=f"the steps so far are {', '.join(self.steps)}; {step} before {wrong[0]}",
            )


def _at(values: NDArray[np.bool_], places: Ids) -> NDArray[np.bool_]:
    """Return a value for each place, False where there is none."""
    if not len(values):
        return np.zeros(places.shape, bool)
    return np.where(places >= 0, values[places], False)

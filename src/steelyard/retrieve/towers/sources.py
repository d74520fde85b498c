"""Pairs of texts made from documents: a title with its text, a sentence with the rest."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from steelyard.data.sketch.hashing import hash_texts
from steelyard.errors import DataError

__all__ = ["PairTexts", "cloze_pairs", "document_groups", "sentences", "title_pairs"]

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z(\[$\\])")
_LEAST_WORDS = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class PairTexts:
    """Queries with their documents, and which documents say the same.

    Attributes:
        queries: texts.
        documents: texts.
        own: place of each query's document, int64 [Q].
        sources: number of what each document was made from, int64 [N].
        dropped: texts that gave no pair: empty ones, or those of a single sentence.
    """

    queries: list[str]
    documents: list[str]
    own: NDArray[np.int64]
    sources: NDArray[np.int64]
    dropped: int = 0

    def __len__(self) -> int:
        """Return how many pairs there are."""
        return len(self.queries)

    def __add__(self, other: "PairTexts") -> "PairTexts":
        """Return the pairs of both."""
        return PairTexts(
            queries=[*self.queries, *other.queries],
            documents=[*self.documents, *other.documents],
            own=np.append(self.own, other.own + len(self.documents)),
            sources=np.append(self.sources, other.sources),
            dropped=self.dropped + other.dropped,
        )

    @cached_property
    def groups(self) -> NDArray[np.int64]:
        """Number of the group of each document [N]: none is a negative of its group's queries."""
        return document_groups(self.documents, self.sources)

    @property
    def duplicates(self) -> int:
        """Documents whose text stands earlier among them, found by their hash."""
        return len(self.documents) - len(np.unique(hash_texts(self.documents)))

    def take(self, rows: NDArray[np.int64]) -> "PairTexts":
        """Return some pairs with all documents.

        Args:
            rows: places of pairs.

        Returns:
            The pairs.
        """
        return replace(
            self, queries=[self.queries[row] for row in rows.tolist()], own=self.own[rows]
        )


def sentences(text: str) -> list[str]:
    """Cut a text where a sentence ends and another begins.

    Args:
        text: any text.

    Returns:
        Its sentences with 4 words or more; shorter ones are most often pieces of formulas.
    """
    parts = [" ".join(part.split()) for part in _SENTENCE_END.split(text)]
    return [part for part in parts if len(part.split()) >= _LEAST_WORDS]


def document_groups(documents: Sequence[str], sources: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return which documents are no negatives of each other's queries.

    Args:
        documents: texts [N].
        sources: number of what each was made from [N].

    Returns:
        Lowest source of each group, int64 [N]: of documents that share a source or, by their
        hash, a text, directly or through others.
    """
    keys = np.unique(hash_texts(list(documents)), return_inverse=True)[1]
    names, places = np.unique(sources, return_inverse=True)
    count = len(names) + int(keys.max(initial=-1)) + 1
    edges = coo_array((np.ones(len(keys)), (places, len(names) + keys)), shape=(count, count))
    labels = connected_components(edges, directed=False)[1][: len(names)]
    lowest = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(lowest, labels, names)
    return lowest[labels][places]


def title_pairs(
    titles: Sequence[str],
    texts: Sequence[str],
    *,
    sources: NDArray[np.int64] | None = None,
    document_titles: bool = False,
) -> PairTexts:
    """Pair each title with its text; the title is closest to what people type.

    Args:
        titles: titles [N].
        texts: texts [N].
        sources: number of each source [N]; counted from 0 where none are given.
        document_titles: whether a document begins with its title. Only for search: trained so,
            towers learn to copy the title.

    Returns:
        The pairs; those without a title or a text are left out and counted.

    Raises:
        DataError: not as many titles as texts, or no whole pair.

    Source: Xia et al. 2024 (ScalingNote, arXiv 2411.15766), title-oriented query prediction.
    """
    if len(titles) != len(texts):
        raise DataError(f"{len(titles)} titles for {len(texts)} texts", hint="give each text one")
    numbers = np.arange(len(titles)) if sources is None else sources
    kept = [row for row in range(len(titles)) if titles[row].strip() and texts[row].strip()]
    if not kept:
        raise DataError(f"none of {len(titles)} titles has a text", hint="give texts with words")
    documents = [f"{titles[row]}. {texts[row]}" if document_titles else texts[row] for row in kept]
    return PairTexts(
        queries=[titles[row] for row in kept],
        documents=documents,
        own=np.arange(len(kept)),
        sources=numbers[kept],
        dropped=len(titles) - len(kept),
    )


def cloze_pairs(
    texts: Sequence[str],
    *,
    sources: NDArray[np.int64] | None = None,
    most: int | None = None,
    kept_share: float = 0.1,
    seed: int = 0,
) -> PairTexts:
    """Pair sentences with the rest of their text (inverse cloze task): labels that cost nothing.

    Args:
        texts: texts.
        sources: number of each source [N]; counted from 0 where none are given.
        most: pairs to draw from all; None for all.
        kept_share: share of pairs whose document keeps the sentence, so that towers also learn
            to find equal words.
        seed: seed of the draws.

    Returns:
        The pairs; texts of a single sentence give none and are counted as dropped.

    Raises:
        DataError: no text has two sentences.

    Source: Lee et al. 2019 (arXiv 1906.00300), section 4: the sentence stays in a tenth.
    """
    numbers = np.arange(len(texts)) if sources is None else sources
    rng = np.random.default_rng(seed)
    queries, documents, names = [], [], []
    dropped = 0
    for text, number in zip(texts, numbers.tolist(), strict=True):
        parts = sentences(text)
        dropped += len(parts) < 2
        for place, part in enumerate(parts if len(parts) > 1 else []):
            keeps = rng.random() < kept_share
            rest = parts if keeps else [*parts[:place], *parts[place + 1 :]]
            queries.append(part)
            documents.append(" ".join(rest))
            names.append(number)
    if not queries:
        raise DataError(f"none of {len(texts)} texts has two sentences", hint="give longer texts")
    chosen = np.arange(len(queries))
    if most is not None and most < len(queries):
        chosen = np.sort(rng.choice(len(queries), most, replace=False))
    documents = [documents[row] for row in chosen.tolist()]
    return PairTexts(
        queries=[queries[row] for row in chosen.tolist()],
        documents=documents,
        own=np.arange(len(chosen)),
        sources=np.array(names, np.int64)[chosen],
        dropped=dropped,
    )

"""Abstracts with their titles: what towers learn from, what is kept aside, and lexical rivals."""

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from benchmarks.laws._shared import shared
from numpy.typing import NDArray
from tokenizers import Tokenizer

from steelyard.data.tokenizer import train_tokenizer
from steelyard.retrieve.text.weights import WordWeights, count_words
from steelyard.retrieve.towers import (
    PairTexts,
    cloze_pairs,
    contrastive_entropy,
    made_queries,
    ndcg,
    ranks_of_own,
    title_pairs,
)
from steelyard.retrieve.towers.sources import sentences

__all__ = ["Abstracts", "Quality", "fused", "load_abstracts", "quality", "tfidf_scores"]

VOCABULARY = 8192
_RRF = 60
_DRAWS = 4
"""Draws of negatives whose entropies are averaged."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Abstracts:
    """Papers; titles of some are kept aside as queries that nothing is trained or chosen on.

    Abstracts are the collection that is searched: all are known, as to BM25.

    Attributes:
        titles: titles [N].
        texts: abstracts [N].
        train: places of papers whose title is a labelled query.
        test: places of papers whose title is asked at the end.
        tokenizer: trained on abstracts and on titles of `train`.
    """

    titles: list[str]
    texts: list[str]
    train: NDArray[np.int64]
    test: NDArray[np.int64]
    tokenizer: Tokenizer

    @property
    def asked(self) -> list[str]:
        """Titles that are kept aside."""
        return [self.titles[row] for row in self.test.tolist()]

    @cached_property
    def token_rows(self) -> list[list[int]]:
        """Token ids of all abstracts."""
        return [item.ids for item in self.tokenizer.encode_batch(self.texts)]

    def labelled(self) -> PairTexts:
        """Return titles with their abstracts."""
        rows = self.train.tolist()
        return title_pairs(
            [self.titles[row] for row in rows],
            [self.texts[row] for row in rows],
            sources=self.train,
        )

    def pairs(self, clozes: int | None, seed: int) -> PairTexts:
        """Return titles with their abstracts, and sentences with the rest of theirs."""
        return self.labelled() + cloze_pairs(self.texts, most=clozes, seed=seed)

    def stream(self, count: int, seed: int) -> list[str]:
        """Return queries without any label.

        Titles of `train` and sentences first, in a drawn order, then queries made from abstracts.

        Args:
            count: queries.
            seed: seed of the draw.

        Returns:
            Texts, all different.
        """
        rng = np.random.default_rng(seed)
        found = [self.titles[row] for row in self.train.tolist()]
        found += [one for text in self.texts for one in sentences(text)]
        kept = dict.fromkeys(found[place] for place in rng.permutation(len(found)))
        first = list(kept)[:count]
        return [*first, *made_queries(self.texts, count - len(first), seed=seed)]


def load_abstracts(*, most: int | None = None, heldout: float = 0.1, seed: int = 0) -> Abstracts:
    """Read the papers, and draw those whose titles are kept aside.

    Args:
        most: papers to take; None for all.
        heldout: share of titles that are kept aside.
        seed: seed of the draw.

    Returns:
        The papers.
    """
    path = shared("arxiv-abstracts") / "papers.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines][:most]
    titles = [" ".join(row["title"].split()) for row in rows]
    texts = [" ".join(row["abstract"].split()) for row in rows]
    order = np.random.default_rng(seed).permutation(len(rows))
    count = round(heldout * len(rows))
    train = np.sort(order[count:])
    known = [*texts, *(titles[row] for row in train.tolist())]
    return Abstracts(
        titles=titles,
        texts=texts,
        train=train,
        test=np.sort(order[:count]),
        tokenizer=train_tokenizer(iter(known), VOCABULARY),
    )


@dataclass(frozen=True, kw_only=True)
class Quality:
    """How well titles that were kept aside find their abstract among all.

    Attributes:
        ndcg: nDCG@10.
        hit: share whose abstract stands first.
        entropy: contrastive entropy with 256 negatives, nats; not a number for lexical rivals.
    """

    ndcg: float
    hit: float
    entropy: float = float("nan")


def quality(
    papers: Abstracts, queries: NDArray[np.floating], documents: NDArray[np.floating]
) -> Quality:
    """Return how good vectors are.

    Args:
        papers: the papers.
        queries: vectors of the titles that are kept aside [Q, D].
        documents: vectors of all abstracts [N, D].

    Returns:
        The quality.
    """
    found = of_scores(papers, queries @ documents.T)
    negatives = min(256, len(documents) - 1)
    nats = [
        contrastive_entropy(queries, documents, papers.test, negatives=negatives, seed=seed)
        for seed in range(_DRAWS)
    ]
    return Quality(ndcg=found.ndcg, hit=found.hit, entropy=float(np.mean(nats)))


def of_scores(papers: Abstracts, scores: NDArray[np.floating]) -> Quality:
    """Return the quality of scores [Q, N]."""
    ranks = ranks_of_own(scores, papers.test)
    return Quality(ndcg=float(ndcg(ranks).mean()), hit=float((ranks == 0).mean()))


def tfidf_scores(papers: Abstracts) -> NDArray[np.floating]:
    """Return cosines of weighted words of titles and abstracts [Q, N]."""
    counts = count_words(text.encode() for text in papers.texts)
    weights = WordWeights.fit(counts, 65_536, least_texts=1)
    asked = weights.rows(count_words(text.encode() for text in papers.asked))
    return np.asarray((asked @ weights.rows(counts).T).todense())


def fused(*scores: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return reciprocal-rank sums of several rankings.

    Source: Cormack et al. 2009, reciprocal rank fusion with constant 60.
    """
    total = np.zeros(scores[0].shape)
    for part in scores:
        ranks = np.argsort(np.argsort(-part, axis=1, kind="stable"), axis=1, kind="stable")
        total += 1 / (_RRF + 1 + ranks)
    return total


def lengths(rows: Sequence[Sequence[int]]) -> float:
    """Return the mean number of tokens."""
    return float(np.mean([len(row) for row in rows]))

"""How much words and vectors count, found on queries made from the texts themselves."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.retrieve.index import Hits
from steelyard.retrieve.kinds import IVFFlat
from steelyard.retrieve.text.fusion import DEPTH, Fusion
from steelyard.retrieve.text.lexical import BM25Index

__all__ = ["CANDIDATES", "POOL", "QUERIES", "WeighedFusion", "made_queries", "weigh"]

POOL, QUERIES, _FEWEST = 3000, 240, 20
_QUERY_WORDS, _LEAST_WORDS = 12, 4
_SENTENCES = re.compile(r"(?<=[.!?;:])\s+|\n+")
CANDIDATES = (*(Fusion("weighted", tenth / 10) for tenth in range(11)), Fusion("ranks"))

Encode = Callable[[Sequence[str]], NDArray[np.floating]]


@dataclass(frozen=True, kw_only=True)
class WeighedFusion:
    """The fusion that was chosen, and what it finds of passages by a sentence taken from them.

    Attributes:
        fusion: what was chosen.
        queries: queries that chose, and as many that checked; 0 where the texts give too few.
        found: mean reciprocal rank of the passage a query was taken from, on queries that did not
            choose: "chosen", "words", "vectors".
        candidates: the same of every fusion that was tried.
    """

    fusion: Fusion
    queries: int
    found: dict[str, float]
    candidates: Sequence[tuple[Fusion, float]] = ()


def made_queries(
    texts: Sequence[str], rng: np.random.Generator, most: int
) -> list[tuple[int, str, str]]:
    """Take a sentence out of some passages: it asks for the passage without it.

    Args:
        texts: passages.
        rng: draws passages and sentences.
        most: queries to make.

    Returns:
        Place of the passage, at most 12 words of the sentence, and the passage without it.

    Source: Lee, Chang and Toutanova 2019 (arXiv 1906.00300), inverse cloze task.
    """
    found: list[tuple[int, str, str]] = []
    for place in rng.permutation(len(texts)).tolist():
        parts = _SENTENCES.split(str(texts[place]))
        parts = [part for part in parts if part and part.strip()]
        long = [n for n, part in enumerate(parts) if len(part.split()) >= _LEAST_WORDS]
        if len(parts) < 2 or not long:
            continue
        drawn = long[int(rng.integers(len(long)))]
        rest = " ".join(part for n, part in enumerate(parts) if n != drawn)
        found.append((place, " ".join(parts[drawn].split()[:_QUERY_WORDS]), rest))
        if len(found) == most:
            break
    return found


def weigh(
    texts: Sequence[str], fit: Callable[[Sequence[str]], Encode], *, seed: int = 0
) -> WeighedFusion:
    """Choose the fusion that best finds passages by sentences that were taken from them.

    Among fusions that are no worse than the best by more than its standard error, that nearest to
    equal weights is taken: made queries share more words with their passage than people's do.

    Args:
        texts: passages; some of them are looked at.
        fit: returns what turns texts into vectors, given passages without the sentences that ask
            for them: an encoder that has seen both together would find them too easily.
        seed: seed of the draw.

    Returns:
        The choice; equal weights where the texts give fewer than 20 queries.
    """
    rng = np.random.default_rng(seed)
    places: list[int] = np.linspace(0, len(texts) - 1, min(len(texts), POOL)).astype(int).tolist()
    pool = [texts[place] for place in places]
    made = made_queries(pool, rng, QUERIES)
    if len(made) < _FEWEST:
        return WeighedFusion(fusion=Fusion(), queries=0, found={})
    for place, _, rest in made:
        pool[place] = rest
    words, vectors = _searched(pool, [query for _, query, _ in made], fit(pool))
    targets = np.array([place for place, _, _ in made])
    ranks = {fusion: _reciprocal(fusion, words, vectors, targets) for fusion in CANDIDATES}
    fusion = _nearest_equal({key: values[::2] for key, values in ranks.items()})
    compared = {"chosen": fusion, "words": CANDIDATES[0], "vectors": CANDIDATES[10]}
    found = {name: float(ranks[key][1::2].mean()) for name, key in compared.items()}
    return WeighedFusion(
        fusion=fusion,
        queries=len(made) // 2,
        found=found,
        candidates=[(key, float(values[1::2].mean())) for key, values in ranks.items()],
    )


def _searched(pool: list[str], queries: list[str], encode: Encode) -> tuple[Hits, Hits]:
    """Return what words and vectors find in a small store."""
    rows = np.asarray(encode(pool), np.float32)
    index = IVFFlat(rows.shape[1], metric="ip")
    index.add(rows)
    words = BM25Index.build(text.encode() for text in pool)
    return words.search(queries, DEPTH), index.search(np.asarray(encode(queries)), DEPTH)


def _reciprocal(
    fusion: Fusion, words: Hits, vectors: Hits, targets: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return 1 / rank of the passage that each query was taken from, 0 where it is not found."""
    hits = fusion.fuse(words, vectors, DEPTH).ids == targets[:, None]
    return np.where(hits.any(axis=1), 1 / (1 + hits.argmax(axis=1)), 0.0)


def _nearest_equal(ranks: dict[Fusion, NDArray[np.float64]]) -> Fusion:
    """Return the most balanced of the fusions that are as good as the best."""
    best = max(ranks, key=lambda fusion: float(ranks[fusion].mean()))

    def is_as_good(fusion: Fusion) -> bool:
        lost = ranks[best] - ranks[fusion]
        error = float(lost.std(ddof=1)) / np.sqrt(len(lost))
        return float(lost.mean()) <= error

    good = [fusion for fusion in ranks if is_as_good(fusion)]
    return min(
        good,
        key=lambda fusion: (
            fusion.kind == "ranks",
            abs(fusion.vector_weight - 0.5),
            -float(ranks[fusion].mean()),
        ),
    )

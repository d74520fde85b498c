"""The lines of a passage that answer a query best."""

from typing import NamedTuple

import numpy as np

from steelyard.data.sketch.near_duplicates import word_hashes
from steelyard.retrieve.text.lexical import BM25Index

__all__ = ["Snippet", "best_lines"]

_LINES, _CHARS = 3, 320


class Snippet(NamedTuple):
    """Some lines of a passage.

    Attributes:
        first: place of the first line within the passage, from 0.
        text: the lines.
    """

    first: int
    text: str


def best_lines(text: str, query: str, words: BM25Index | None) -> Snippet:
    """Return the lines in a row that hold the rarest words of a query.

    Args:
        text: the passage.
        query: the query.
        words: says how rare words are; all count alike where there are none.

    Returns:
        At most 3 lines and 320 characters; the beginning where no line has a word of the query.
    """
    lines = text.split("\n")
    asked = np.unique(word_hashes(query.encode()))
    weights = _weights(asked, words)
    held = np.array([np.isin(asked, word_hashes(line.encode())) for line in lines])
    values = held @ weights
    best = int(values.argmax()) if values.any() else 0
    first = _first_of(held, weights, best)
    shown = [line.strip() for line in lines[first : first + _LINES]]
    return Snippet(first, _cut(" ".join(line for line in shown if line), query))


def _weights(asked: np.ndarray, words: BM25Index | None) -> np.ndarray:
    """Return how rare each word of a query is, 0 where no passage has it."""
    if words is None:
        return np.ones(len(asked))
    places = np.minimum(np.searchsorted(words.words, asked), len(words.words) - 1)
    return np.where(words.words[places] == asked, words.rarities[places], 0.0)


def _first_of(held: np.ndarray, weights: np.ndarray, best: int) -> int:
    """Return where the window begins that holds most around the best line."""
    starts = range(max(0, best - _LINES + 1), best + 1)
    worth = {at: float(held[at : at + _LINES].any(axis=0) @ weights) for at in starts}
    # Of windows that hold as much, the latest begins with what was asked for.
    return max(worth, key=lambda at: (round(worth[at], 6), at))


def _cut(text: str, query: str) -> str:
    """Return at most so many characters, around the first word of the query that is there."""
    if len(text) <= _CHARS:
        return text
    lower = text.lower()
    places = [lower.find(word) for word in query.lower().split() if len(word) > 2]
    first = max(0, min((place for place in places if place >= 0), default=0) - _CHARS // 4)
    cut = text[first : first + _CHARS]
    return f"{'…' if first else ''}{cut}{'…' if first + _CHARS < len(text) else ''}"

"""Passages that hold the text they are asked about."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.sketch.near_duplicates import shingles, word_count
from steelyard.jit import njit

__all__ = ["Contamination", "overlaps"]


@dataclass(frozen=True, kw_only=True)
class Contamination:
    """When a passage counts as a copy of an evaluation text.

    Attributes:
        gram_words: words of a gram.
        jaccard: least Jaccard similarity of their sets of grams.
        run_words: least number of words in a row that both have.

    Source: Shao et al. 2024 (arXiv 2407.12854), decontamination: 13-grams at .8, runs of 32 words.
    """

    gram_words: int = 13
    jaccard: float = 0.8
    run_words: int = 32


def overlaps(
    passages: Sequence[bytes],
    texts: Sequence[bytes],
    pairs: NDArray[np.int64],
    rule: Contamination,
) -> NDArray[np.bool_]:
    """Return which passages count as copies of the texts they are paired with.

    Two texts have `run_words` words in a row in common if and only if they share a gram of so many
    words, so hashes of grams answer both questions.

    Args:
        passages: passages in UTF-8.
        texts: evaluation texts in UTF-8.
        pairs: places of a passage and of a text [P, 2].
        rule: when a passage counts as a copy.

    Returns:
        For each pair [P].
    """
    grams = [_sets(side, lambda raw: shingles(raw, rule.gram_words)) for side in (passages, texts)]
    runs = [_sets(side, lambda raw: _runs_of(raw, rule.run_words)) for side in (passages, texts)]
    found = np.empty(len(pairs), bool)
    rows = np.ascontiguousarray(pairs, dtype=np.int64)
    _compare_pairs(rows, *grams[0], *grams[1], *runs[0], *runs[1], rule.jaccard, found)
    return found


def _runs_of(raw: bytes, words: int) -> NDArray[np.uint64]:
    """Return hashes of runs of words; a shorter text has none."""
    return shingles(raw, words) if word_count(raw) >= words else np.empty(0, np.uint64)


def _sets(
    texts: Sequence[bytes], cut: Callable[[bytes], NDArray[np.uint64]]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return sorted sets behind each other, and where each begins."""
    found = [cut(raw) for raw in texts]
    starts = np.concatenate([[0], np.cumsum([len(one) for one in found])]).astype(np.int64)
    return np.concatenate([np.empty(0, np.uint64), *found]), starts


@njit()
def _common(
    one: np.ndarray, first: Any, last: Any, other: np.ndarray, begin: Any, end: Any, most: Any
) -> Any:
    """Count common members of two sorted sets, no more than `most`."""
    count = 0
    while first < last and begin < end and count < most:
        if one[first] < other[begin]:
            first += 1
        elif one[first] > other[begin]:
            begin += 1
        else:
            count += 1
            first += 1
            begin += 1
    return count


@njit()
def _compare_pairs(
    pairs: np.ndarray,
    grams: np.ndarray,
    starts: np.ndarray,
    text_grams: np.ndarray,
    text_starts: np.ndarray,
    runs: np.ndarray,
    run_starts: np.ndarray,
    text_runs: np.ndarray,
    text_run_starts: np.ndarray,
    jaccard: float,
    found: np.ndarray,
) -> None:
    """Compare grams, then runs, of each pair."""
    for row in range(len(pairs)):
        passage, text = pairs[row]
        first, last = starts[passage], starts[passage + 1]
        begin, end = text_starts[text], text_starts[text + 1]
        both = _common(grams, first, last, text_grams, begin, end, last - first)
        either = (last - first) + (end - begin) - both
        is_copy = either > 0 and both >= jaccard * either
        if not is_copy:
            first, last = run_starts[passage], run_starts[passage + 1]
            begin, end = text_run_starts[text], text_run_starts[text + 1]
            is_copy = _common(runs, first, last, text_runs, begin, end, 1) > 0
        found[row] = is_copy

"""Passages that hold the text they are asked about."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.sketch.near_duplicates import gram_sets, word_rows
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
    words = [word_rows(side) for side in (passages, texts)]
    grams = [gram_sets(*side, rule.gram_words, short=True) for side in words]
    runs = [gram_sets(*side, rule.run_words, short=False) for side in words]
    found = np.empty(len(pairs), bool)
    rows = np.ascontiguousarray(pairs, dtype=np.int64)
    _compare_pairs(rows, *grams[0], *grams[1], *runs[0], *runs[1], rule.jaccard, found)
    return found


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

"""Queries that nobody typed: parts of texts, some with words left out or exchanged."""

from collections.abc import Sequence

import numpy as np

from steelyard.errors import ConfigError, DataError

__all__ = ["made_queries"]

_MISSES = 1000
"""Draws in a row without a new query, after which texts are found to be too few."""


def made_queries(
    texts: Sequence[str],
    count: int,
    *,
    words: tuple[int, int] = (4, 16),
    noise: float = 0.1,
    seed: int = 0,
) -> list[str]:
    """Make queries for a student to learn from, as it needs no labels and no real ones.

    Each is a run of words of a text. Every word is left out with some probability, and as often
    exchanged with the next one, so that the student also meets what no text says word for word.

    Args:
        texts: texts like those that are asked for, or queries.
        count: queries.
        words: words of the shortest and the longest run.
        noise: share of words that are left out, and of those that are exchanged, 0 to below 1.
        seed: seed of the draws.

    Returns:
        Queries; all are different, and none is one of the texts.

    Raises:
        ConfigError: a length, a number or a share out of range.
        DataError: the texts have too few words for so many queries.

    Source: Xia et al. 2024 (ScalingNote, arXiv 2411.15766), stage 2: queries without labels; noise
        as of Lewis et al. 2020 (arXiv 1910.13461), section 2.2.
    """
    shortest, longest = words
    if count < 0 or not 1 <= shortest <= longest or not 0 <= noise < 1:
        raise ConfigError(
            f"{count} queries of {shortest} to {longest} words with noise {noise:g}",
            hint="give 0 queries or more, 1 word or more, and noise from 0 to below 1",
        )
    split = [words for words in (text.split() for text in texts) if len(words) >= shortest]
    rng, known = np.random.default_rng(seed), set(texts)
    found: dict[str, None] = {}
    misses = 0 if split else _MISSES
    while len(found) < count and misses < _MISSES:
        drawn = _run(split[int(rng.integers(len(split)))], words, rng)
        made = " ".join(_noisy(drawn, noise, rng))
        is_new = bool(made) and made not in known and made not in found
        misses = 0 if is_new else misses + 1
        if is_new:
            found[made] = None
    if len(found) < count:
        raise DataError(
            f"{len(texts)} texts gave {len(found)} different queries, {count} are wanted",
            hint="give more or longer texts, or ask for fewer queries",
        )
    return list(found)


def _run(words: list[str], lengths: tuple[int, int], rng: np.random.Generator) -> list[str]:
    """Return a run of a text's words."""
    length = int(rng.integers(lengths[0], min(lengths[1], len(words)) + 1))
    first = int(rng.integers(0, len(words) - length + 1))
    return words[first : first + length]


def _noisy(words: list[str], noise: float, rng: np.random.Generator) -> list[str]:
    """Return words, some left out and some exchanged with the next one."""
    stays = (rng.random(len(words)) >= noise).tolist()
    kept = [word for word, stay in zip(words, stays, strict=True) if stay]
    for place in np.flatnonzero(rng.random(max(0, len(kept) - 1)) < noise).tolist():
        kept[place], kept[place + 1] = kept[place + 1], kept[place]
    return kept

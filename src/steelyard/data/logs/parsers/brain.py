"""Brain: words that are equally frequent belong together; what is above or below them may vary."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from steelyard.data.logs.parsers.parsed import WILDCARD, ParsedLines, masked, numbered

__all__ = ["BrainParser"]

_DIGIT_SHARE = 0.3
_Combination = tuple[int, int]
"""A frequency, and how many words of a line have it."""


@dataclass(frozen=True, kw_only=True)
class BrainParser:
    """Brain as its author's program runs it, for comparison; it needs all lines at once.

    Attributes:
        threshold: words at a position from which on it is a variable.
        masks: expressions of variables.
        removed: expressions of what is left out of lines.
        spaced: texts that a blank is put after, each with its replacement, such as ":" and ": ".

    Source: Yu et al. 2023 (IEEE TSC, Brain), and its program in the logparser benchmark, whose
    texts to be spaced depend on the system.
    """

    threshold: int = 2
    masks: Sequence[re.Pattern[str]] = ()
    removed: Sequence[re.Pattern[str]] = ()
    spaced: Mapping[str, str] = field(default_factory=dict)

    def parse(self, contents: Sequence[str]) -> ParsedLines:
        """Return the template of each line.

        Args:
            contents: lines without their headers.

        Returns:
            Groups of lines with one template text and one number of words.
        """
        lines = [self._words(content) for content in contents]
        counts = Counter((place, word) for words in lines for place, word in enumerate(words))
        frequencies = [[counts[place, word] for place, word in enumerate(words)] for words in lines]
        roots: dict[tuple[int, _Combination], list[int]] = {}
        for line, found in enumerate(frequencies):
            roots.setdefault((len(found), _root(found)), []).append(line)
        texts = [""] * len(lines)
        for (_, root), members in roots.items():
            self._split(root, members, lines, frequencies, texts)
        return numbered([(len(lines[line]), text) for line, text in enumerate(texts)], texts)

    def _words(self, content: str) -> list[str]:
        text = masked(content, self.masks)
        for expression in self.removed:
            text = expression.sub("", text)
        for mark, wider in self.spaced.items():
            text = text.replace(mark, wider)
        return re.sub(" +", " ", text.replace(",", ", ")).split(" ")

    def _split(
        self,
        root: _Combination,
        members: list[int],
        lines: list[list[str]],
        frequencies: list[list[int]],
        texts: list[str],
    ) -> None:
        """Write the templates of the lines of one root."""
        # Which places are below the root is read off its first line, for all lines.
        below = [place for place, count in enumerate(frequencies[members[0]]) if count != root[0]]
        variable: set[str] = set()
        for place in below:
            found = {lines[line][place] for line in members}
            if len(found) >= self.threshold:
                variable |= found
        for line in members:
            # A variable word is one wherever it stands in the line, as in the author's program; the
            # words above the root that vary are among them.
            texts[line] = " ".join(
                WILDCARD if _is_variable(word, variable) else word for word in lines[line]
            )


def _root(frequencies: Sequence[int]) -> _Combination:
    """Return the frequency that most words share; of several the one that is met first."""
    return max(Counter(frequencies).items(), key=lambda item: item[1])


def _is_variable(word: str, variable: set[str]) -> bool:
    digits = sum(letter.isdigit() for letter in word)
    mostly = digits > 0 and digits / len(word) >= _DIGIT_SHARE
    return word in variable or WILDCARD in word or mostly

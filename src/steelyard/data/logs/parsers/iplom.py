"""IPLoM: lines are split by length, a place of few words, and words that go together."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from steelyard.data.logs.parsers.parsed import WILDCARD, ParsedLines, numbered

__all__ = ["IplomParser"]

_SEPARATORS = re.compile(r"[\s=:,]")
_Words = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class IplomParser:
    """IPLoM as the logparser benchmark runs it, for comparison.

    Attributes:
        goodness: share of places of one word from which on lines are not split further (CT).
        lower: share of distinct words up to which the side of many words is taken for constants.
        masks: expressions of what is left out of lines.

    Source: Makanju et al. 2009 (KDD), steps 1 to 4, without a least support of partitions, as in
    the logparser benchmark (arXiv 1811.03509).
    """

    goodness: float = 0.35
    lower: float = 0.25
    masks: Sequence[re.Pattern[str]] = ()

    def parse(self, contents: Sequence[str]) -> ParsedLines:
        """Return the template of each line.

        Args:
            contents: lines without their headers.

        Returns:
            Groups of lines with one template text.
        """
        lines = [self._words(content) for content in contents]
        by_length: dict[int, list[int]] = {}
        for line, words in enumerate(lines):
            by_length.setdefault(len(words), []).append(line)
        texts = [""] * len(lines)
        for members in by_length.values():
            for part, was_split in self._by_position(members, lines):
                for last in self._by_bijection(part, lines, was_split=was_split):
                    columns = [set(at) for at in zip(*(lines[line] for line in last), strict=True)]
                    text = " ".join(min(at) if len(at) == 1 else WILDCARD for at in columns)
                    for line in last:
                        texts[line] = text
        return numbered(texts, texts)

    def _words(self, content: str) -> _Words:
        for mask in self.masks:
            content = mask.sub("", content)
        return tuple(filter(None, _SEPARATORS.split(content))) or (" ",)

    def _by_position(self, members: list[int], lines: list[_Words]) -> list[tuple[list[int], bool]]:
        """Split lines of one length at the place of fewest words, and say whether they were."""
        columns = [
            {lines[line][place] for line in members} for place in range(len(lines[members[0]]))
        ]
        place = min(range(len(columns)), key=lambda at: len(columns[at]))
        if len(columns[place]) == 1:
            return [(members, False)]
        parts: dict[str, list[int]] = {}
        for line in members:
            parts.setdefault(lines[line][place], []).append(line)
        return [(part, True) for part in parts.values()]

    def _by_bijection(
        self, members: list[int], lines: list[_Words], *, was_split: bool
    ) -> list[list[int]]:
        """Split lines by the words at two places that go together."""
        columns = [
            {lines[line][place] for line in members} for place in range(len(lines[members[0]]))
        ]
        pair = self._places(columns, was_split=was_split)
        if pair is None:
            return [members]
        words = [(lines[line][pair[0]], lines[line][pair[1]]) for line in members]
        keys = self._keys(words, was_split=was_split)
        parts: dict[tuple[int, str], list[int]] = {}
        for line, key in zip(members, keys, strict=True):
            parts.setdefault(key, []).append(line)
        return list(parts.values())

    def _places(self, columns: list[set[str]], *, was_split: bool) -> tuple[int, int] | None:
        """Return the two places whose words are compared, None where lines are alike enough."""
        sizes = [len(column) for column in columns]
        if len(sizes) < 2:
            return None
        if len(sizes) == 2:
            return 0, 1
        if sizes.count(1) / len(sizes) >= self.goodness:
            return None
        often = Counter(sizes)
        if was_split:
            # The number of words that most places have, one word left aside; one place is no pair.
            varying = {size: count for size, count in often.items() if size > 1}
            size = max(varying, key=lambda size: varying[size], default=0)
            at = [place for place, found in enumerate(sizes) if found == size]
            return (at[0], at[1]) if len(at) > 1 else None
        fewest = sorted(set(often.values()))
        if len(fewest) < 2:
            return None
        first, second = (
            next(place for place, size in enumerate(sizes) if often[size] == count)
            for count in fewest[:2]
        )
        return first, second

    def _keys(self, words: list[tuple[str, str]], *, was_split: bool) -> list[tuple[int, str]]:
        """Return the part of each line by its two words."""
        right: defaultdict[str, set[str]] = defaultdict(set)
        left: defaultdict[str, set[str]] = defaultdict(set)
        for first, second in words:
            right[first].add(second)
            left[second].add(first)
        single = {word for word in right if all(len(left[other]) == 1 for other in right[word])}
        joined = {word for word in left if all(len(right[other]) == 1 for other in left[word])}
        met_left = Counter(first for first, _ in words)
        met_right = Counter(second for _, second in words)
        # Words in no such relation: they stay together in lines that were split before.
        many = [pair for pair in words if pair[0] not in single]
        many_left = {first for first, _ in many}
        many_right = {second for _, second in many if second not in joined}
        keys: list[tuple[int, str]] = []
        for first, second in words:
            if first in single:
                is_variable = len(right[first]) > 1 and not self._is_constant(
                    len(right[first]), met_left[first]
                )
                one_to_one = len(right[first]) == 1
                keys.append((0, first) if one_to_one or is_variable else (1, second))
            elif second in joined:
                constant = self._is_constant(len(left[second]), met_right[second])
                keys.append((0, first) if constant else (1, second))
            elif was_split:
                keys.append((2, ""))
            else:
                keys.append((0, first) if len(many_left) < len(many_right) else (1, second))
        return keys

    def _is_constant(self, distinct: int, lines: int) -> bool:
        """Return whether the side of many words holds constants, which split lines."""
        return distinct / lines <= self.lower

"""AEL: lines of one number of words and of variables are one bin, whose alike events are merged."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from steelyard.data.logs.parsers.parsed import WILDCARD, ParsedLines, masked, numbered

__all__ = ["AelParser"]


@dataclass(frozen=True, kw_only=True)
class AelParser:
    """AEL as the logparser benchmark runs it, for comparison.

    Attributes:
        merge_share: largest share of words in which two events differ that are merged.
        min_events: events of a bin above which any are merged.
        masks: expressions of variables.

    Source: Jiang et al. 2008 (QSIC), steps 1 to 4, with merging as in the logparser benchmark
    (arXiv 1811.03509).
    """

    merge_share: float = 0.4
    min_events: int = 2
    masks: Sequence[re.Pattern[str]] = ()

    def parse(self, contents: Sequence[str]) -> ParsedLines:
        """Return the template of each line.

        Args:
            contents: lines without their headers.

        Returns:
            Groups of lines with one template text.
        """
        lines = [masked(content, self.masks) for content in contents]
        bins: dict[tuple[int, int], dict[str, None]] = {}
        for line in lines:
            words = line.split()
            bins.setdefault((len(words), words.count(WILDCARD)), {})[line] = None
        texts: dict[str, str] = {}
        for events in bins.values():
            self._reconcile(list(events), texts)
        found = [texts[line] for line in lines]
        return numbered(found, found)

    def _reconcile(self, events: list[str], texts: dict[str, str]) -> None:
        """Merge the events of a bin, the first with all that are like it, then the next."""
        if len(events) <= self.min_events:
            texts |= {event: event for event in events}
            return
        left = events
        while left:
            first = left[0].split()
            alike = [event for event in left[1:] if self._is_alike(first, event.split())]
            merged = first
            for event in alike:
                pairs = zip(merged, event.split(), strict=True)
                merged = [ours if ours == other else WILDCARD for ours, other in pairs]
            # An event that nothing joins keeps its blanks.
            text = " ".join(merged) if alike else left[0]
            texts |= dict.fromkeys((left[0], *alike), text)
            taken = set(alike)
            left = [event for event in left[1:] if event not in taken]

    def _is_alike(self, words: list[str], others: list[str]) -> bool:
        differ = sum(word != other for word, other in zip(words, others, strict=True))
        return 0 < differ <= self.merge_share * len(words)

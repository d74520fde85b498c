"""Texts cut into passages that keep their lines."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from steelyard.retrieve.corpus.files import TextPart

__all__ = ["LinedPassage", "cut_lines"]

_HEADING = re.compile(r"#{1,6} |(class|def|async def|function|fn|func|impl|struct) ")
"""Beginnings of lines that open a section of prose or of a program."""


class LinedPassage(NamedTuple):
    """A passage with the lines it stands on, from 1; of a table, the row twice."""

    text: str
    first_line: int
    last_line: int


def cut_lines(part: TextPart, words: int) -> Iterator[LinedPassage]:
    """Cut a text at headings and blank lines where that leaves passages of some length.

    Lines stay whole and keep their breaks, so that a place in a passage is a place in the file; a
    line of too many words is cut between words.

    Args:
        part: the text.
        words: most words of a passage.

    Yields:
        Passages in order; none of a text without words.
    """
    kept: list[str] = []
    first, count = part.first_line, 0
    for number, line in enumerate(part.lines, start=part.first_line):
        size = len(line.split())
        is_break = not size or _HEADING.match(line.lstrip()) is not None
        # Below half the length, a short paragraph is joined with the next: single lines say little.
        if kept and (count + size > words or (is_break and 2 * count >= words)):
            yield from _passage(kept, first, number - 1, part)
            kept, count = [], 0
        if size > words:
            yield from _long_line(line, number, words, part)
            continue
        if size or kept:
            first = first if kept else number
            kept.append(line.rstrip())
            count += size
    yield from _passage(kept, first, part.first_line + len(part.lines) - 1, part)


def _passage(kept: list[str], first: int, last: int, part: TextPart) -> Iterator[LinedPassage]:
    """Yield lines as a passage, without blank ones at the end."""
    while kept and not kept[-1]:
        kept.pop()
    if not kept:
        return
    text = "\n".join(kept)
    if part.is_row:
        yield LinedPassage(text, part.first_line, part.first_line)
    else:
        yield LinedPassage(text, first, min(last, first + len(kept) - 1))


def _long_line(line: str, number: int, words: int, part: TextPart) -> Iterator[LinedPassage]:
    """Yield the passages of one long line."""
    found = line.split()
    place = part.first_line if part.is_row else number
    for at in range(0, len(found), words):
        yield LinedPassage(" ".join(found[at : at + words]), place, place)

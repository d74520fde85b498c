"""What a parser returns: the group of each line and the text of each group."""

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["WILDCARD", "ParsedLines", "masked", "numbered"]

WILDCARD = "<*>"
"""What stands in a template for something that varies."""


@dataclass(frozen=True)
class ParsedLines:
    """Lines by template.

    Attributes:
        groups: template of each line, an index into `templates`, [lines].
        templates: texts with `WILDCARD` for variables.
    """

    groups: NDArray[np.int64]
    templates: tuple[str, ...]


def masked(line: str, masks: Sequence[re.Pattern[str]]) -> str:
    """Return a line with what each expression matches as `WILDCARD`, one after the other."""
    for mask in masks:
        line = mask.sub(WILDCARD, line)
    return line


def numbered(keys: Sequence[Hashable], texts: Sequence[str]) -> ParsedLines:
    """Return lines grouped by a key.

    Args:
        keys: keys of each line, [lines].
        texts: template of each line, [lines]; equal for lines of one key.

    Returns:
        Groups in the order in which they are first met.
    """
    places: dict[Hashable, int] = {}
    templates: list[str] = []
    groups = np.empty(len(keys), np.int64)
    for line, (key, text) in enumerate(zip(keys, texts, strict=True)):
        if key not in places:
            places[key] = len(templates)
            templates.append(text)
        groups[line] = places[key]
    return ParsedLines(groups, tuple(templates))

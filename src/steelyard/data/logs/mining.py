"""Templates from shapes: which words of lines that are built alike are variables.

It is a function of the set of shapes: neither the order of lines nor the way they were split among
workers changes a template. Shapes of one length and one first word are split where few plain words
alternate; where many do, or words that hold numbers or dots, a variable stands.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from steelyard.data.logs.parsers.parsed import WILDCARD
from steelyard.data.logs.shapes import MARKS, Shape

__all__ = ["MinerOptions", "mine", "template_text"]

_PLAIN = re.compile(r"[A-Za-z][A-Za-z'\-*]*[.!]*")
_CAPITALS = re.compile(r"[A-Z][A-Z_\-]+")
_SWITCH = frozenset(("true", "false"))


@dataclass(frozen=True, kw_only=True)
class MinerOptions:
    """How many words at one place make it a variable. One setting is meant for all systems.

    Attributes:
        words: plain words.
        values: plain words after "=".
        states: words of capitals, such as LEADING and LOOKING.
        keys: words before "=".
        constant_share: least share of words that are the same in all lines of a template with two
            variables or more that plain words stand for.
    """

    words: int = 3
    values: int = 4
    states: int = 6
    keys: int = 20
    constant_share: float = 0.5


def mine(shapes: Iterable[Shape], options: MinerOptions | None = None) -> dict[Shape, Shape]:
    """Return the template of each shape.

    Args:
        shapes: shapes of lines, each once, in any order.
        options: what makes a variable.

    Returns:
        Words and wildcards by shape, blanks in front as in the first shape of the template in the
        order of text; shapes of one template have equal ones.
    """
    chosen = options or MinerOptions()
    by_words: dict[Shape, list[Shape]] = {}
    for shape in sorted(shapes):
        by_words.setdefault(tuple(token.lstrip() for token in shape), []).append(shape)
    buckets: dict[tuple[int, Shape], list[Shape]] = {}
    for words in sorted(by_words):
        start = 2 if words[:1] == (WILDCARD,) else 1
        buckets.setdefault((len(words), words[:start]), []).append(words)
    found: dict[Shape, Shape] = {}
    for members in buckets.values():
        _split(members, chosen, found)
    first: dict[Shape, Shape] = {}
    named: dict[Shape, Shape] = {}
    for words, shapes_of_words in by_words.items():
        key = _merged(found[words])
        shown = first.setdefault(key, _with_blanks(found[words], shapes_of_words[0]))
        named |= dict.fromkeys(shapes_of_words, shown)
    return named


def template_text(template: Shape) -> str:
    """Return a template as text, with blanks where lines have them."""
    text = "".join(template)
    return re.sub(r"<\*>(?:[:,]? ?<\*>)+", WILDCARD, text)


def _with_blanks(template: Shape, shape: Shape) -> Shape:
    return tuple(
        (" " if token.startswith(" ") else "") + word
        for word, token in zip(template, shape, strict=True)
    )


def _merged(template: Shape) -> Shape:
    """Return a template with each list of wildcards as one: lists are of many lengths."""
    found: list[str] = []
    for word in template:
        if word == WILDCARD and found[-1:] == [WILDCARD]:
            continue
        if word == WILDCARD and found[-2:-1] == [WILDCARD] and found[-1] in (":", ","):
            found.pop()
            continue
        found.append(word)
    return tuple(found)


def _split(members: Sequence[Shape], options: MinerOptions, found: dict[Shape, Shape]) -> None:
    """Split members where words alternate, and write the template of each."""
    # A list in place of recursion: long lines would go deeper than Python allows.
    waiting = [members]
    while waiting:
        group = waiting.pop()
        words = [set(column) for column in zip(*group, strict=True)]
        varying = [place for place, at in enumerate(words) if len(at) > 1]
        variable = {place for place in varying if _is_variable(words, place, options)}
        branches = [place for place in varying if place not in variable]
        if not branches:
            branches = _doubtful(words, variable, options)
        if not branches:
            for shape in group:
                found[shape] = tuple(
                    WILDCARD if place in variable else word for place, word in enumerate(shape)
                )
            continue
        best = min(branches, key=lambda place: (len(words[place]), place))
        parts: dict[str, list[Shape]] = {}
        for shape in group:
            parts.setdefault(shape[best], []).append(shape)
        waiting += parts.values()


def _is_variable(words: Sequence[set[str]], place: int, options: MinerOptions) -> bool:
    """Return whether the words at a place are values of a variable."""
    at = words[place]
    before = words[place - 1] if place else set()
    after = words[place + 1] if place + 1 < len(words) else set()
    if after == {"="}:
        return len(at) >= options.keys
    if at <= _SWITCH:
        return False
    if all(_CAPITALS.fullmatch(word) for word in at):
        return len(at) >= options.states
    if any(word not in MARKS and not _PLAIN.fullmatch(word) for word in at):
        return True
    return len(at) >= (options.values if before == {"="} else options.words)


def _doubtful(words: Sequence[set[str]], variable: set[int], options: MinerOptions) -> list[int]:
    """Return places of plain words where too little else is the same for one template.

    Lines such as "failed to open file" and "failed to start module" have a length and a first word
    in common and not much more.
    """
    constant = sum(len(at) == 1 and not at <= MARKS and at != {WILDCARD} for at in words)
    plain = [
        place
        for place in sorted(variable)
        if 2 * sum(_PLAIN.fullmatch(word) is not None for word in words[place]) > len(words[place])
    ]
    if len(plain) > 1 and constant < options.constant_share * (constant + len(plain)):
        return plain
    return []

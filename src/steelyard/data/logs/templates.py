"""Templates of a log: which one a line has, and its parameters; kept in a pack."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from steelyard.data.arrow import compute
from steelyard.data.logs.counting import ShapeCounts, ShapeReader
from steelyard.data.logs.mining import MinerOptions, mine, template_text
from steelyard.data.logs.parsers.parsed import WILDCARD, ParsedLines
from steelyard.data.logs.shapes import Shape, shape_of
from steelyard.data.pack import Pack, write_pack
from steelyard.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["NO_TEMPLATE", "TemplateSet", "parse_contents"]

NO_TEMPLATE = -1
"""Number of a line that no template has."""
_FIRST_WORDS = 1


class TemplateSet:
    """The templates of some lines, in the order of their texts.

    Attributes:
        texts: templates, `<*>` where a variable stands.
        counts: lines that they were made of, [templates]; 0 for a seed that no line has.
        state: the shapes they were made of, so that sets of several parts can be merged.
        seeds: texts that were given.
    """

    def __init__(
        self, state: ShapeCounts, seeds: Sequence[str] = (), options: MinerOptions | None = None
    ) -> None:
        """Make the templates of shapes.

        Args:
            state: shapes with their counts.
            seeds: texts of templates that are known, `<*>` where a variable stands. Lines that one
                fits have it, whatever others there are; of two that fit the first by its text.
            options: what makes a variable.

        Raises:
            DataError: a seed is empty.
        """
        if "" in [seed.strip() for seed in seeds]:
            raise DataError("a seed template is empty", hint="one text a line, such as 'up <*> s'")
        self.state, self.seeds = state, tuple(sorted(set(seeds)))
        self._options = options
        self._reader = ShapeReader()
        self._seeds = [(_pattern(seed), seed) for seed in self.seeds]
        texts = self._mined(state.kept)
        self.texts = tuple(sorted({*texts.values(), *self.seeds}))
        numbers = {text: number for number, text in enumerate(self.texts)}
        self._numbers = {shape: numbers[text] for shape, text in texts.items()}
        self.counts = np.zeros(len(self.texts), np.int64)
        for shape, number in self._numbers.items():
            self.counts[number] += state.counts[shape]

    def _mined(self, shapes: Mapping[Shape, int]) -> dict[Shape, str]:
        """Return the text of the template of each shape."""
        texts: dict[Shape, str] = {}
        free: list[Shape] = []
        for shape in shapes:
            words = tuple(token.lstrip() for token in shape)
            seed = next((text for pattern, text in self._seeds if _fits(pattern, words)), None)
            if seed is None:
                free.append(shape)
            else:
                texts[shape] = seed
        mined = mine(free, self._options)
        return texts | {shape: template_text(template) for shape, template in mined.items()}

    def assign(self, column: "pa.Array") -> NDArray[np.int32]:
        """Return the template of each line.

        Args:
            column: Arrow text, [lines]; missing values have no template.

        Returns:
            Numbers, `NO_TEMPLATE` where none fits, [lines]. Templates do not change.
        """
        found = np.full(len(column), NO_TEMPLATE, np.int32)
        is_there = np.asarray(compute().is_valid(column))
        present = column.drop_null()
        if len(present):
            shapes, places, _ = self._reader.read(present)
            numbers = np.array([self._number(shape) for shape in shapes], np.int32)
            found[is_there] = numbers[places]
        return found

    def _number(self, shape: Shape) -> int:
        """Return the template of a shape; one that was never met takes the first that fits."""
        number = self._numbers.get(shape)
        if number is None:
            words = tuple(token.lstrip() for token in shape)
            key = len(words), words[:_FIRST_WORDS]
            wild = len(words), (WILDCARD,)
            near = [*self._patterns.get(key, ()), *self._patterns.get(wild, ())]
            number = next((at for pattern, at in near if _fits(pattern, words)), NO_TEMPLATE)
            self._numbers[shape] = number
        return number

    @cached_property
    def _patterns(self) -> dict[tuple[int, Shape], list[tuple[Shape, int]]]:
        """Words and number of each template, by length and first word."""
        found: dict[tuple[int, Shape], list[tuple[Shape, int]]] = {}
        for number, text in enumerate(self.texts):
            pattern = _pattern(text)
            found.setdefault((len(pattern), pattern[:_FIRST_WORDS]), []).append((pattern, number))
        return found

    def parameters(self, line: str, number: int) -> tuple[str, ...] | None:
        """Return what stands in a line where its template has wildcards.

        Args:
            line: without its header.
            number: number of its template.

        Returns:
            Texts in their order; None where the line does not read as its template, which happens
            where only its blanks or the number of values in a list differ.
        """
        found = self._expressions[number].fullmatch(line)
        return found.groups() if found else None

    @cached_property
    def _expressions(self) -> list[re.Pattern[str]]:
        return [expression_of(text) for text in self.texts]

    def save(self, path: Path) -> None:
        """Write the templates and what they were made of as a pack.

        Args:
            path: the file.
        """
        seeds = json.dumps(self.seeds, ensure_ascii=False).encode()
        write_pack(path, self.state.sections() | {"seeds": np.frombuffer(seeds, np.uint8)})

    @classmethod
    def load(cls, path: Path, options: MinerOptions | None = None) -> "TemplateSet":
        """Read templates.

        Args:
            path: what `save` wrote.
            options: what makes a variable.

        Returns:
            The templates; they can be merged and grown.

        Raises:
            DataError: it cannot be read, or is no pack of templates.
        """
        pack = Pack.open(path)
        sections = pack.sections()
        if missing := {"shapes", "counts", "lines", "seeds"} - sections.keys():
            raise DataError(f"{path} is no pack of templates: it lacks {sorted(missing)[0]!r}")
        return cls(ShapeCounts.of(sections), json.loads(sections["seeds"].tobytes()), options)

    def merged(self, other: "TemplateSet") -> "TemplateSet":
        """Return the templates of the lines of both, the same whichever of them comes first."""
        state = ShapeCounts.of(self.state.sections())
        state.merge(other.state)
        return TemplateSet(state, [*self.seeds, *other.seeds], self._options)


def expression_of(text: str) -> re.Pattern[str]:
    """Return what lines of a template match, with a group for each wildcard.

    Each variable ends at the first place where the text behind it stands: there is no way back, so
    that a long line costs no more than its length.
    """
    parts = [re.escape(part) for part in text.split(WILDCARD)]
    inner = [f"(?>(.*?){part})" if part else "(.*)" for part in parts[1:]]
    return re.compile(parts[0] + "".join(inner), re.DOTALL)


def _pattern(text: str) -> Shape:
    """Return the words of a template's text."""
    return tuple(token.lstrip() for token in shape_of(text.replace(WILDCARD, "0")))


def _fits(pattern: Shape, words: Shape) -> bool:
    return len(pattern) == len(words) and all(
        ours in (WILDCARD, word) for ours, word in zip(pattern, words, strict=True)
    )


def parse_contents(
    contents: Sequence[str], seeds: Sequence[str] = (), options: MinerOptions | None = None
) -> ParsedLines:
    """Parse lines with the templates that they have themselves.

    Args:
        contents: lines without their headers.
        seeds: texts of templates that are known.
        options: what makes a variable; one setting is meant for all systems.

    Returns:
        Groups and their templates, in the order of their texts.
    """
    import pyarrow as pa

    column = pa.array(list(contents), pa.string())
    state = ShapeCounts()
    state.update(column)
    templates = TemplateSet(state, seeds, options)
    return ParsedLines(templates.assign(column).astype(np.int64), templates.texts)

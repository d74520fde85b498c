"""Frames of lines: what stands around their variables, those of the header too."""

from collections.abc import Iterator, Sequence

from steelyard.data.logs.counting import ShapeCounts
from steelyard.data.logs.formats import LogFormat
from steelyard.data.logs.parsers.parsed import WILDCARD
from steelyard.data.logs.templates import NO_TEMPLATE, TemplateSet

__all__ = ["LineFramer"]


class LineFramer:
    """Takes lines apart into frames and variables.

    Attributes:
        format: format of the headers.
        frames: texts around the variables of a line, those of its header too, [frames].
        templates: text of the template of each frame, [frames].
    """

    def __init__(self, format: LogFormat) -> None:
        """Start without frames.

        Args:
            format: format of the headers.
        """
        self.format = format
        self.frames: list[list[str]] = []
        self.templates: list[str] = []
        self._numbers: dict[tuple[str, ...], int] = {}

    def cut(self, texts: Sequence[str]) -> Iterator[tuple[int, list[str]] | None]:
        """Take lines apart.

        Args:
            texts: lines; bytes that are no UTF-8 as surrogates.

        Yields:
            The frame of each line, an index into `frames`, and its variables; None for a line
            without a header, or that is no text.
        """
        import pyarrow as pa

        # Ends of lines as Windows writes them belong to the frame.
        ends = ["\r" if text.endswith("\r") else "" for text in texts]
        bare = [text.removesuffix("\r") for text in texts]
        heads = [self._head(text) if _is_text(text) else None for text in bare]
        contents = pa.array(
            [head and text[head[2] :] for head, text in zip(heads, bare, strict=True)], pa.string()
        )
        state = ShapeCounts()
        state.update(contents)
        templates = TemplateSet(state)
        numbers = templates.assign(contents).tolist()
        for text, end, head, number in zip(bare, ends, heads, numbers, strict=True):
            if head is None or number == NO_TEMPLATE:
                yield None
                continue
            content = text[head[2] :]
            variables = templates.parameters(content, number)
            shown = templates.texts[number]
            if variables is None:
                # Only blanks or the length of a list differ: the content is one variable.
                variables, shown = (content,), WILDCARD
            frame = self._number(head[0], shown, end, templates.texts[number])
            yield frame, [*head[1], *variables]

    def _head(self, text: str) -> tuple[list[str], list[str], int] | None:
        """Return the texts between the fields of a header, the fields, and where it ends."""
        found = self.format.regex.match(text)
        if found is None:
            return None
        frame, fields, place = [], [], 0
        for name in self.format.fields[:-1]:
            start, end = found.span(name)
            if start < 0:
                continue
            frame.append(text[place:start])
            fields.append(text[start:end])
            place = end
        start = found.start("Content")
        frame.append(text[place:start])
        return frame, fields, start

    def _number(self, head: list[str], shown: str, end: str, template: str) -> int:
        first, *rest = (shown + end).split(WILDCARD)
        frame = (*head[:-1], head[-1] + first, *rest)
        key = (*frame, template)
        if key not in self._numbers:
            self._numbers[key] = len(self.frames)
            self.frames.append(list(frame))
            self.templates.append(template)
        return self._numbers[key]


def _is_text(text: str) -> bool:
    """Return whether a line was valid UTF-8, which Arrow asks for."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)

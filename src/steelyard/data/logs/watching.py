"""Follows a log that grows, through rotation and truncation."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from steelyard.data.logs.formats import LogFormat, guess_format
from steelyard.data.logs.reading import decoded
from steelyard.data.logs.templates import TemplateSet

__all__ = ["LogTail", "NewLines"]

_MOST_BYTES = 1 << 22


class LogTail:
    """The lines that are added to a log, by whichever file has its name.

    A log is rotated by another file that takes its name, or by being cut to nothing. What was
    written to the old file before that is read first.

    Attributes:
        rotations: how often either happened.
    """

    def __init__(self, path: Path, *, from_start: bool = False) -> None:
        """Open the log where there is one; one that comes later is read from its start.

        Args:
            path: the log.
            from_start: read what is there already, too.
        """
        self._path = path
        self._rest = b""
        self.rotations = 0
        self._file = self._opened()
        if self._file is not None and not from_start:
            self._file.seek(0, os.SEEK_END)

    def _opened(self) -> BinaryIO | None:
        try:
            return self._path.open("rb")
        except FileNotFoundError:
            return None

    def poll(self) -> list[bytes]:
        """Return the lines that were finished since the last call.

        Returns:
            Lines without their breaks.

        Raises:
            OSError: the log cannot be read.
        """
        lines = self._more()
        if self._is_replaced():
            # The writer may have added to the old file between the reading and the renaming.
            lines += self._more()
            if self._rest:
                lines.append(self._rest)
            self.close()
            self._rest = b""
            self._file = self._opened()
            self.rotations += 1
            lines += self._more()
        elif self._file is None:
            self._file = self._opened()
            lines += self._more()
        return lines

    def _more(self) -> list[bytes]:
        if self._file is None:
            return []
        if os.fstat(self._file.fileno()).st_size < self._file.tell():
            # Cut to nothing and written again, as "copytruncate" of logrotate does.
            self._file.seek(0)
            self._rest = b""
            self.rotations += 1
        lines: list[bytes] = []
        while block := self._file.read(_MOST_BYTES):
            *done, self._rest = (self._rest + block).split(b"\n")
            lines += done
        return lines

    def _is_replaced(self) -> bool:
        """Return whether another file has the log's name."""
        if self._file is None:
            return False
        try:
            named = self._path.stat()
        except FileNotFoundError:
            # Between two renames there is none; the old one is read until there is.
            return False
        held = os.fstat(self._file.fileno())
        return (named.st_dev, named.st_ino) != (held.st_dev, held.st_ino)

    def follow(
        self, pause_s: float = 0.5, until: Callable[[], bool] = lambda: False
    ) -> Iterator[list[bytes]]:
        """Yield new lines whenever there are some.

        Args:
            pause_s: time between two looks.
            until: is asked between two looks whether to end.

        Yields:
            Lines that were finished, at least one.
        """
        while True:
            ends = until()
            if lines := self.poll():
                yield lines
            if ends:
                return
            time.sleep(pause_s)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class NewLines:
    """Tells lines that no known template has.

    Attributes:
        lines: number of lines that were seen.
        unknown_lines: number of lines that no template took.
    """

    def __init__(self, templates: TemplateSet, format: str | None = None) -> None:
        """Take what is known.

        Args:
            templates: templates of earlier lines.
            format: name or pattern of the header; None finds the one that the first lines fit.
        """
        self._templates = templates
        self._format = None if format is None else LogFormat.of(format)
        self.lines = self.unknown_lines = 0

    def unknown(self, lines: Sequence[bytes]) -> list[str]:
        """Return the lines that no template has; those that go on one before are passed over.

        Args:
            lines: without their breaks.

        Returns:
            Whole lines.
        """
        import pyarrow as pa

        texts = [decoded(line)[0] for line in lines]
        if self._format is None:
            self._format = LogFormat.of(guess_format(texts))
        found = [self._format.regex.match(text.rstrip("\r")) for text in texts]
        contents = [match["Content"] if match else None for match in found]
        numbers = self._templates.assign(pa.array(contents, pa.string()))
        told = [
            text
            for text, number in zip(texts, numbers.tolist(), strict=True)
            if number < 0 and text[:1] not in ("", " ", "\t")
        ]
        self.lines += len(texts)
        self.unknown_lines += len(told)
        return told

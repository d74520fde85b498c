"""A `Report`: what a command has to say, as a terminal page, as JSON, or as one HTML file.

It is plain data, so that the same object can be stored, sent, and drawn anywhere.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from steelyard.errors import DataError
from steelyard.files import write_bytes
from steelyard.runs.blocks import (
    Block,
    Cell,
    Chart,
    Checks,
    Column,
    Document,
    Facts,
    Section,
    Table,
    Text,
    fact,
)

if TYPE_CHECKING:
    from rich.console import Console
from steelyard.runs.wording import check_values

__all__ = [
    "Block",
    "Cell",
    "Chart",
    "Checks",
    "Column",
    "Facts",
    "Report",
    "Section",
    "Table",
    "Text",
    "fact",
]


class Report(Document, frozen=True):
    """A document that prints itself, and that is kept as JSON or as one HTML page."""

    def print(self, console: "Console | None" = None) -> None:
        """Print to the terminal; charts are named but not drawn.

        Args:
            console: where to; None for standard output.
        """
        from steelyard.runs.console import render_console

        render_console(self, console)

    def to_json(self) -> str:
        """Return the report as indented JSON; checks also carry their error and verdict."""
        plain = msgspec.to_builtins(self)
        for section, source in zip(plain["sections"], self.sections, strict=True):
            for block, original in zip(section["blocks"], source.blocks, strict=True):
                if isinstance(original, Checks):
                    for entry, check in zip(block["checks"], original.checks, strict=True):
                        entry |= check_values(check)
        return msgspec.json.format(msgspec.json.encode(plain), indent=2).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> "Report":
        """Read back what `to_json` returned.

        Args:
            text: the JSON.

        Returns:
            An equal report.

        Raises:
            DataError: the text is not the JSON of a report.
        """
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise DataError(
                f"not a report: {error}", hint="give a file that `--json` or `to_json` wrote"
            ) from error

    def to_html(self) -> str:
        """Return one HTML page that holds its style, charts and scripts, and fetches nothing."""
        from steelyard.runs.html import render_html

        return render_html(self)

    def write_html(self, path: Path) -> None:
        """Write the HTML page atomically.

        Args:
            path: the file; its folder is made when missing.

        Raises:
            CapacityError: the disk is full; `path` is left as it was.
        """
        write_bytes(Path(path), self.to_html().encode())

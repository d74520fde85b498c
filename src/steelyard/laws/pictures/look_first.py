"""What a reader has to know before an answer, as the first section of its page."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from steelyard.runs.report import Section, Text

if TYPE_CHECKING:
    from steelyard.laws.tables.trouble import Trouble

__all__ = ["look_first"]


def look_first(trouble: "Sequence[Trouble]") -> list[Section]:
    """Return a section with one line per finding; none where nothing was found."""
    lines = "\n".join(f"- {item.sentence}; {item.advice}." for item in dict.fromkeys(trouble))
    return [Section("Look at this first", [Text(lines)])] if lines else []

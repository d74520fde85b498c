"""Rows under heads as text: no word is ever cut or broken, whatever the width."""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

__all__ = ["GridColumn", "grid"]

_GAP = "  "
_NUMBER_AND_UNIT = re.compile(r"(\d[kMBT]?) (?=[A-Za-z%µ])")
_FIXED = "\N{NO-BREAK SPACE}"
"""Stands between a number and its unit, where no line may break."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GridColumn:
    """A column of a grid.

    Attributes:
        head: its words; a grid whose heads are all empty has no head line.
        right: whether cells are set to the right.
        rank: columns of the highest rank leave first where the width is too small; 0 always stays.
        style: style of the cells, as rich names it.
    """

    head: str = ""
    right: bool = False
    rank: int = 0
    style: str = ""


def grid(columns: Sequence[GridColumn], rows: Sequence[Sequence[str]], width: int) -> Text:
    """Lay rows out under their heads.

    Cells wrap between words where the width asks for it. Columns of high rank are left out when the
    longest words alone need more than the width; where even those of rank 0 do, lines are longer
    than the width, because a name that is cut cannot be copied.

    Args:
        columns: the columns, left to right.
        rows: cells, as many as columns in each row; they hold no line breaks that matter.
        width: cells of the terminal.

    Returns:
        Lines without trailing blanks.
    """
    cells = [[column.head for column in columns], *map(list, rows)]
    cells = [[_NUMBER_AND_UNIT.sub(rf"\1{_FIXED}", cell) for cell in row] for row in cells]
    kept = _kept(columns, cells, width)
    columns = [columns[index] for index in kept]
    cells = [[row[index] for index in kept] for row in cells]
    widths = _widths(cells, width)
    out = Text(no_wrap=True, overflow="ignore")
    for number, row in enumerate(cells):
        if number or any(row):
            _add_row(out, columns, row, widths, is_head=not number)
    # Every row ends its own line, and whoever prints the grid ends the last one.
    out.right_crop(1)
    return out


def _longest_word(text: str) -> int:
    """Return the length of the longest word, 0 for none."""
    return max(map(len, re.split(r"[ \t\n]+", text)))


def _kept(columns: Sequence[GridColumn], cells: list[list[str]], width: int) -> list[int]:
    """Return the columns that stay: those of the highest rank leave until the words fit."""
    least = [max(_longest_word(row[index]) for row in cells) for index in range(len(columns))]
    kept = list(range(len(columns)))
    for rank in sorted({column.rank for column in columns if column.rank}, reverse=True):
        if sum(least[index] + len(_GAP) for index in kept) - len(_GAP) <= width:
            break
        kept = [index for index in kept if columns[index].rank < rank]
    return kept


def _widths(cells: list[list[str]], width: int) -> list[int]:
    """Share a width among columns: each has its longest word, and narrow wishes come first."""
    columns = list(zip(*cells, strict=True))
    wished = [max(map(len, column)) for column in columns]
    given = [max(map(_longest_word, column)) for column in columns]
    left = width - sum(given) - len(_GAP) * (len(columns) - 1)
    # Short columns are served in full first: what wraps then is prose, not figures.
    for index in sorted(range(len(columns)), key=lambda item: wished[item]):
        more = max(0, min(wished[index] - given[index], left))
        given[index] += more
        left -= more
    return given


def _add_row(
    out: Text, columns: Sequence[GridColumn], row: list[str], widths: list[int], *, is_head: bool
) -> None:
    """Append a row as lines, as many as its tallest cell has."""
    parts = [
        textwrap.wrap(cell, max(room, 1), break_long_words=False, break_on_hyphens=False) or [""]
        for cell, room in zip(row, widths, strict=True)
    ]
    for line in range(max(map(len, parts))):
        texts = [part[line] if line < len(part) else "" for part in parts]
        last = max((index for index, text in enumerate(texts) if text), default=0)
        for index in range(last + 1):
            column = columns[index]
            padded = texts[index].rjust(widths[index]) if column.right else texts[index]
            if index < last:
                padded = padded.ljust(widths[index]) + _GAP
            out.append(padded.replace(_FIXED, " "), style="dim" if is_head else column.style)
        out.append("\n")

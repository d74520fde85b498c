"""A Report on a terminal, through rich."""

import re

from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text as RichText

from steelyard.runs.blocks import Block, Chart, Checks, Document, Facts, Table, Text
from steelyard.runs.grid import GridColumn, grid
from steelyard.runs.screen import screen
from steelyard.runs.theme import PROVENANCE
from steelyard.runs.wording import (
    cell_text,
    chart_title,
    check_words,
    heading,
    right_aligned,
    summary_words,
)

__all__ = ["render_console"]

_INLINE = re.compile(r"\*\*(.+?)\*\*|\*(.+?)\*|`(.+?)`|\[([^\]]+)\]\((https?://[^)\s]+)\)")
_BAR_CELLS = 15
_WIDE = 120
_NARROW = 72
"""Below it the columns of checks would be cut: the least telling ones leave instead."""


def render_console(report: Document, console: Console | None = None) -> None:
    """Print a report.

    Args:
        report: what to print.
        console: where to; None for standard output.
    """
    console = console or screen()
    console.print()
    console.print(RichText(report.title, style="bold"))
    if report.subtitle:
        console.print(RichText(report.subtitle, style="dim"))
    console.print()
    for section in report.sections:
        if section.title:
            console.print(RichText(section.title, style="bold underline"))
        for block in section.blocks:
            # A name longer than the line is printed whole: cut, it could not be copied.
            console.print(_block(block, console.width), crop=False)
            console.print()


def _block(block: Block, width: int) -> RenderableType:
    """Choose the drawing of a block on a terminal `width` cells wide."""
    match block:
        case Text():
            return _prose(block.text)
        case Facts():
            return _facts(block)
        case Table():
            return _table(block, width)
        case Checks():
            if width < _NARROW:
                return _narrow_checks(block, width)
            return _checks(block, wide=width >= _WIDE)
        case Chart():
            title = chart_title(block.spec)[0] or block.caption or "untitled"
            return RichText(f"chart: {title} (drawn in the HTML report)", style="dim italic")


def _prose(text: str) -> RichText:
    """Turn light markdown into styled text."""
    out = RichText()
    position = 0
    for match in _INLINE.finditer(text):
        out.append(text[position : match.start()])
        bold, emphasis, code, words, address = match.groups()
        style = "bold" if bold else "italic" if emphasis else "cyan" if code else f"link {address}"
        out.append(bold or emphasis or code or words, style=style)
        position = match.end()
    out.append(text[position:])
    return out


def _facts(block: Facts) -> RichTable:
    """Draw facts as three columns: label, value, provenance."""
    grid = RichTable.grid(padding=(0, 2))
    for style in ("dim", "bold", ""):
        grid.add_column(style=style, justify="left")
    for label, value, provenance in block.facts:
        colour = PROVENANCE[provenance].terminal if provenance in PROVENANCE else "dim"
        grid.add_row(RichText(label), RichText(value), RichText(provenance, style=colour))
    return grid


def _table(block: Table, width: int) -> RenderableType:
    """Draw a table with numbers to the right."""
    columns = [
        GridColumn(head=heading(column), right=right, rank=column.rank)
        for column, right in zip(block.columns, right_aligned(block), strict=True)
    ]
    table = grid(columns, [[cell_text(cell) for cell in row] for row in block.rows], width)
    return Group(table, RichText(block.caption, style="dim italic")) if block.caption else table


def _checks(block: Checks, *, wide: bool) -> RenderableType:
    """Draw checks; a wide terminal also gets a bar of the interval with a dot where it fell."""
    table = RichTable(box=None, header_style="dim", padding=(0, 2 if wide else 1, 0, 0))
    table.add_column("quantity", no_wrap=True)
    for name in ("forecast", "80 % interval", "measured", "error"):
        table.add_column(name, justify="right", no_wrap=wide or name == "error")
    if wide:
        table.add_column("", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for check in block.checks:
        forecast, interval, measured, error, verdict = check_words(check)
        colour = "green" if check.covered else "red"
        bar = RichText(
            _interval_bar(check.forecast.low, check.forecast.high, check.measurement.value),
            style=colour,
        )
        cells = [
            check.forecast.quantity,
            forecast,
            interval,
            RichText(measured, style="bold"),
            error,
            *([bar] if wide else []),
        ]
        table.add_row(*cells, RichText(verdict, style=colour))
    return Group(table, RichText(summary_words(block.checks), style="dim italic"))


def _narrow_checks(block: Checks, width: int) -> RenderableType:
    """Draw checks without colours; interval, error and forecast leave where they find no room."""
    ranks = {"quantity": 0, "forecast": 1, "80 % interval": 3, "measured": 0, "error": 2}
    columns = [
        GridColumn(head=name, rank=rank, right=name != "quantity") for name, rank in ranks.items()
    ]
    rows = [[check.forecast.quantity, *check_words(check)] for check in block.checks]
    table = grid([*columns, GridColumn(head="verdict")], rows, width)
    return Group(table, RichText(summary_words(block.checks), style="dim italic"))


def _interval_bar(low: float, high: float, value: float) -> str:
    """Draw "  ├──●───┤  " in a fixed width; a value outside stands beyond the ends."""
    start = min(low, value)
    span = (max(high, value) - start) or 1.0

    def cell(point: float) -> int:
        return round((point - start) / span * (_BAR_CELLS - 1))

    cells = [" "] * _BAR_CELLS
    for index in range(cell(low), cell(high) + 1):
        cells[index] = "─"
    cells[cell(low)] = "├"
    cells[cell(high)] = "┤"
    cells[cell(value)] = "●"  # last, so that the dot shows where it falls on an end
    return "".join(cells)

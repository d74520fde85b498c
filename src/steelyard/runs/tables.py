"""Tables of an HTML report, and the table of checks.

On a phone each row becomes a card: every cell carries the words of its head, and the roles say that
it still is a table.
"""

from html import escape

from steelyard.quantity import Check, quantity
from steelyard.runs.blocks import Checks, Table
from steelyard.runs.drawing import interval_svg
from steelyard.runs.theme import PROVENANCE
from steelyard.runs.wording import (
    DASH,
    cell_text,
    check_words,
    heading,
    right_aligned,
    summary_words,
)

__all__ = ["badge_html", "checks_html", "table_html"]

_WIDE = 88
"""Characters from which on a table is wider than a tablet or a sheet of paper."""
_PAGE = 126
"""Characters from which on it is wider than the page at any width."""


def badge_html(provenance: str) -> str:
    """Mark a provenance; empty for none."""
    if not provenance:
        return ""
    title = PROVENANCE[provenance].meaning if provenance in PROVENANCE else ""
    return (
        f'<span class="badge p-{escape(provenance)}" '
        f'title="{escape(title)}">{escape(provenance)}</span>'
    )


def _least_width(block: Table, is_whole: list[bool]) -> int:
    """Count the characters of a table whose columns are as narrow as their longest words.

    In columns that are kept whole, such as numbers with their unit, a cell is one word.
    """
    total = 0
    for index, keeps in enumerate(is_whole):
        column = block.columns[index]
        cells = [cell_text(row[index]) for row in block.rows]
        pieces = cells if keeps else [word for cell in cells for word in cell.split()]
        pieces += [*column.name.split(), column.unit]
        total += 2 + max(map(len, pieces))
    return total


def table_html(block: Table, caption: str) -> str:
    """Draw a table with its caption below.

    Args:
        block: the table.
        caption: its caption as HTML; empty for none.

    Returns:
        A `<figure>` element.
    """
    right = right_aligned(block)
    kinds = [' class="num"' if flag else "" for flag in right]
    heads = "".join(
        f'<th scope="col" role="columnheader"{kind}>{escape(column.name)}'
        + (f' <span class="unit">{escape(column.unit)}</span>' if column.unit else "")
        + "</th>"
        for column, kind in zip(block.columns, kinds, strict=True)
    )
    labels = [f' data-label="{escape(heading(column))}"' for column in block.columns]
    rows = "".join(
        '<tr role="row">'
        + "".join(
            f'<td role="cell"{kind}{label}>{escape(cell_text(cell))}</td>'
            for cell, kind, label in zip(row, kinds, labels, strict=True)
        )
        + "</tr>"
        for row in block.rows
    )
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f'<figure class="table{_size(block, right)}">{_table(heads, rows)}{below}</figure>'


def _size(block: Table, right: list[bool]) -> str:
    """Return the class by which the style decides where the words of a table may break."""
    if len(block.columns) == 2:
        return " pair"
    least = _least_width(block, [False] * len(right))
    if least > _WIDE:
        return " widest beyond" if least > _PAGE else " widest"
    return " wide" if _least_width(block, right) > _WIDE else ""


def _table(heads: str, rows: str) -> str:
    """Put heads and rows into a table that stays one when the style lays it out otherwise."""
    return (
        f'<table role="table"><thead role="rowgroup"><tr role="row">{heads}</tr></thead>'
        f'<tbody role="rowgroup">{rows}</tbody></table>'
    )


def checks_html(block: Checks) -> str:
    """Draw the forecasts beside what was measured, how many held first.

    Args:
        block: the checks.

    Returns:
        A `<figure>` element.
    """
    if not block.checks:
        return f'<figure class="table checks"><figcaption>{DASH}</figcaption></figure>'
    names = (
        ("", "Quantity", ""),
        ("num", "Forecast", "80 % interval"),
        ("num", "Measured", "error of the forecast"),
        ("bar", "Where it fell", ""),
        ("end", "Verdict", ""),
    )
    heads = "".join(
        f'<th scope="col" role="columnheader" class="{kind}">{name}'
        + (f"<small>{below}</small>" if below else "")
        + "</th>"
        for kind, name, below in names
    )
    rows = "".join(map(_check_row, block.checks))
    return (
        f'<figure class="table checks">{_tally(block.checks)}{_table(heads, rows)}<figcaption>'
        "The bar is the 80 % interval, the tick the forecast, the dot the measured value."
        "</figcaption></figure>"
    )


def _tally(checks: list[Check]) -> str:
    """Say large how many measured values fell inside their interval, with a sign for each."""
    inside = sum(check.covered for check in checks)
    signs = "".join(
        f'<i class="{"inside" if check.covered else "outside"}"></i>' for check in checks
    )
    count, _, rest = summary_words(checks).partition(" measured")
    return (
        f'<p class="tally"><strong>{inside} of {len(checks)}</strong><span class="signs" '
        f'aria-hidden="true">{signs}</span><span>measured{escape(rest)}</span></p>'
        if count
        else ""
    )


def _check_row(check: Check) -> str:
    """Draw one row of the checks."""
    forecast, interval, measured, error, verdict = map(escape, check_words(check))
    held, _, note = verdict.partition(": ")
    below = f"<small>{note}</small>" if note else ""
    side = "inside" if check.covered else "outside"
    said = check.forecast
    bar = interval_svg(said.low, said.value, said.high, check.measurement.value)
    meaning = escape(quantity(said.quantity).definition)
    return (
        f'<tr role="row" class="{side}"><th scope="row" role="rowheader">'
        f'<span title="{meaning}">{escape(said.quantity)}</span> {badge_html(said.provenance)}'
        f"<small>{escape(said.source)}</small></th>"
        f'<td role="cell" class="num" data-label="Forecast, 80 % interval">{forecast}'
        f"<small>{interval}</small></td>"
        f'<td role="cell" class="num" data-label="Measured, error"><strong>{measured}</strong>'
        f'<small class="wraps">{error}</small></td>'
        f'<td role="cell" class="bar">{bar}</td>'
        f'<td role="cell" class="end"><span class="verdict">{held}</span>{below}</td></tr>'
    )

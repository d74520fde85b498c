"""What a report is made of: sections of blocks, as plain data."""

from typing import Any, Literal

import msgspec

from steelyard.errors import DataError
from steelyard.quantity import Check, Forecast, Measurement
from steelyard.units import pretty

__all__ = [
    "Block",
    "Cell",
    "Chart",
    "Checks",
    "Column",
    "Document",
    "Facts",
    "Section",
    "Table",
    "Text",
    "fact",
]

Cell = str | int | float | bool | None
"""What a table cell holds; None prints as a dash."""


class Text(msgspec.Struct, frozen=True, tag="text"):
    """Prose in light markdown.

    Blank line = paragraph, `- ` list, **bold**, *emphasis*, `code`, [text](https://...).

    Attributes:
        text: the prose; anything that looks like HTML is shown as typed.
    """

    text: str


class Facts(msgspec.Struct, frozen=True, tag="facts"):
    """A few values that deserve to be seen first, drawn as cards.

    Attributes:
        facts: (label, value, provenance) each; provenance is one of `steelyard.quantity.Provenance`
            or empty.
    """

    facts: list[tuple[str, str, str]]


class Column(msgspec.Struct, frozen=True):
    """Head of a table column.

    Attributes:
        name: the words of the head.
        unit: unit of every number below, empty for none.
        align: "left" or "right"; empty aligns to the right when every cell is a number.
        rank: columns of the highest rank leave first on a terminal that is too narrow; 0 always
            stays.
    """

    name: str
    unit: str = ""
    align: Literal["", "left", "right"] = ""
    rank: int = 0


class Table(msgspec.Struct, frozen=True, tag="table"):
    """Rows under named columns.

    Attributes:
        columns: the heads, left to right.
        rows: one list of cells per row, as long as `columns`.
        caption: one sentence below the table.
    """

    columns: list[Column]
    rows: list[list[Cell]]
    caption: str = ""

    def __post_init__(self) -> None:
        """Refuse rows that are longer or shorter than the head."""
        # Here and not when it is drawn, where nobody knows any more who made the table.
        for index, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise DataError(
                    f"table row {index} has {len(row)} cells under {len(self.columns)} columns",
                    hint="give one cell per column",
                )


class Chart(msgspec.Struct, frozen=True, tag="chart"):
    """A Vega-Lite chart, data inside; the common theme is applied when it is drawn.

    Attributes:
        spec: what `altair.Chart.to_dict()` or a function of `steelyard.runs.charts` returns.
        caption: one sentence below the chart.
    """

    spec: dict[str, Any]
    caption: str = ""


class Checks(msgspec.Struct, frozen=True, tag="checks"):
    """Forecasts beside what was measured: forecast, 80 % interval, measured, error, verdict.

    Attributes:
        checks: pairs of one quantity each.
    """

    checks: list[Check]


Block = Text | Facts | Table | Chart | Checks


class Section(msgspec.Struct, frozen=True):
    """A titled part of a report.

    Attributes:
        title: heading of the section.
        blocks: what stands in it, top to bottom.
    """

    title: str
    blocks: list[Block] = []


class Document(msgspec.Struct, frozen=True):
    """Titled sections, as every face of a report needs them.

    Attributes:
        title: the heading.
        subtitle: one line on what, where and when.
        sections: the parts, in reading order.
    """

    title: str
    subtitle: str = ""
    sections: list[Section] = []


def fact(item: Forecast | Measurement, label: str = "") -> tuple[str, str, str]:
    """Make a card of a forecast or a measurement, for `Facts`.

    Args:
        item: the value; a Measurement is marked "measured".
        label: words above it, the quantity's name when empty.

    Returns:
        Label, value with its unit, provenance.
    """
    provenance = item.provenance if isinstance(item, Forecast) else "measured"
    return label or item.quantity, pretty(item.value, item.unit), provenance

"""One Report object.

What a command has to say, rendered as a terminal page, as JSON, or as one HTML file.

A report is plain data (sections of blocks), so that the same object can be stored, sent, and drawn
anywhere.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from steelyard.errors import DataError
from steelyard.files import write_bytes
from steelyard.quantity import Check, Forecast, Measurement
from steelyard.units import pretty

if TYPE_CHECKING:
    from rich.console import Console

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
    """

    name: str
    unit: str = ""
    align: Literal["", "left", "right"] = ""


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
        for index, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise DataError(
                    f"table row {index} has {len(row)} cells under {len(self.columns)} columns",
                    hint="give one cell per column",
                )


class Chart(msgspec.Struct, frozen=True, tag="chart"):
    """A Vega-Lite chart, data inside; the common theme is applied when it is drawn.

    Attributes:
        spec: as `altair.Chart.to_dict()` gives it, or from `steelyard.runs.charts`.
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
        title: its heading.
        blocks: what stands in it, top to bottom.
    """

    title: str
    blocks: list[Block] = []


class Report(msgspec.Struct, frozen=True):
    """What a command has to say.

    Attributes:
        title: the heading.
        subtitle: one line on what, where and when.
        sections: the parts, in reading order.
    """

    title: str
    subtitle: str = ""
    sections: list[Section] = []

    def print(self, console: "Console | None" = None) -> None:
        """Print to the terminal; charts are named but not drawn.

        Args:
            console: where to; None for standard output.
        """
        from steelyard.runs.console import render_console

        render_console(self, console)

    def to_json(self) -> str:
        """Return the report as indented JSON; checks also carry their `relative_error` and `covered`."""
        plain = msgspec.to_builtins(self)
        for section, source in zip(plain["sections"], self.sections, strict=True):
            for block, original in zip(section["blocks"], source.blocks, strict=True):
                if isinstance(original, Checks):
                    for entry, check in zip(block["checks"], original.checks, strict=True):
                        entry |= {"relative_error": check.relative_error, "covered": check.covered}
        return msgspec.json.format(msgspec.json.encode(plain), indent=2).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> "Report":
        """Read back what `to_json` gave.

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
        """Return one HTML page that holds its style, its charts and their scripts, and fetches nothing."""
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

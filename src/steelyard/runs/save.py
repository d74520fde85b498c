"""Files of a chart: a page, a vector drawing, a picture, or the spec."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steelyard.errors import DataError
from steelyard.files import write_bytes
from steelyard.runs.theme import LIGHT, with_theme
from steelyard.runs.wording import chart_title

__all__ = ["CHART_ENDINGS", "save_chart"]

CHART_ENDINGS = (".html", ".svg", ".png", ".json")
_PNG_SCALE = 2.0


def save_chart(spec: Mapping[str, Any], path: Path | str, *, title: str = "") -> None:
    """Write a chart to a file in the form its name ends on.

    .html (a page that answers the pointer), .svg, .png or .json (the spec).

    Args:
        spec: Vega-Lite with its data inside.
        path: the file; written beside and renamed.
        title: title of the HTML page; empty for the chart's own.

    Raises:
        DataError: another ending, or a spec that cannot be drawn.
        CapacityError: the disk is full; `path` is left as it was.
    """
    from steelyard.runs.drawing import chart_svg

    target = Path(path)
    plain = dict(spec)
    match target.suffix.lower():
        case ".html":
            write_bytes(target, _page(plain, title).encode())
        case ".svg":
            write_bytes(target, chart_svg(plain).encode())
        case ".png":
            write_bytes(target, _png(plain))
        case ".json":
            write_bytes(target, json.dumps(with_theme(plain), indent=1, allow_nan=False).encode())
        case other:
            raise DataError(
                f"cannot draw to {target.name}: unknown ending {other!r}",
                hint="end it on .html, .svg, .png or .json",
            )


def _page(spec: dict[str, Any], title: str) -> str:
    """Return a chart as a page of its own."""
    from steelyard.runs.report import Chart, Report, Section

    words = title or chart_title(spec)[0] or "Chart"
    return Report(words, "", [Section("", [Chart(spec)])]).to_html()


def _png(spec: dict[str, Any]) -> bytes:
    """Draw a chart in the light colours on white, twice as dense as the screen."""
    import vl_convert

    from steelyard.runs.drawing import chart_svg

    svg = chart_svg(spec)
    head, _, rest = svg.partition(">")
    return vl_convert.svg_to_png(
        f'{head}><rect width="100%" height="100%" fill="{LIGHT["card"]}"/>{rest}', scale=_PNG_SCALE
    )

"""Drawings of a report: charts to SVG, and the small interval bar of a check."""

import math
import re
from collections.abc import Mapping
from typing import Any

from steelyard.errors import DataError
from steelyard.runs.theme import PHONE_WIDTH, with_theme

__all__ = ["chart_svg", "interval_svg", "narrowed"]

_PANEL_MARGIN = 64
_HEIGHT = 18
_EDGE = 6.0
"""Per cent of the small drawing's width that stays free at either end."""


def chart_svg(spec: dict[str, Any], *, prefix: str = "drawing-") -> str:
    """Draw a Vega-Lite spec in the common theme.

    Args:
        spec: Vega-Lite with its data inside; nothing is fetched.
        prefix: put before every id, so that several drawings can stand in one page.

    Returns:
        An `<svg>` element in the light colours.

    Raises:
        DataError: Vega-Lite cannot draw the spec.
    """
    import vl_convert

    try:
        svg = vl_convert.vegalite_to_svg(with_theme(spec), allowed_base_urls=[])
    except ValueError as error:
        reason = str(error).strip().splitlines()[0]
        raise DataError(
            f"chart cannot be drawn: {reason}", hint="give a Vega-Lite spec with its data inside"
        ) from error
    # Vega numbers ids over the life of the process. Counted anew, a report is always the same text.
    names = {
        name: f"{prefix}{index}"
        for index, name in enumerate(dict.fromkeys(re.findall(r'\bid="([^"]+)"', svg)))
    }
    svg = re.sub(r'\bid="([^"]+)"', lambda match: f'id="{names[match.group(1)]}"', svg)
    return re.sub(
        r"url\(#([^)]+)\)", lambda match: f"url(#{names.get(match.group(1), match.group(1))})", svg
    )


def interval_svg(low: float, middle: float, high: float, value: float) -> str:
    """Draw a check: a bar from `low` to `high`, a tick at `middle`, a dot at the measured `value`.

    Places across are per cent, so that the drawing stretches with its cell while dot and line keep
    their form. When all four numbers are equal, everything stands in the center.
    """
    start = min(low, value)
    span = max(high, value) - start

    def place(point: float) -> float:
        share = (point - start) / span if span > 0 and math.isfinite(span) else 0.5
        return _EDGE + share * (100 - 2 * _EDGE)

    inside = "inside" if low <= value <= high else "outside"
    left = place(low)
    right = place(high)
    center = _HEIGHT / 2
    return (
        f'<svg class="interval {inside}" height="{_HEIGHT}" role="img" '
        f'aria-label="measured value {inside} the interval"><line class="track" x1="1.5%" '
        f'x2="98.5%" y1="{center}" y2="{center}"/>'
        f'<rect class="range" x="{left:.1f}%" y="{center - 3.5}" '
        f'width="{max(right - left, 1.5):.1f}%" height="7" rx="3.5"/>'
        f'<line class="tick" x1="{place(middle):.1f}%" x2="{place(middle):.1f}%" '
        f'y1="{center - 6}" y2="{center + 6}"/>'
        f'<circle class="dot" cx="{place(value):.1f}%" cy="{center}" r="4.4"/></svg>'
    )


def narrowed(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a chart for a phone: as wide as one, panels one below the other, without notes.

    Args:
        spec: Vega-Lite.

    Returns:
        A copy.
    """
    narrow = dict(spec)
    if "width" in narrow:
        narrow["width"] = PHONE_WIDTH
    if "layer" in narrow:
        narrow["layer"] = [layer for layer in narrow["layer"] if not _is_note(layer)]
    for kind in ("concat", "hconcat", "vconcat"):
        panels = narrow.pop(kind, None)
        if panels is not None:
            # The width of a panel is its plot's alone; axis and margin stand beside it.
            narrow["vconcat"] = [
                narrowed(panel) | {"width": PHONE_WIDTH - _PANEL_MARGIN} for panel in panels
            ]
            narrow.pop("columns", None)
    return narrow


def _is_note(layer: Mapping[str, Any]) -> bool:
    """Say whether a layer writes words into the plot, which only a wide one has room for."""
    mark = layer.get("mark")
    return isinstance(mark, Mapping) and mark.get("fontStyle") == "italic"

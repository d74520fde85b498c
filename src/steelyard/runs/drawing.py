"""Drawings of a report: charts to SVG, and the small interval bar of a check."""

import math
import re
from typing import Any

from steelyard.errors import DataError
from steelyard.runs.theme import with_theme

__all__ = ["chart_svg", "interval_svg"]

_WIDTH = 132
_HEIGHT = 18
_EDGE = 8


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

    Both ends of the drawing leave a margin; when all four numbers are equal, everything stands in
    the center.
    """
    start = min(low, value)
    span = max(high, value) - start

    def place(point: float) -> float:
        share = (point - start) / span if span > 0 and math.isfinite(span) else 0.5
        return _EDGE + share * (_WIDTH - 2 * _EDGE)

    inside = "inside" if low <= value <= high else "outside"
    left = place(low)
    right = place(high)
    centre = _HEIGHT / 2
    return (
        f'<svg class="interval {inside}" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" role="img" '
        f'aria-label="measured value {inside} the interval"><line class="track" x1="2" '
        f'x2="{_WIDTH - 2}" y1="{centre}" y2="{centre}"/>'
        f'<rect class="range" x="{left:.1f}" y="{centre - 3.5}" '
        f'width="{max(right - left, 2):.1f}" height="7" rx="3.5"/>'
        f'<line class="tick" x1="{place(middle):.1f}" x2="{place(middle):.1f}" y1="{centre - 6}" '
        f'y2="{centre + 6}"/>'
        f'<circle class="dot" cx="{place(value):.1f}" cy="{centre}" r="4.4"/></svg>'
    )

"""The one look of all reports and charts: colours for light and dark, type, Vega-Lite settings.

Charts are drawn in the light colours; the page's style sheet maps each light colour to its dark
one, so that one drawing serves both, and switches with the reader's system without being drawn
again.
"""

import itertools
from dataclasses import dataclass
from typing import Any

__all__ = [
    "DARK",
    "FONT",
    "LIGHT",
    "PHONE_WIDTH",
    "PROVENANCE",
    "SERIES",
    "SIZES",
    "colour_map",
    "css_variables",
    "ordered_colours",
    "with_theme",
]

FONT = "Inter, 'Segoe UI', 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"
"""Type of charts: faces a reader's machine has, with like widths."""

PHONE_WIDTH = 360
"""Pixels of a chart on a phone, with everything beside it."""


@dataclass(frozen=True, slots=True)
class Mark:
    """How a provenance is marked.

    Attributes:
        light: colour on a light page.
        dark: colour on a dark page.
        terminal: rich style.
        meaning: one phrase for the legend.
    """

    light: str
    dark: str
    terminal: str
    meaning: str


PROVENANCE: dict[str, Mark] = {
    "measured": Mark("#1a7350", "#5fcf9f", "green", "taken from a real run"),
    "fitted": Mark("#2b62a6", "#7db4f2", "blue", "from a model fitted to measurements"),
    "simulated": Mark("#7a4aa5", "#c39aec", "magenta", "from a simulation, never from a run"),
    "derived": Mark("#4d6472", "#a3b8c4", "cyan", "computed from other numbers by a formula"),
    "published": Mark("#7c5f0e", "#e0bd5c", "yellow", "taken from a paper or data sheet"),
    "assumed": Mark("#a54624", "#f09a78", "red", "an assumption; change it if you know better"),
}
"""Marks of the six provenances."""

LIGHT = {
    "paper": "#fbfaf7",
    "card": "#ffffff",
    "ink": "#1d2530",
    "soft": "#5b6672",
    "faint": "#656e78",
    "line": "#e4e1da",
    "grid": "#ecebe6",
    "axis": "#c6c5bf",
    "good": "#1a7351",
    "bad": "#b03434",
    "wash": "#f3f1ec",
}
"""Colours of the light page."""

DARK = {
    "paper": "#14181d",
    "card": "#1b2027",
    "ink": "#e8e6e1",
    "soft": "#a5afb9",
    "faint": "#8f99a3",
    "line": "#2c333b",
    "grid": "#262c34",
    "axis": "#47515b",
    "good": "#5fcfa0",
    "bad": "#f08585",
    "wash": "#20262d",
}
"""Colours of the dark page, same names."""

SERIES = (
    ("#2a6496", "#6cb0e8"),
    ("#cf6a2c", "#f2a065"),
    ("#2c8c7f", "#62cdbd"),
    ("#8d5299", "#cf9bdb"),
    ("#a88412", "#e3c25a"),
    ("#626d78", "#a9b3bd"),
)
"""(light, dark) colours of unordered series."""

SIZES = (
    ("#7fb7a8", "#b9e4d6"),
    ("#52a0a0", "#8bd3cb"),
    ("#348598", "#65bccb"),
    ("#2c698d", "#559fd0"),
    ("#2f4b7c", "#7388e0"),
    ("#352c5e", "#a07fe6"),
)
"""(light, dark) colours of ordered series, small to large."""


_LABEL = {
    "labelColor": LIGHT["soft"],
    "titleColor": LIGHT["soft"],
    "labelFontSize": 11.5,
    "titleFontSize": 12,
    "titleFontWeight": 500,
}
_AXIS = {
    "gridColor": LIGHT["grid"],
    "domainColor": LIGHT["axis"],
    "tickColor": LIGHT["axis"],
    "labelFlush": False,
    "labelOverlap": "greedy",
    "labelSeparation": 5,
    "titlePadding": 10,
    "labelPadding": 6,
    "tickSize": 4,
    "labelFontWeight": 400,
    **_LABEL,
}
_LEGEND = {
    "orient": "top",
    "direction": "horizontal",
    "symbolSize": 80,
    "symbolOpacity": 1,
    "symbolStrokeWidth": 2.5,
    "offset": 8,
    "titlePadding": 8,
    "titleOrient": "left",
    **_LABEL,
}
_TITLE = {
    "color": LIGHT["ink"],
    "anchor": "start",
    "fontSize": 14.5,
    "fontWeight": 600,
    "offset": 14,
    "subtitleColor": LIGHT["soft"],
    "subtitleFontSize": 12,
    "subtitlePadding": 5,
}


def _blend(first: str, second: str, share: float) -> str:
    """Mix two colours in steps of their three channels."""
    channels = zip(bytes.fromhex(first[1:]), bytes.fromhex(second[1:]), strict=True)
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in channels)


def _fine_sizes() -> list[tuple[str, str]]:
    """Return the (light, dark) colours of `SIZES` with one mixed colour between each two."""
    fine = [SIZES[0]]
    for (light, dark), (next_light, next_dark) in itertools.pairwise(SIZES):
        fine += [
            (_blend(light, next_light, 0.5), _blend(dark, next_dark, 0.5)),
            (next_light, next_dark),
        ]
    return fine


def ordered_colours(count: int) -> list[str]:
    """Return light colours for ordered series, small to large.

    Args:
        count: series, up to 11; beyond that neighbors share a colour.

    Returns:
        One colour per series, evenly from the whole range.
    """
    fine = [light for light, _ in _fine_sizes()]
    if count == 1:
        return [SIZES[3][0]]
    return [fine[round(index * (len(fine) - 1) / (count - 1))] for index in range(count)]


def colour_map() -> dict[str, str]:
    """Return the dark colour of every light colour a chart may use, hex to hex."""
    pairs = [*SERIES, *_fine_sizes(), *((mark.light, mark.dark) for mark in PROVENANCE.values())]
    pairs += [(LIGHT[name], DARK[name]) for name in LIGHT]
    return dict(pairs)


def css_variables(dark: bool) -> str:
    """Write the page's and the provenances' colours as CSS custom properties."""
    colours = (DARK if dark else LIGHT) | {
        name: mark.dark if dark else mark.light for name, mark in PROVENANCE.items()
    }
    return "".join(f"--{name}:{value};" for name, value in colours.items())


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Merge nested dicts; `over` wins."""
    merged = dict(base)
    for key, value in over.items():
        merged[key] = (
            _merge(merged[key], value)
            if isinstance(value, dict) and isinstance(merged.get(key), dict)
            else value
        )
    return merged


def _configuration() -> dict[str, Any]:
    """Return the Vega-Lite `config` of every chart."""
    series = [light for light, _ in SERIES]
    sizes = [light for light, _ in SIZES]
    return {
        # The page's card shows through, light or dark.
        "background": None,
        "font": FONT,
        "padding": 4,
        "view": {"stroke": None, "continuousWidth": 640, "continuousHeight": 340},
        # The width counts everything beside the plot, so that charts of one page end alike.
        "autosize": {"type": "fit-x", "contains": "padding"},
        "axis": _AXIS,
        "axisX": {"grid": False},
        "axisY": {"domain": False, "ticks": False, "titleAnchor": "middle"},
        "legend": _LEGEND,
        "title": _TITLE,
        "range": {"category": series, "ordinal": sizes, "ramp": sizes, "heatmap": sizes},
        "text": {"color": LIGHT["ink"], "fontSize": 11.5},
        "rule": {"color": LIGHT["axis"]},
        "line": {"strokeWidth": 2, "strokeCap": "round"},
        "point": {"filled": True, "size": 55, "opacity": 1},
        "bar": {"color": series[0], "cornerRadiusEnd": 2},
    }


def with_theme(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a Vega-Lite spec with the common configuration laid over its own."""
    return {**spec, "config": _merge(spec.get("config", {}), _configuration())}

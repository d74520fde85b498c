"""Pieces that charts are put together from: data, axes, end labels that never overlap, shading."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from steelyard.errors import DataError
from steelyard.runs.axes import Scale
from steelyard.runs.theme import LIGHT

__all__ = [
    "PLOT_WIDTH",
    "end_labels",
    "finish",
    "rows_of",
    "shaded",
    "spread",
    "values",
    "x_of",
    "y_of",
]

PLOT_WIDTH = 800
"""Pixels of a chart with everything beside it."""

_LINE = 14.0


def finish(chart: Any) -> dict[str, Any]:
    """Return an Altair chart as a plain dict, the data of `values` unpacked."""
    # Altair writes a default configuration, which would win over the theme's.
    spec = {
        key: value for key, value in chart.to_dict().items() if key not in ("config", "$schema")
    }
    return spec | {
        "datasets": {name: json.loads(packed) for name, packed in spec.get("datasets", {}).items()}
    }


def values(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return rows as inline data for an Altair chart, to be unpacked by `finish`."""
    # Packed as text, because Altair checks every value of a list against its schema: seconds for
    # some thousand rows.
    return alt.InlineData(values=json.dumps([dict(row) for row in rows], allow_nan=False))


def rows_of(
    columns: Mapping[str, Sequence[Any]], needed: Sequence[str], what: str
) -> list[dict[str, Any]]:
    """Turn named columns into rows of plain numbers and text.

    Args:
        columns: values by name, all of one length.
        needed: names that must be there.
        what: name of the columns, for messages.

    Returns:
        One dict per row; numbers that are not finite become None.

    Raises:
        DataError: a column is missing or has another length.
    """
    missing = [name for name in needed if name not in columns]
    if missing:
        raise DataError(
            f"{what}: column {missing[0]!r} is missing, given were {', '.join(columns) or 'none'}",
            hint=f"give {', '.join(needed)}",
        )
    lengths = {len(values) for values in columns.values()}
    if len(lengths) > 1:
        raise DataError(
            f"{what}: columns have different lengths {sorted(lengths)}",
            hint="give one value per row in every column",
        )
    plain = {name: [_plain(value) for value in values] for name, values in columns.items()}
    return [dict(zip(plain, row, strict=True)) for row in zip(*plain.values(), strict=True)]


def _plain(value: Any) -> Any:
    """Turn a numpy scalar into Python's own; numbers that are not finite become None."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def x_of(field: str, scale: Scale) -> Any:
    """Return the x channel of a field on an axis; layers of one chart must share the axis."""
    return alt.X(
        f"{field}:Q",
        title=scale.title or None,
        scale=alt.Scale(**scale.scale()),
        axis=alt.Axis(**scale.axis()),
    )


def y_of(field: str, scale: Scale) -> Any:
    """Return the y channel of a field on an axis; layers of one chart must share the axis."""
    return alt.Y(
        f"{field}:Q",
        title=scale.title or None,
        scale=alt.Scale(**scale.scale()),
        axis=alt.Axis(**scale.axis()),
    )


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Move places apart until neighbors are at least `gap` away, by as little as that takes.

    All stay within 0..1 when they fit.

    Args:
        places: numbers in any order.
        gap: least distance, such as a line's height over the plot's.

    Returns:
        The places in the order given.
    """
    order = sorted(range(len(places)), key=lambda index: places[index])
    # Neighbors that are too near become one block around the mean of their centers; a block that
    # grew may touch the one before it, which is why merging goes on to the left.
    blocks: list[list[float]] = []  # center, members
    for index in order:
        blocks.append([places[index], 1.0])
        while (
            len(blocks) > 1
            and blocks[-1][0] - blocks[-2][0] < gap * (blocks[-1][1] + blocks[-2][1]) / 2
        ):
            last = blocks.pop()
            first = blocks.pop()
            count = first[1] + last[1]
            blocks.append([(first[0] * first[1] + last[0] * last[1]) / count, count])
        blocks[-1][0] = _inside(blocks[-1], gap)
    found = [
        center + (rank - (count - 1) / 2) * gap
        for center, count in blocks
        for rank in range(int(count))
    ]
    moved = [0.0] * len(places)
    for place, index in zip(_pushed(found, gap), order, strict=True):
        moved[index] = place
    return moved


def _inside(block: Sequence[float], gap: float) -> float:
    """Move a block's center so that the block lies within 0..1, when it fits."""
    half = (block[1] - 1) / 2 * gap
    return min(max(block[0], half), 1 - half) if half <= 0.5 else 0.5


def _pushed(places: list[float], gap: float) -> list[float]:
    """Push rising places apart once more, first upward, then downward from the top.

    Blocks that were moved inside may overlap again.
    """
    for index in range(1, len(places)):
        places[index] = max(places[index], places[index - 1] + gap)
    if places and places[-1] > 1:
        places[-1] = 1.0
        for index in range(len(places) - 2, -1, -1):
            places[index] = min(places[index], places[index + 1] - gap)
    return places


def end_labels(
    labels: Sequence[tuple[str, float, str]],
    x: float,
    x_scale: Scale,
    y_scale: Scale,
    height: float,
) -> list[Any]:
    """Write labels beside the right ends of curves, moved apart so that none overlaps.

    A thin line leads to a label that moved.

    Args:
        labels: (text, the curve's last value on y, colour) each.
        x: where the curves end.
        x_scale: the chart's x axis.
        y_scale: the chart's y axis.
        height: height of the plot in pixels.

    Returns:
        Layers of an Altair chart.
    """
    ends = [y_scale.clip(value) for _, value, _ in labels]
    places = spread([y_scale.place(end) for end in ends], _LINE / height)
    rows = [
        {"x": x, "end": end, "y": y_scale.value(place), "text": text, "color": colour}
        for (text, _, colour), end, place in zip(labels, ends, places, strict=True)
    ]
    base = alt.Chart(values(rows)).encode(
        x=x_of("x", x_scale),
        y=y_of("y", y_scale),
        color=alt.Color("color:N", scale=None, legend=None),
    )
    text = base.mark_text(
        align="left", baseline="middle", dx=16, fontSize=11.5, fontWeight=500
    ).encode(text="text:N")
    lead = base.mark_rule(strokeWidth=0.8, opacity=0.55, xOffset=4, x2Offset=13).encode(
        y=y_of("end", y_scale), y2="y:Q", x2="x:Q"
    )
    return [lead, text]


def shaded(first: float, last: float, words: str, x_scale: Scale, y_scale: Scale) -> list[Any]:
    """Shade a range of x behind everything else and write at its top what it is.

    Args:
        first: where it begins.
        last: where it ends.
        words: written at its upper left; empty for nothing.
        x_scale: the chart's x axis.
        y_scale: the chart's y axis.

    Returns:
        Layers of an Altair chart; none when the range is empty.
    """
    if not last > first:
        return []
    base = alt.Chart(values([{"first": first, "last": last, "top": y_scale.high, "words": words}]))
    x = x_of("first", x_scale)
    layers: list[Any] = [base.mark_rect(color=LIGHT["wash"], opacity=0.8).encode(x=x, x2="last:Q")]
    # 6.2 pixels is a character's mean width in this type; words that do not fit are left out.
    wide = abs(x_scale.place(last) - x_scale.place(first)) * PLOT_WIDTH
    if words and wide > 6.2 * len(words) + 16:
        layers.append(
            base.mark_text(
                align="left",
                baseline="top",
                dx=8,
                dy=5,
                color=LIGHT["faint"],
                fontSize=11,
                fontStyle="italic",
            ).encode(x=x, y=y_of("top", y_scale), text="words:N")
        )
    return layers

"""The containment graph as a chart: what contains others stands above, what can go is hollow."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt

from steelyard.runs.layers import PLOT_WIDTH, finish, values
from steelyard.runs.theme import LIGHT, SERIES
from steelyard.units import pretty

__all__ = ["GraphArrangement", "arranged", "containment_chart"]

_MOST = 120
_WIDE = 14
"""Tables in a row of the picture."""
_ROW_PIXELS = 58
_GAP = 0.4
"""Rows between families."""
_LONGEST_NAME = 12
_KINDS = ["stays", "can go"]
_COLOURS = [SERIES[0][0], SERIES[1][0]]


class GraphArrangement(NamedTuple):
    """Where tables stand, and the lines between them.

    Attributes:
        places: across and down, by table.
        lines: child and parent; those that follow from others are left out.
        left_out: tables that there was no room for.
    """

    places: dict[str, tuple[float, float]]
    lines: list[tuple[str, str]]
    left_out: int


def arranged(edges: Sequence[tuple[str, str]]) -> GraphArrangement:
    """Arrange the tables that contain another or are contained, family by family.

    Args:
        edges: child and parent; equal tables are there both ways.

    Returns:
        The arrangement; at most 120 tables.
    """
    parents: dict[str, set[str]] = {}
    for child, parent in edges:
        parents.setdefault(child, set()).add(parent)
        parents.setdefault(parent, set())
    families = sorted(_families(parents), key=len, reverse=True)
    shown: list[list[str]] = []
    for family in families:
        if sum(map(len, shown)) + len(family) <= _MOST:
            shown.append(family)
    places: dict[str, tuple[float, float]] = {}
    across, down, deepest = 0, 0.0, 0
    for family in shown:
        rows = _rows(family, parents)
        wide = max(map(len, rows))
        if across and across + wide > _WIDE:
            across, down, deepest = 0, down + deepest + _GAP, 0
        for level, row in enumerate(rows):
            for place, name in enumerate(row):
                places[name] = (across + (wide - len(row)) / 2 + place, down + level)
        across, deepest = across + wide, max(deepest, len(rows))
    lines = [
        (child, parent)
        for child in places
        for parent in sorted(parents[child])
        if not _follows(child, parent, parents)
    ]
    left_out = sum(map(len, families)) - len(places)
    return GraphArrangement(places, lines, left_out)


def _families(parents: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the tables of each connected part."""
    near: dict[str, set[str]] = {name: set(own) for name, own in parents.items()}
    for child, own in parents.items():
        for parent in own:
            near[parent].add(child)
    found, seen = [], set()
    for start in sorted(near):
        family, waiting = [], [start]
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                family.append(name)
                waiting += near[name]
        if family:
            found.append(sorted(family))
    return found


def _above(name: str, parents: Mapping[str, set[str]]) -> set[str]:
    """Return what contains a table and is not equal to it."""
    return {parent for parent in parents[name] if name not in parents[parent]}


def _equals(name: str, parents: Mapping[str, set[str]]) -> set[str]:
    """Return what contains a table and is contained in it."""
    return {parent for parent in parents[name] if name in parents[parent]}


def _rows(family: Sequence[str], parents: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the tables of a family by the length of the longest way down to them.

    Long rows are cut into several.
    """
    levels: dict[str, int] = {}
    # Whatever contains a table is contained in fewer tables itself, as containment is transitive.
    for name in sorted(family, key=lambda name: (len(_above(name, parents)), name)):
        own = [levels[parent] for parent in _above(name, parents) if parent in levels]
        levels[name] = 1 + max(own, default=-1)
    rows = []
    for level in range(max(levels.values()) + 1):
        row = [name for name in family if levels[name] == level]
        # Equal tables stand side by side.
        row.sort(key=lambda name: (min({name, *_equals(name, parents)}), name))
        rows += [row[start : start + _WIDE] for start in range(0, len(row), _WIDE)]
    return rows


def _follows(child: str, parent: str, parents: Mapping[str, set[str]]) -> bool:
    """Whether a line is implied by two others; equal tables are linked to the next one only."""
    if child in parents[parent]:
        group = sorted({child, *_equals(child, parents)})
        return group.index(parent) != group.index(child) + 1
    between = _above(child, parents) - {parent}
    return any(parent in _above(other, parents) for other in between)


def containment_chart(
    edges: Sequence[tuple[str, str]],
    num_bytes: Mapping[str, float],
    chosen: Mapping[str, str],
) -> tuple[dict[str, Any], int]:
    """Draw which table lies in which, and what can go.

    Args:
        edges: child and parent.
        num_bytes: size by table.
        chosen: table that each is rebuilt from, by the table that goes.

    Returns:
        Vega-Lite spec, and the number of tables that there was no room for.
    """
    found = arranged(edges)
    wide = max((x for x, _ in found.places.values()), default=0)
    deep = max((y for _, y in found.places.values()), default=0)
    x = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[-0.7, max(wide, _WIDE / 2) + 0.7]))
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[-0.5, deep + 0.6], reverse=True))
    is_used = "datum.used"
    rules = (
        alt.Chart(values(_lines(found, edges, chosen)))
        .mark_rule()
        .encode(
            x=x,
            y=y,
            x2="x2:Q",
            y2="y2:Q",
            color=alt.condition(is_used, alt.value(SERIES[1][0]), alt.value(LIGHT["axis"])),
            strokeWidth=alt.condition(is_used, alt.value(1.8), alt.value(1)),
        )
    )
    base = alt.Chart(values(_dots(found, num_bytes, chosen)))
    dots = base.mark_circle(opacity=1).encode(
        x=x,
        y=y,
        color=alt.Color("kind:N", title=None, scale=alt.Scale(domain=_KINDS, range=_COLOURS)),
        size=alt.Size("bytes:Q", legend=None, scale=alt.Scale(range=[40, 420])),
        tooltip=[alt.Tooltip(f"{name}:N") for name in ("table", "size", "kind", "parent")],
    )
    # A rim in the colour of the page keeps names readable on lines.
    card = LIGHT["card"]
    rim: dict[str, Any] = {"color": card, "stroke": card, "strokeWidth": 3, "strokeJoin": "round"}
    plain: dict[str, Any] = {"color": LIGHT["soft"]}
    written = [
        base.mark_text(dy=19, fontSize=10.5, **style).encode(x=x, y=y, text="name:N")
        for style in (rim, plain)
    ]
    chart = alt.layer(rules, *written, dots).properties(
        width=PLOT_WIDTH, height=_ROW_PIXELS * (deep + 1), title="Which table lies in which"
    )
    return finish(chart), found.left_out


def _dots(
    found: GraphArrangement, num_bytes: Mapping[str, float], chosen: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return a row for each table."""
    return [
        {
            "x": x,
            "y": y,
            "name": name if len(name) <= _LONGEST_NAME else f"…{name[1 - _LONGEST_NAME :]}",
            "table": name,
            "size": pretty(num_bytes[name], "byte"),
            "bytes": num_bytes[name],
            "kind": _KINDS[name in chosen],
            "parent": chosen.get(name, ""),
        }
        for name, (x, y) in found.places.items()
    ]


def _lines(
    found: GraphArrangement, edges: Sequence[tuple[str, str]], chosen: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return a row for each line."""
    # Equal tables stand in one row, where a line to any but the next would run through others.
    mutual = {(parent, child) for child, parent in edges} & set(edges)
    drawn = {*found.lines, *(pair for pair in chosen.items() if pair not in mutual)}
    return [
        {
            "x": found.places[child][0],
            "y": found.places[child][1],
            "x2": found.places[parent][0],
            "y2": found.places[parent][1],
            "used": chosen.get(child) == parent
            or ((parent, child) in mutual and (child in chosen or parent in chosen)),
        }
        for child, parent in sorted(drawn)
        if child in found.places
    ]

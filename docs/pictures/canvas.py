"""A small SVG canvas with a light and a dark palette; each picture is drawn in both."""

from dataclasses import dataclass, field
from html import escape

__all__ = ["DARK", "LIGHT", "Canvas", "Palette"]

FONT = "Inter, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
SCALE = 1.15
MONO = "'JetBrains Mono', 'SF Mono', Consolas, 'DejaVu Sans Mono', monospace"


@dataclass(frozen=True)
class Palette:
    """Colors of one theme; each hue is (fill, line, text on the fill)."""

    name: str
    text: str
    muted: str
    line: str
    panel: str
    free: str
    hues: dict[str, tuple[str, str, str]] = field(default_factory=dict)


LIGHT = Palette(
    "light",
    text="#1f2933",
    muted="#5b6b7a",
    line="#c2cbd4",
    panel="#f4f6f8",
    free="#ffffff",
    hues={
        "teal": ("#c5e8e3", "#00796b", "#06443d"),
        "amber": ("#ffe2b8", "#b26500", "#5c3400"),
        "indigo": ("#d3d8f3", "#3f51b5", "#1f2a6b"),
        "rose": ("#fad0de", "#b0235f", "#5f0f32"),
        "gray": ("#e3e8ed", "#8593a1", "#3e4c59"),
    },
)
DARK = Palette(
    "dark",
    text="#e8ebef",
    muted="#a3aeba",
    line="#4a5463",
    panel="#272c36",
    free="#1d2129",
    hues={
        "teal": ("#14534c", "#5cc4b8", "#d5f5f0"),
        "amber": ("#65430f", "#f3b257", "#ffeacb"),
        "indigo": ("#333f80", "#9ea9ea", "#e3e7ff"),
        "rose": ("#6b2446", "#ee8db2", "#ffe0ec"),
        "gray": ("#3a424f", "#8b97a5", "#d5dbe2"),
    },
)


class Canvas:
    """A picture made of shapes; sizes are in pixels."""

    def __init__(self, width: int, height: int, palette: Palette, title: str) -> None:
        """Start empty; screen readers read the title."""
        self.palette = palette
        self.title = title
        self.size = (width, height)
        self.parts: list[str] = []

    def box(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        *,
        hue: str = "",
        fill: str = "",
        line: str = "",
        radius: float = 5,
        dash: str = "",
        weight: float = 1.3,
    ) -> None:
        """Draw a rounded box, of a hue or of given colors."""
        fill, line = (
            (self.palette.hues[hue][0], self.palette.hues[hue][1])
            if hue
            else (fill or "none", line or "none")
        )
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        place = f'x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{radius:g}"'
        self.parts.append(
            f'<rect {place} fill="{fill}" stroke="{line}" stroke-width="{weight:g}"{dashed}/>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float = 14,
        color: str = "",
        anchor: str = "start",
        bold: bool = False,
        mono: bool = False,
        italic: bool = False,
    ) -> None:
        """Write one line of text; y is its baseline."""
        color = color or self.palette.text
        style = (
            f'font-family="{MONO if mono else FONT}" font-size="{SCALE * size:.4g}" '
            f'text-anchor="{anchor}" fill="{color}"'
        )
        style += ' font-weight="600"' if bold else ""
        style += ' font-style="italic"' if italic else ""
        self.parts.append(f'<text x="{x:g}" y="{y:g}" {style}>{escape(words)}</text>')

    def cell(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        words: str,
        hue: str,
        *,
        size: float = 13,
        mono: bool = False,
    ) -> None:
        """Draw a box of a hue with centered words."""
        self.box(x, y, w, h, hue=hue, radius=4)
        self.text(
            x + w / 2,
            y + h / 2 + size * 0.35,
            words,
            size=size,
            color=self.palette.hues[hue][2],
            anchor="middle",
            mono=mono,
        )

    def arrow(
        self,
        points: list[tuple[float, float]],
        *,
        color: str = "",
        curved: bool = False,
        dash: str = "",
        weight: float = 1.6,
    ) -> None:
        """Draw a line with a head; a curved one leaves and arrives horizontally."""
        color = color or self.palette.muted
        if curved:
            (x0, y0), (x1, y1) = points
            middle = (x0 + x1) / 2
            path = f"M{x0:g},{y0:g} C{middle:g},{y0:g} {middle:g},{y1:g} {x1 - 7:g},{y1:g}"
            tip, before = (x1, y1), (x1 - 8, y1)
        else:
            (bx, by), (tx, ty) = points[-2], points[-1]
            length = max(((tx - bx) ** 2 + (ty - by) ** 2) ** 0.5, 1e-9)
            ux, uy = (tx - bx) / length, (ty - by) / length
            # The line ends inside the head, so that its blunt end does not show at the tip.
            tip, before = (tx, ty), (tx - 8 * ux, ty - 8 * uy)
            path = "M" + " L".join(
                f"{x:g},{y:g}" for x, y in [*points[:-1], (tx - 6 * ux, ty - 6 * uy)]
            )
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<path d="{path}" fill="none" stroke="{color}" stroke-width="{weight:g}"{dashed}/>'
        )
        dx, dy = tip[0] - before[0], tip[1] - before[1]
        left, right = (
            (before[0] - dy * 0.5, before[1] + dx * 0.5),
            (before[0] + dy * 0.5, before[1] - dx * 0.5),
        )
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in (tip, left, right))
        self.parts.append(f'<polygon points="{corners}" fill="{color}"/>')

    def svg(self) -> str:
        """Return the text of the SVG file."""
        width, height = self.size
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'role="img"><title>{escape(self.title)}</title>'
        )
        return "\n".join([head, *self.parts, "</svg>", ""])

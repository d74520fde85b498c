"""A Report as one HTML file: style, drawings, data and scripts inside, nothing fetched.

Charts are drawn to SVG when the page is written, so they show at once, print, and need no script.
The Vega runtime lies compressed in the page and wakes when the pointer first enters a chart, which
then answers with tooltips.
"""

import base64
import functools
import gzip
import json
import re
from html import escape
from pathlib import Path

from steelyard.runs.blocks import Block, Chart, Checks, Document, Facts, Section, Table, Text
from steelyard.runs.drawing import chart_svg, narrowed
from steelyard.runs.tables import badge_html, checks_html, table_html
from steelyard.runs.theme import PROVENANCE, colour_map, css_variables, with_theme
from steelyard.runs.wording import chart_title

__all__ = ["render_html"]

_INLINE = (
    (re.compile(r"(?<=\d) (?=%)"), "\N{NO-BREAK SPACE}"),
    (re.compile(r"`([^`]+)`"), r"<code>\1</code>"),
    (re.compile(r"\*\*(.+?)\*\*"), r"<strong>\1</strong>"),
    (re.compile(r"(?<!\*)\*([^*\n]+)\*"), r"<em>\1</em>"),
    (re.compile(r"\[([^\]]+)\]\((https?://[^)\s]+)\)"), r'<a href="\2" rel="noreferrer">\1</a>'),
)
_LOGO = (
    '<svg class="logo" viewBox="0 0 44 24" aria-hidden="true"><path d="M2 7.5 42 4.5M12 6.8v3.4M9 '
    '19.5h6l-3-9.3zM33 5.2v4.2" fill="none"'
    ' stroke="currentColor" stroke-width="1.6" stroke-linecap="round" stroke-linejoin="round"/>'
    '<circle cx="33" cy="12" r="2.7" fill="currentColor"/>'
    '<path d="m18.5 2.2 2.2 3.9h-4z" fill="currentColor" transform="rotate(180 18.6 4.2)"/></svg>'
)
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'unsafe-eval'; "
    "img-src data:; base-uri 'none'; form-action 'none'"
)
"""What the page may do: its own style and scripts (Vega compiles its expressions), no address."""
_SCRIPT = """
(() => {
  let runtime;
  const wake = () => runtime ??= (async () => {
    const coded = document.getElementById("vega").textContent;
    const packed = Uint8Array.from(atob(coded), c => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const text = await new Response(stream).text();
    const script = document.createElement("script");
    script.textContent = text;
    document.head.append(script);
    return window.vegaEmbed;
  })();
  for (const chart of document.querySelectorAll(".chart")) {
    const place = chart.querySelector(".drawing.page");
    place.addEventListener("pointerenter", async () => {
      const embed = await wake();
      const dark = matchMedia("(prefers-color-scheme: dark)").matches;
      const live = document.createElement("div");
      const spec = JSON.parse(chart.querySelector("script").textContent);
      await embed(live, spec, {mode: "vega-lite", renderer: "svg", actions: false,
        defaultStyle: false, tooltip: {theme: dark ? "dark" : "light"}});
      place.replaceChildren(live.querySelector("svg"));
    }, {once: true});
  }
})();
"""


def _inline(text: str) -> str:
    """Turn the light markdown of one line into HTML, everything else escaped."""
    # Escaped first, so that only the patterns can make an element; they take web addresses alone,
    # so no link can carry a script.
    text = escape(text)
    for pattern, replacement in _INLINE:
        text = pattern.sub(replacement, text)
    return text


def _prose(block: Text) -> str:
    """Turn paragraphs and lists into HTML."""
    parts = []
    for paragraph in re.split(r"\n\s*\n", block.text.strip()):
        lines = [line.strip() for line in paragraph.splitlines()]
        plain = " ".join(line for line in lines if not line.startswith("- "))
        items = "".join(f"<li>{_inline(line[2:])}</li>" for line in lines if line.startswith("- "))
        parts.append(
            (f"<p>{_inline(plain)}</p>" if plain else "") + (f"<ul>{items}</ul>" if items else "")
        )
    return f'<div class="prose">{"".join(parts)}</div>'


def _value(text: str) -> str:
    """Set the unit behind a number smaller than the number."""
    number, _, unit = text.partition(" ")
    if not unit or not any(letter.isdigit() for letter in number):
        return f'<span class="value">{escape(text)}</span>'
    return f'<span class="value">{escape(number)} <span class="unit">{escape(unit)}</span></span>'


def _facts(block: Facts) -> str:
    """Draw facts as cards."""
    cards = (
        f'<div class="fact"><dt>{escape(label)}</dt><dd>{_value(value)}'
        f"{badge_html(provenance)}</dd></div>"
        for label, value, provenance in block.facts
    )
    return f'<dl class="facts">{"".join(cards)}</dl>'


def _chart(block: Chart, index: int) -> str:
    """Draw a chart for the page and for a phone, and lay its spec beside it for the pointer."""
    title, below = chart_title(block.spec)
    bare = {key: value for key, value in block.spec.items() if key not in ("$schema", "title")}
    # "</script>" inside the data would end the element it lies in.
    data = json.dumps(with_theme(bare), ensure_ascii=True, allow_nan=False, default=str)
    data = data.replace("<", "\\u003c")
    words = f'<p class="chart-title">{escape(title)}</p>' if title else ""
    words += f'<p class="chart-words">{escape(below)}</p>' if below else ""
    caption = f"<figcaption>{_inline(block.caption)}</figcaption>" if block.caption else ""
    name = f' aria-label="{escape(title)}"' if title else ""
    return (
        f'<figure class="chart"{name}><div class="card">{words}'
        f'<div class="drawing page">{chart_svg(bare, prefix=f"chart{index}-")}</div>'
        f'<div class="drawing phone">{chart_svg(narrowed(bare), prefix=f"phone{index}-")}</div>'
        f'</div><script type="application/json">{data}</script>{caption}</figure>'
    )


def _block(block: Block, index: int) -> str:
    """Choose the drawing of a block."""
    match block:
        case Text():
            return _prose(block)
        case Facts():
            return _facts(block)
        case Table():
            return table_html(block, _inline(block.caption))
        case Checks():
            return checks_html(block)
        case Chart():
            return _chart(block, index)


def _section(section: Section, index: int) -> str:
    """Draw a section with its heading."""
    blocks = "".join(
        _block(block, 100 * index + place) for place, block in enumerate(section.blocks)
    )
    heading = f"<h2>{escape(section.title)}</h2>" if section.title else ""
    return f'<section id="s{index}">{heading}{blocks}</section>'


def _legend(report: Document) -> str:
    """Explain the provenances that the report uses."""
    used: set[str] = set()
    for block in (block for section in report.sections for block in section.blocks):
        if isinstance(block, Facts):
            used |= {provenance for _, _, provenance in block.facts}
        if isinstance(block, Checks) and block.checks:
            used |= {check.forecast.provenance for check in block.checks} | {"measured"}
    return "".join(
        f"<li>{badge_html(name)} {escape(mark.meaning)}</li>"
        for name, mark in PROVENANCE.items()
        if name in used
    )


@functools.cache
def _style() -> str:
    """Return the page's style sheet with its colours."""
    dark_charts = "".join(
        f'.chart svg [{kind}="{light}"]{{{kind}:{dark}}}'
        for light, dark in sorted(colour_map().items())
        for kind in ("fill", "stroke")
    )
    marks = "".join(f".p-{name}{{--mark:var(--{name})}}" for name in PROVENANCE)
    sheet = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")
    dark = (
        f"@media screen and "
        f"(prefers-color-scheme:dark){{:root{{color-scheme:dark;{css_variables(True)}}}{dark_charts}}}"
    )
    return f":root{{{css_variables(False)}}}{marks}{sheet}{dark}"


@functools.cache
def _runtime() -> str:
    """Return the Vega scripts, compressed, as base64."""
    import vl_convert

    return base64.b64encode(
        gzip.compress(
            vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").encode(), mtime=0
        )
    ).decode()


def render_html(report: Document) -> str:
    """Return the report as one HTML page.

    Args:
        report: what to show.

    Returns:
        The page's text; it loads nothing from anywhere.
    """
    titles = [
        (f"s{index}", section.title)
        for index, section in enumerate(report.sections)
        if section.title
    ]
    links = "".join(f'<a href="#{anchor}">{escape(title)}</a>' for anchor, title in titles)
    nav = f'<nav aria-label="Sections">{links}</nav>' if len(titles) > 2 else ""
    body = "".join(_section(section, index) for index, section in enumerate(report.sections))
    legend = _legend(report)
    has_charts = any(
        isinstance(block, Chart) for section in report.sections for block in section.blocks
    )
    scripts = (
        f'<script type="text/plain" id="vega">{_runtime()}</script><script>{_SCRIPT}</script>'
        if has_charts
        else ""
    )
    subtitle = f'<p class="subtitle">{_inline(report.subtitle)}</p>' if report.subtitle else ""
    note = (
        f'<footer><h2>Where numbers come from</h2><ul class="legend">{legend}</ul></footer>'
        if legend
        else ""
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><meta name="viewport" '
        'content="width=device-width,initial-scale=1">'
        f'<meta name="color-scheme" content="light '
        f'dark"><title>{escape(report.title)}</title><style>{_style()}</style></head>\n'
        f"<body><header><div "
        f'class="mark">{_LOGO}<span>Steelyard</span></div><h1>{escape(report.title)}</h1>{subtitle}{nav}</header>\n'
        f"<main>{body}</main>\n{note}{scripts}</body></html>\n"
    )

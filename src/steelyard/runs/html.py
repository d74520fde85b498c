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
from steelyard.runs.drawing import chart_svg, interval_svg
from steelyard.runs.theme import PROVENANCE, colour_map, css_variables, with_theme
from steelyard.runs.wording import DASH, cell_text, check_words, right_aligned, summary_words

__all__ = ["render_html"]

_INLINE = (
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
    chart.addEventListener("pointerenter", async () => {
      const embed = await wake();
      const dark = matchMedia("(prefers-color-scheme: dark)").matches;
      const live = document.createElement("div");
      const spec = JSON.parse(chart.querySelector("script").textContent);
      await embed(live, spec, {mode: "vega-lite", renderer: "svg", actions: false,
        defaultStyle: false, tooltip: {theme: dark ? "dark" : "light"}});
      chart.querySelector(".drawing").replaceChildren(live.querySelector("svg"));
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


def _badge(provenance: str) -> str:
    """Mark a provenance; empty for none."""
    if not provenance:
        return ""
    title = PROVENANCE[provenance].meaning if provenance in PROVENANCE else ""
    return (
        f'<span class="badge p-{escape(provenance)}" '
        f'title="{escape(title)}">{escape(provenance)}</span>'
    )


def _facts(block: Facts) -> str:
    """Draw facts as cards."""
    cards = (
        f'<div class="fact"><dt>{escape(label)}</dt><dd>{escape(value)}</dd>'
        f"{_badge(provenance)}</div>"
        for label, value, provenance in block.facts
    )
    return f'<dl class="facts">{"".join(cards)}</dl>'


def _table(block: Table) -> str:
    """Draw a table with its caption below."""
    right = [' class="num"' if flag else "" for flag in right_aligned(block)]
    heads = "".join(
        f'<th scope="col"{kind}>{escape(column.name)}'
        + (f' <span class="unit">{escape(column.unit)}</span>' if column.unit else "")
        + "</th>"
        for column, kind in zip(block.columns, right, strict=True)
    )
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td{kind}>{escape(cell_text(cell))}</td>"
            for cell, kind in zip(row, right, strict=True)
        )
        + "</tr>"
        for row in block.rows
    )
    caption = f"<figcaption>{_inline(block.caption)}</figcaption>" if block.caption else ""
    return (
        f'<figure class="table"><div class="scroll"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{caption}</figure>"
    )


def _checks(block: Checks) -> str:
    """Draw the table of forecasts against measurements, each with its interval."""
    rows = []
    for check in block.checks:
        forecast, interval, measured, error, verdict = map(escape, check_words(check))
        bar = interval_svg(
            check.forecast.low, check.forecast.value, check.forecast.high, check.measurement.value
        )
        rows.append(
            f'<tr class="{verdict}"><th '
            f'scope="row">{escape(check.forecast.quantity)}{_badge(check.forecast.provenance)}'
            f"<small>{escape(check.forecast.source)}</small></th>"
            f'<td class="num">{forecast}</td><td class="num soft">{interval}</td>'
            f'<td class="num strong">{measured}</td><td class="num">{error}</td>'
            f'<td class="bar">{bar}</td><td><span class="verdict">{verdict}</span></td></tr>'
        )
    names = ("Quantity", "Forecast", "80 % interval", "Measured", "Error", "", "Verdict")
    kinds = ("", "num", "num", "num", "num", "", "")
    head = "".join(
        f'<th scope="col" class="{kind}">{name}</th>'
        for name, kind in zip(names, kinds, strict=True)
    )
    caption = (
        f"{escape(summary_words(block.checks))} The bar is the interval, the tick the forecast, "
        f"the dot the measured value."
    )
    return (
        f'<figure class="table checks"><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
        f"<figcaption>{caption if rows else DASH}</figcaption></figure>"
    )


def _chart(block: Chart, index: int) -> str:
    """Draw a chart, and lay its spec beside it for the pointer."""
    spec = with_theme({key: value for key, value in block.spec.items() if key != "$schema"})
    # "</script>" inside the data would end the element it lies in.
    data = json.dumps(spec, ensure_ascii=True, allow_nan=False, default=str).replace("<", "\\u003c")
    caption = f"<figcaption>{_inline(block.caption)}</figcaption>" if block.caption else ""
    drawing = chart_svg(block.spec, prefix=f"chart{index}-")
    return (
        f'<figure class="chart"><div class="drawing">{drawing}</div><script '
        f'type="application/json">{data}</script>{caption}</figure>'
    )


def _block(block: Block, index: int) -> str:
    """Choose the drawing of a block."""
    match block:
        case Text():
            return _prose(block)
        case Facts():
            return _facts(block)
        case Table():
            return _table(block)
        case Checks():
            return _checks(block)
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
        f"<li>{_badge(name)} {escape(mark.meaning)}</li>"
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
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        'content="width=device-width,initial-scale=1">'
        f'<meta name="color-scheme" content="light '
        f'dark"><title>{escape(report.title)}</title><style>{_style()}</style></head>\n'
        f"<body><header><div "
        f'class="mark">{_LOGO}<span>Steelyard</span></div><h1>{escape(report.title)}</h1>{subtitle}{nav}</header>\n'
        f"<main>{body}</main>\n{note}{scripts}</body></html>\n"
    )

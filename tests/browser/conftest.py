"""What a headless Chromium sees of a page: text that is cut, and what axe finds.

The fixture `look` takes an address or a file and opens it as each reader does: on a phone, on a
tablet and on a desk, in light and dark, and on paper. `open_page` opens it once.
"""

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

WIDTHS = (390, 820, 1300)
MM = 96 / 25.4
SHEETS = {"A4": round((210 - 26) * MM), "Letter": round((215.9 - 26) * MM)}
"""Pixels across a sheet between the margins of 13 mm that the reports ask for."""

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

# Every visible piece of text must lie inside the page and inside each ancestor that cuts. What
# scrolls up and down may reach beyond its box there. Words kept for screen readers only stand in a
# box of one pixel, and are left out.
CUT = """
() => {
  const found = [], width = document.documentElement.clientWidth, slack = 1;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode()); ) {
    const words = node.textContent.trim(), parent = node.parentElement;
    if (!words || parent.closest("script,style,title,desc,noscript,option")) continue;
    if (!parent.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const boxes = parent.closest("svg") ? [parent.getBoundingClientRect()]
      : [...range.getClientRects()];
    for (const box of boxes) {
      if (box.width === 0) continue;
      let why = box.left < -slack || box.right > width + slack ? "beyond the page" : "";
      for (let up = parent; up && !why; up = up.parentElement) {
        const style = getComputedStyle(up), edge = up.getBoundingClientRect();
        if (edge.width <= 1 && edge.height <= 1) { why = "hidden"; break; }
        const across = box.left < edge.left - slack || box.right > edge.right + slack;
        const down = box.top < edge.top - slack || box.bottom > edge.bottom + slack;
        const cuts = value => ["hidden", "clip"].includes(value);
        if (across && style.overflowX !== "visible") why = "cut by ";
        if (down && cuts(style.overflowY)) why = "cut by ";
        if (why) why += `${up.tagName.toLowerCase()}.${up.getAttribute("class") ?? ""}`;
      }
      if (why && why !== "hidden") { found.push(`${words.slice(0, 60)}: ${why}`); break; }
    }
  }
  for (const field of document.querySelectorAll("button,input,select,textarea"))
    if (field.checkVisibility() && field.scrollWidth > field.clientWidth + slack)
      found.push(`${field.tagName.toLowerCase()} ${field.id}: wider than its box`);
  const all = document.documentElement.scrollWidth;
  if (all > width) found.push(`the page is ${all} wide on ${width}`);
  return found;
}
"""
AXE = """
async () => (await axe.run(document, {resultTypes: ["violations"]})).violations.map(found =>
  `${found.impact} ${found.id}: ${found.nodes.slice(0, 3).map(node => node.target).join(", ")}`)
"""


Opener = Callable[..., contextlib.AbstractContextManager[Any]]


@dataclass(frozen=True)
class Look:
    """What was found at one width: `cut` texts, and findings of axe, None where it was not run."""

    name: str
    cut: list[str]
    axe: list[str] | None


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Start a browser, or skip the test with the reason why there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="install steelyard[browser]")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no chromium on this machine")
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


def axe_file() -> Path | None:
    """Find axe.min.js: STEELYARD_AXE, or the one in the package axe-playwright-python."""
    named = os.environ.get("STEELYARD_AXE")
    if named:
        return Path(named)
    package = importlib.util.find_spec("axe_playwright_python")
    if package is None or package.origin is None:
        return None
    return next(Path(package.origin).parent.rglob("axe.min.js"), None)


def is_elsewhere(url: str, address: str) -> bool:
    """Say whether a request leaves the page's own file or server."""
    return not url.startswith(("data:", "blob:")) and url.split("/")[:3] != address.split("/")[:3]


@pytest.fixture
def open_page(browser: Any) -> Opener:
    """Open a page at a width, with `color_scheme` or `media`; a request elsewhere is an error."""

    @contextlib.contextmanager
    def opened(page: str | Path, width: int, **emulated: str) -> Iterator[Any]:
        own = isinstance(page, str) and "://" in page
        address = str(page) if own else Path(page).resolve().as_uri()
        view = browser.new_page(viewport={"width": width, "height": 900})
        asked: list[str] = []
        view.on("request", lambda request: asked.append(request.url))
        view.emulate_media(**emulated)
        view.goto(address)
        yield view
        view.close()
        assert [url for url in asked if is_elsewhere(url, address)] == []

    return opened


@pytest.fixture
def look(open_page: Opener) -> Callable[..., list[Look]]:
    """Look at a page at three widths, in light and dark, and on A4 and Letter paper."""
    axe = axe_file()

    def looked(
        page: str | Path, widths: Sequence[int] = WIDTHS, sheets: Sequence[str] = tuple(SHEETS)
    ) -> list[Look]:
        readers: list[tuple[int, dict[str, str]]] = [
            (width, {"color_scheme": scheme}) for width in widths for scheme in ("light", "dark")
        ]
        readers += [(SHEETS[sheet], {"media": "print"}) for sheet in sheets]
        looks = []
        for width, emulated in readers:
            with open_page(page, width, **emulated) as view:
                cut = view.evaluate(CUT)
                findings = None
                if axe is not None and "media" not in emulated:
                    view.evaluate(axe.read_text())
                    findings = view.evaluate(AXE)
                looks.append(Look(f"{width} {' '.join(emulated.values())}", cut, findings))
        return looks

    return looked

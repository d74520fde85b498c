"""Picture of a report; `python docs/pictures/report.py REPORT.html` writes docs/assets/report.png.

Needs `pip install -e '.[browser]'` and chromium.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

TARGET = Path(__file__).parents[1] / "assets" / "report.png"
WIDTH = 1100
HEIGHT = 1490


def main(page: Path) -> None:
    """Draw the top of a report on a desk's screen."""
    with sync_playwright() as driver:
        program = shutil.which("chromium") or shutil.which("google-chrome")
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        view.goto(page.resolve().as_uri())
        view.screenshot(path=str(TARGET))
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

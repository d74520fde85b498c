"""The site builds without a warning, and what the pages show is true."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += [
    page
    for room in ("data", "laws", "operate", "plan", "retrieve", "serve")
    for page in sorted((ROOT / "docs" / "rooms" / room).glob("*.md"))
]
PAGES += [
    ROOT / "docs" / "rooms" / f"{room}.md"
    for room in ("serve", "catalog", "cost", "plan", "operate")
]
LONG = {
    "running.md",
    "sparse.md",
    "growth-charts.md",
}  # pages whose Python compiles or trains for ten seconds and more


@pytest.mark.timeout(1200)  # a minute alone; many on a machine that works for others too
def test_the_site_builds_strictly(tmp_path):
    pytest.importorskip("mkdocs")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    run = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert (tmp_path / "site" / "papers" / "index.html").is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_on_the_pages_exist(page):
    from steelyard.cli.main import COMMANDS

    named = re.findall(r"^(?:\$ )?steelyard ([a-z]+)", page.read_text(), flags=re.MULTILINE)
    assert set(named) <= set(COMMANDS)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=[pytest.mark.slow] * (page.name in LONG))
        for page in PAGES
    ],
)
def test_python_on_the_pages_runs(page):
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    if blocks:
        run = subprocess.run(
            [sys.executable, "-c", "\n".join(blocks)], capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stderr

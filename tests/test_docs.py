"""The site builds without a warning, and what the pages show is true."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.killing import KilledLines, killed_lines

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += [
    page
    for room in ("data", "laws", "operate", "plan", "retrieve", "serve")
    for page in sorted((ROOT / "docs" / "rooms" / room).glob("*.md"))
]
PAGES += [
    ROOT / "docs" / "rooms" / f"{room}.md"
    for room in ("serve", "catalog", "cost", "plan", "operate", "sim")
]
LONG = {
    "running.md",
    "sparse.md",
    "growth-charts.md",
}  # pages whose Python compiles or trains for ten seconds and more
LIBRARIES = (
    "torch._dynamo",
    "scipy.optimize",
    "scipy.stats",
    "polars",
    "pyarrow.parquet",
    "altair",
)
"""What many pages import, loaded once; the package itself is imported by each page anew."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KilledLines]:
    """What runs the Python of pages, a process for each."""
    there = [name for name in LIBRARIES if importlib.util.find_spec(name.partition(".")[0])]
    with killed_lines(tmp_path_factory.mktemp("pages"), *there) as running:
        yield running


def build_strictly(folder, config):
    pytest.importorskip("mkdocs")
    # Told to be quiet, it does not count warnings either.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    run = subprocess.run(
        [*command, "--config-file", str(config), "--site-dir", str(folder / "site")],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert (folder / "site" / "papers" / "index.html").is_file()


def test_the_pages_build_strictly(tmp_path):
    config = tmp_path / "pages.yml"
    # The reference is there without its docstrings, so that links to it are checked and no more.
    config.write_text(
        f"INHERIT: {ROOT / 'mkdocs.yml'}\n"
        f"docs_dir: {ROOT / 'docs'}\n"
        f"hooks: [{ROOT / 'docs' / 'generate.py'}]\n"
        "plugins: [search]\n"
    )
    build_strictly(tmp_path, config)


@pytest.mark.slow
@pytest.mark.timeout(1200)  # a minute alone; many on a machine that works for others too
def test_the_site_with_its_reference_builds_strictly(tmp_path):
    build_strictly(tmp_path, ROOT / "mkdocs.yml")


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
def test_python_on_the_pages_runs(page, pages, tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    if blocks:
        ended = pages.run(["-c", "\n".join(blocks)], tmp_path)
        assert ended.code == 0, ended.told

"""The first day's questions and mishaps, at two widths of a terminal and in a pipe."""

import contextlib
import io
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from steelyard.cli.main import main

CASES = tomllib.loads(Path(__file__).with_name("first_day.toml").read_text())["case"]
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path / "home"))
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    size, tokens = np.meshgrid(np.geomspace(1e7, 1e9, 5), np.geomspace(1e9, 1e11, 4))
    loss = 1.7 + 400 / size**0.34 + 410 / tokens**0.28
    rows = np.column_stack([size.ravel(), tokens.ravel(), loss.ravel()])
    lines = [",".join(map(repr, map(float, row))) for row in rows]
    text = "\n".join(["parameters,tokens,loss", *lines]) + "\n"
    (folder / "runs.csv").write_text(text)
    (folder / "semicolons.csv").write_text(text.replace(",", ";"))
    # Losses of tokens alone: no coefficient of the size can be said.
    noise = np.exp(0.01 * np.random.default_rng(0).standard_normal(size.shape))
    rows[:, 2] = ((1.7 + 410 / tokens**0.28) * noise).ravel()
    lines = [",".join(map(repr, map(float, row))) for row in rows]
    (folder / "flat.csv").write_text("\n".join(["parameters,tokens,loss", *lines]) + "\n")
    (folder / "curves.csv").write_text(curves())
    (folder / "twice.csv").write_text("parameters,tokens,loss,loss\n1e7,1e9,3.5,3.6\n")
    return tmp_path


def curves():
    """Three loss curves of 400 steps that fall with their rate."""
    step = np.arange(60, 400, 10)
    rates = {
        "constant": np.full(34, 1e-3),
        "cosine": 5.5e-4 + 4.5e-4 * np.cos(np.pi * step / 400),
        "two": np.where(step < 200, 1e-3, 2e-4),
    }
    lines = [
        f"{name},{at},{rate},{2.5 + 4 / at**0.6 - 60 * (1e-3 - rate) * at / 400}"
        for name, column in rates.items()
        for at, rate in zip(step, column, strict=True)
    ]
    return "\n".join(["schedule,step,lr,loss", *lines]) + "\n"


def run(words, width, monkeypatch):
    """Run a command line in this process; a width makes it print to a terminal of that width."""
    out = Terminal() if width else io.StringIO()
    monkeypatch.setenv("COLUMNS", str(width or 80))
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
        pytest.raises(SystemExit) as ended,
    ):
        main(words)
    return int(ended.value.code or 0), ESCAPES.sub("", out.getvalue())


@pytest.mark.parametrize(
    "width",
    [
        pytest.param(80, id="80"),
        pytest.param(120, id="120", marks=pytest.mark.slow),
        pytest.param(0, id="piped"),
    ],
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["asks"].replace(" ", "-"))
def test_first_day(case, width, home, monkeypatch):
    if case.get("home") == "file":
        (home / "home").write_text("no folder")
    code, shown = run(case["words"], width, monkeypatch)
    assert code == case.get("code", 0), shown
    text = " ".join(shown.split())
    for part in case["shows"]:
        assert part in text, shown
    for part in case.get("terminal", []):
        assert (part in text) == bool(width), shown
    for part in ["Traceback", *case.get("hides", [])]:
        assert part not in text
    if not width:
        assert "\x1b" not in shown
    if "leaves" in case:
        assert not [path for path in home.rglob("*") if path.is_file() and path.suffix != ".csv"]


def test_the_terminal_stands_for_a_real_one(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = Terminal()
    with contextlib.redirect_stdout(out):
        assert Console().is_terminal

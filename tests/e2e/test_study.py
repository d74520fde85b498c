"""A study as a user runs it: text, a recipe, Ctrl-C, the same line again, its law, its server."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from tests.e2e.test_quickstart import small_text

RECIPE = Path(__file__).parents[2] / "recipes" / "ladder.toml"
SHORTER = (("seeds = [0, 1]", "seeds = [0]"), ("steps = 200 ", "steps = 120 "))
LARGEST = "ladder/96x3/cooldown-000120"
LINE = ("train", "study", "ladder.toml", "--data", "text")
CELLS = 16

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(autouse=True)
def interruptible():
    """Let children see Ctrl-C, even where this process was started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def start(folder: Path, *words: str) -> "subprocess.Popen[str]":
    """Start the command in a process group of its own, as a terminal does."""
    return subprocess.Popen(
        [sys.executable, "-m", "steelyard", *words],
        cwd=folder,
        env=os.environ | {"STEELYARD_HOME": str(folder / "home")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def press_ctrl_c(child: "subprocess.Popen[str]") -> None:
    """Interrupt the whole group, workers too."""
    os.killpg(child.pid, signal.SIGINT)


def run(folder: Path, *words: str, code: int = 0) -> tuple[str, str]:
    with start(folder, *words) as child:
        printed, errors = child.communicate()
    assert child.returncode == code, errors + printed
    return printed, errors


def results(folder: Path) -> dict[Path, int]:
    found = (folder / "ladder").rglob("cooldown-*/result.json")
    return {path: path.stat().st_mtime_ns for path in found}


def test_text_becomes_a_study_a_law_and_a_server(tmp_path):
    small_text(tmp_path).rename(tmp_path / "my-text")
    recipe = RECIPE.read_text()
    for before, after in SHORTER:
        assert before in recipe
        recipe = recipe.replace(before, after)
    (tmp_path / "ladder.toml").write_text(recipe)
    run(tmp_path, "data", "prepare", "my-text", "--out", "text")
    with start(tmp_path, *LINE) as child:
        while child.poll() is None and len(results(tmp_path)) < 3:
            time.sleep(0.1)
        press_ctrl_c(child)
        _, errors = child.communicate()
    assert child.returncode == 130, errors
    assert "run the same command again to continue" in errors and "Traceback" not in errors
    done = results(tmp_path)
    assert 3 <= len(done) < CELLS
    printed, _ = run(tmp_path, *LINE)
    assert "study.wall_time" in printed and "eval.loss" in printed
    # What was done is left as it is.
    assert done.items() <= results(tmp_path).items() and len(results(tmp_path)) == CELLS
    # The study's store, by itself or by the study's folder.
    stores = ("ladder/runs", "ladder")
    said = [json.loads(run(tmp_path, "laws", "compare", name, "--json")[0]) for name in stores]
    assert said[0] == said[1]
    _, errors = run(tmp_path, "serve", "ladder", code=2)
    assert "runs of a study" in errors and LARGEST in errors
    assert isinstance(answer(tmp_path, LARGEST), str)


def answer(folder: Path, model: str) -> str:
    """Serve a model, complete a prompt, and stop the server."""
    with start(folder, "serve", model, "--port", "0") as child:
        try:
            address = _address(child)
            body = {"model": Path(model).name, "prompt": "def ", "max_tokens": 8}
            asked = urllib.request.Request(
                f"{address}/v1/completions",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(asked, timeout=60) as answered:
                return json.load(answered)["choices"][0]["text"]
        finally:
            press_ctrl_c(child)


def _address(child: "subprocess.Popen[str]") -> str:
    """Wait for the line that tells where the server listens."""
    assert child.stdout is not None
    for line in child.stdout:
        if found := re.search(r"http://[\w.:]+", line):
            return found[0]
    raise AssertionError(child.communicate()[1])

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

RECIPES = Path(__file__).parents[2] / "recipes"
LARGEST = "ladder/96x3-seed0/cooldown-000240"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def start(folder: Path, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "steelyard", *words],
        cwd=folder,
        env=os.environ | {"STEELYARD_HOME": str(folder / "home")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


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
    run(tmp_path, "data", "prepare", "my-text", "--out", "text")
    line = ("train", "study", str(RECIPES / "ladder.toml"), "--data", "text")
    with start(tmp_path, *line) as child:
        while child.poll() is None and len(results(tmp_path)) < 3:
            time.sleep(0.1)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate()
    assert child.returncode == 130, errors
    assert "run the same command again to continue" in errors and "Traceback" not in errors
    done = results(tmp_path)
    assert 3 <= len(done) < 32
    printed, _ = run(tmp_path, *line)
    assert "study.wall_time" in printed and "eval.loss" in printed
    assert done.items() <= results(tmp_path).items() and len(results(tmp_path)) == 32
    # The store itself, or the folder it lies in.
    laws = [json.loads(run(tmp_path, "laws", "compare", name, "--json")[0]) for name in STORES]
    assert laws[0] == laws[1]
    _, errors = run(tmp_path, "serve", "ladder", code=2)
    assert LARGEST in errors.replace("seed1", "seed0")
    assert answer(tmp_path, LARGEST)


STORES = ("ladder/runs", "ladder")


def answer(folder: Path, model: str) -> str:
    """Serve a model, complete a prompt, and stop the server."""
    with start(folder, "serve", model, "--port", "0") as child:
        try:
            assert child.stdout is not None
            address = ""
            while not address and (said := child.stdout.readline()):
                found = re.search(r"http://[\w.:]+", said)
                address = found[0] if found else ""
            assert address, child.communicate()
            body = json.dumps({"model": Path(model).name, "prompt": "def ", "max_tokens": 8})
            asked = urllib.request.Request(
                f"{address}/v1/completions",
                body.encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(asked, timeout=60) as answered:
                return json.load(answered)["choices"][0]["text"]
        finally:
            child.send_signal(signal.SIGINT)

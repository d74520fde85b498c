"""The README's two commands in order in a clone: long path, busy machine, twice in a row."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATH_LENGTH = 120
TESTS = "tests/ground tests/catalog tests/test_structure.py"


@contextlib.contextmanager
def busy_loops(count):
    """Keep cores busy beside what runs inside."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@pytest.fixture
def clone(tmp_path):
    """A clone in a path of `PATH_LENGTH` characters."""
    missing = PATH_LENGTH - len(str(tmp_path)) - 1
    folder = tmp_path / "steelyard".ljust(max(missing, 10), "-")
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    return folder


def make(clone, *words):
    """Run make as a newcomer would: without this test's environment."""
    kept = ("HOME", "PATH", "LANG", "PIP_CONFIG_FILE", "TMPDIR")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    run = subprocess.run(
        ["make", *words], cwd=clone, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-1000:] + run.stdout[-4000:]
    return run.stdout


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.skipif(not (shutil.which("make") and shutil.which("git")), reason="needs make and git")
def test_quickstart_then_test_twice_on_a_busy_machine(clone):
    assert len(str(clone)) >= PATH_LENGTH
    with busy_loops(2):
        for _ in range(2):
            make(clone, "quickstart", "ARGS=--minutes 1")
            assert (clone / "quickstart-out" / "report.html").is_file()
            # A part of the suite stands for it; lint, types and contracts run whole.
            assert " passed" in make(clone, "test", f"ARGS={TESTS}")

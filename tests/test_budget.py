"""The count of seconds per room, and the failure over budget."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def suite(tmp_path):
    """A suite of its own with this suite's conftest and one test that lasts."""
    room = tmp_path / "tests" / "laws"
    room.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path / "tests")
    (room / "test_long.py").write_text("import time\n\ndef test_long(): time.sleep(0.3)\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    return tmp_path


def run(suite, budget_s, **environment):
    """Run the suite with another budget."""
    path = suite / "tests" / "conftest.py"
    path.write_text(path.read_text().replace("ROOM_BUDGET_S = 75.0", f"ROOM_BUDGET_S = {budget_s}"))
    clean = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    clean.pop("STEELYARD_TEST_BUDGET", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    return subprocess.run(
        command, cwd=suite, env=clean | environment, capture_output=True, text=True, check=False
    )


def test_seconds_are_printed_and_a_room_over_budget_is_named(suite):
    found = run(suite, 0.1)
    assert found.returncode == 0, found.stdout
    assert "seconds per room" in found.stdout
    assert "laws  over 0" in found.stdout


@pytest.mark.parametrize(("budget_s", "code"), [(0.1, 1), (75.0, 0)])
def test_a_room_over_budget_fails_where_asked(suite, budget_s, code):
    found = run(suite, budget_s, STEELYARD_TEST_BUDGET="1")
    assert found.returncode == code, found.stdout

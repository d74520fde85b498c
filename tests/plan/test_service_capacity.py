"""A recommended configuration starts on the engine and serves its longest request in its memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("capacity_cases.py")


def run_cases(count, seed):
    done = subprocess.run(
        [sys.executable, str(CASES), str(count), str(seed)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == count, done.stderr
    bad = [item for item in found if item["state"] not in ("held", "refused")]
    assert not bad, f"{bad}\n{done.stderr}"
    return [item for item in found if item["state"] == "held"]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's peak of memory")
def test_recommended_engines_start_and_fit():
    assert run_cases(4, 0)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's peak of memory")
def test_many_recommended_engines_start_and_fit():
    held = run_cases(150, 1000)
    assert len(held) >= 75
    # The reserve is for what nobody counts: hardly any engine may need it.
    assert sum(item["used_reserve"] for item in held) <= 0.05 * len(held)

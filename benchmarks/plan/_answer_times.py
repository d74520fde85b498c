"""How long `plan fit` and `plan which` take: cold processes, and their own work for every model."""

import json
import statistics
import subprocess
import sys
import time

__all__ = ["cold_s", "own_work_s"]

_FIT = ("plan", "fit")
_WHICH = ("plan", "which", "--model")
_GOALS = (("--tokens", "300B"), ("--rate", "20"))

_OWN = """
import contextlib, io, json, sys, time
from steelyard.cli.plan.fit import fit
from steelyard.cli.plan.which import which
from steelyard.errors import SteelyardError
worst = {}
for name in json.loads(sys.argv[1]):
    calls = {
        "fit": lambda: fit(name),
        "which, training": lambda: which(model=name, tokens="300B"),
        "which, serving": lambda: which(model=name, rate="20"),
    }
    for what, call in calls.items():
        start = time.process_time()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SteelyardError):
            call()
        took = time.process_time() - start
        if took > worst.get(what, (0.0, ""))[0]:
            worst[what] = (took, name)
print(json.dumps(worst))
"""


def own_work_s(names: list[str]) -> dict[str, tuple[float, str]]:
    """Time the commands' functions for many models in one process: processor seconds.

    The first call reads the catalog and imports what prints; it counts as any other.

    Args:
        names: catalog names of models.

    Returns:
        For each command the longest time in seconds and the model it was of.
    """
    done = subprocess.run(
        [sys.executable, "-c", _OWN, json.dumps(names)], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    return {what: (float(took), str(name)) for what, (took, name) in found.items()}


def cold_s(names: list[str], *, rounds: int) -> dict[str, float]:
    """Time whole commands, each in a fresh process.

    Args:
        names: catalog names of models.
        rounds: processes per command and model, of which the median counts.

    Returns:
        For each command the slowest model's time in seconds.
    """
    commands: dict[str, list[tuple[str, ...]]] = {"fit": [(*_FIT, name) for name in names]}
    commands["which"] = [(*_WHICH, name, *goal) for name in names for goal in _GOALS]
    return {
        what: max(statistics.median(_timed(words) for _ in range(rounds)) for words in every)
        for what, every in commands.items()
    }


def _timed(words: tuple[str, ...]) -> float:
    """Run a command and return its wall time; exit 1 is an answer too: nothing suffices."""
    start = time.perf_counter()
    code = subprocess.run(
        [sys.executable, "-m", "steelyard", *words], capture_output=True, check=False
    ).returncode
    if code not in (0, 1):
        raise RuntimeError(f"steelyard {' '.join(words)} ended with {code}")
    return time.perf_counter() - start

"""What all tests share: one thread per worker, and a budget of seconds per room."""

import os
import sys
from collections import defaultdict
from pathlib import Path

from hypothesis import HealthCheck, settings

if "PYTEST_XDIST_WORKER" in os.environ:
    # Workers share the cores: with a thread pool each they would wait for one another, and
    # PyTorch's idle threads spin. Set before anything imports a library that reads it.
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    # Threads of a test that wants several would spin on the core of the other worker while they
    # wait: one thread beside two such processes took a third longer.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Where Python is told to keep no bytecode, each process of the tests compiles torch anew, for ten
# seconds or more. It is kept in the user's cache instead, away from the sources.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    sys.pycache_prefix = os.environ.setdefault(
        "PYTHONPYCACHEPREFIX", str(cache / "steelyard" / "bytecode")
    )
    sys.dont_write_bytecode = False

# Deadlines per example and the check for slow examples fail on a busy machine, not on a defect.
settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any-machine")

ROOM_BUDGET_S = 75.0
_seconds = defaultdict(float)


def room(nodeid):
    """Name the folder of `tests/` that a test lies in; files beside the folders form one room."""
    parts = nodeid.partition("::")[0].split("/")
    parts = parts[1:] if parts[0] == "tests" else parts
    return parts[0] if len(parts) > 1 else "tests"


def over_budget(seconds):
    """Return the rooms whose tests took longer than they may, longest first."""
    rooms = sorted(seconds, key=seconds.get, reverse=True)
    return [name for name in rooms if seconds[name] > ROOM_BUDGET_S]


def pytest_runtest_logreport(report):
    # Under xdist only the controller gets the reports of every worker, so it counts them all.
    _seconds[room(report.nodeid)] += report.duration


def pytest_sessionfinish(session):
    is_worker = hasattr(session.config, "workerinput")
    wanted = os.environ.get("STEELYARD_TEST_BUDGET") == "1"
    if wanted and not is_worker and over_budget(_seconds) and session.exitstatus == 0:
        session.exitstatus = 1


def pytest_terminal_summary(terminalreporter):
    terminalreporter.section("seconds per room")
    for name in sorted(_seconds, key=_seconds.get, reverse=True):
        verdict = f"  over {ROOM_BUDGET_S:.0f}" if name in over_budget(_seconds) else ""
        terminalreporter.line(f"{_seconds[name]:8.1f} {name}{verdict}")
    terminalreporter.line(f"{sum(_seconds.values()):8.1f} in all")

"""Kill processes that apply a plan of deletions at random, and look at what a rerun makes."""

import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

from steelyard.data.lake import DeletionPlan, apply_plan, deleted_tables, rewritten_tables

_PROGRAM = """
import sys
from pathlib import Path
from steelyard.data.lake import DeletionPlan, apply_plan
plan = DeletionPlan.load(Path(sys.argv[1]))
apply_plan(plan, dry_run=True)
print("ready", flush=True)
apply_plan(plan, dry_run=False)
print("done", flush=True)
"""
"""The dry run before compiles and warms up, so that kills fall into the deletion itself."""


def applied_after_kills(root: Path, plan: Path, kills: int, seed: int) -> tuple[int, str]:
    """Apply a plan again and again, killed and run anew.

    Args:
        root: the lake that the plan is of; it is put back after each kill.
        plan: file of the plan.
        kills: processes to kill.
        seed: of the moments.

    Returns:
        Lakes that differ from the undisturbed one, and when the kills came.
    """
    kept = root.with_name("kept")
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(root, kept)
    began_s = time.perf_counter()
    apply_plan(DeletionPlan.load(plan), dry_run=False)
    span_s = time.perf_counter() - began_s
    wanted = _seen(root)
    rng, differing, moments = np.random.default_rng(seed), 0, Counter()
    for turn in range(kills):
        shutil.rmtree(root)
        # Times of change belong to the fingerprints of the plan.
        shutil.copytree(kept, root)
        # Every other kill aims at the end, where files are moved.
        share = 1 - 0.25 * rng.random() if turn % 2 else rng.random()
        _killed(plan, share * span_s)
        moments[_moment(root)] += 1
        apply_plan(DeletionPlan.load(plan), dry_run=False)
        differing += _seen(root) != wanted
    return differing, ", ".join(f"{count} {words}" for words, count in moments.items())


def _killed(plan: Path, after_s: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(plan)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "ready"
    time.sleep(after_s)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def _moment(root: Path) -> str:
    """Say how far the process came."""
    state = root / ".steelyard"
    if (state / "journal.json").exists():
        return "while tables were moved"
    if (state / "waiting").exists() and any((state / "waiting").iterdir()):
        return "while a table was written anew"
    return (
        "after the first" if (state / "manifest.json").exists() else "before the first table moved"
    )


def _seen(root: Path) -> tuple[list[str], list[str], list[str]]:
    """Return tables that stay, entries of the manifest, and files of the state."""
    state = root / ".steelyard"
    files = [str(path.relative_to(state)) for path in state.rglob("*") if path.is_file()]
    return (
        sorted(path.name for path in root.iterdir() if path.is_file()),
        sorted(str(entry) for entry in (*deleted_tables(root), *rewritten_tables(root))),
        sorted(files),
    )

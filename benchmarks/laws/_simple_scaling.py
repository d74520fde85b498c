"""Forecasts of pip `simple-scaling-laws`, for comparison with ours."""

import json
import os
import select
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from benchmarks import peers

from steelyard.errors import BackendError

__all__ = ["forecasts"]

_WORKER = Path(__file__).with_name("_simple_scaling_peer.py")
_ONE_THREAD = {
    f"{library}_{word}_THREADS": "1"
    for library, word in (("OMP", "NUM"), ("OPENBLAS", "NUM"), ("MKL", "NUM"), ("POLARS", "MAX"))
}


def forecasts(cases: Sequence[dict[str, Any]], limit_s: float = 60.0) -> list[dict] | None:
    """Forecast each case with the peer, in one process with one thread.

    Args:
        cases: each with `inputs` (columns by axis), `loss` and `runs` (labels; one per trained
            model) of the fitted runs, `at` (columns by axis) and `level` of the interval.
        limit_s: a case that takes longer counts as an error.

    Returns:
        By case: `value`, `low` and `high` of the mean curve, `run_low` and `run_high` of a new run,
        lists over the points of `at`, and `seconds` of CPU; or `error`. None where the peer is not
        installed.
    """
    try:
        python = peers.python("simple-scaling-laws")
    except BackendError as error:
        print(f"simple-scaling-laws left out: {error} ({error.hint})")
        return None
    answers = []
    with tempfile.TemporaryFile() as errors:
        worker = None
        try:
            for case in cases:
                if worker is None:
                    worker = _start(python, errors)
                line = _ask(worker, case, limit_s)
                if line:
                    answers.append(json.loads(line))
                    continue
                _end(worker)
                worker = None
                answers.append({"error": _reason(line, errors, limit_s)})
        finally:
            if worker is not None:
                _end(worker)
    return answers


def _start(python: Path, errors: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the worker apart from our modules and paths."""
    return subprocess.Popen(
        [str(python), "-I", str(_WORKER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=os.environ | _ONE_THREAD,
        bufsize=0,
    )


def _ask(worker: subprocess.Popen[bytes], case: dict[str, Any], limit_s: float) -> bytes | None:
    """Return the worker's line: empty when it ended, None when the limit passed."""
    assert worker.stdin
    assert worker.stdout
    try:
        worker.stdin.write(json.dumps(case).encode() + b"\n")
    except BrokenPipeError:
        return b""
    ready, _, _ = select.select([worker.stdout], [], [], limit_s)
    return worker.stdout.readline() if ready else None


def _reason(line: bytes | None, errors: IO[bytes], limit_s: float) -> str:
    """Say why a worker that was ended gave no answer."""
    if line is None:
        return f"no answer in {limit_s:g} s"
    errors.seek(0)
    return f"the worker ended: {errors.read().decode(errors='replace')[-400:]}"


def _end(worker: subprocess.Popen[bytes]) -> None:
    """Kill the worker and close its pipes."""
    with worker:
        worker.kill()

"""The concurrency from which two replicas of one thread beat one replica of two threads.

It is predicted from step times, then measured.
"""

import contextlib
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from benchmarks.common import Check
from benchmarks.serve._replica import OUTPUT_TOKENS, PROMPT_TOKENS

from steelyard.cost.phase_time import PhaseStepTime
from steelyard.errors import BackendError
from steelyard.plan.concurrency import ServingLayout, concurrency_map

_LAYOUTS = {"1 replica x 2 threads": (1, 2), "2 replicas x 1 thread": (2, 1)}


def checks(quick: bool) -> list[Check]:
    """Compare the predicted with the measured break-point."""
    counts = (1, 2, 4, 16) if quick else (1, 2, 4, 8, 16, 32, 64)
    rounds, seconds = (1, 1.5) if quick else (3, 4.0)
    layouts, measured = [], []
    for name, (replicas, threads) in _LAYOUTS.items():
        with _workers(replicas, threads) as workers:
            found = _together(workers, [{"profile_s": 4.0 if quick else 20.0}] * replicas)
            model = PhaseStepTime.of_plain(found[0], name)
            layouts.append(
                ServingLayout(name=name, replicas=replicas, step_time=model, max_sequences=64)
            )
            measured.append([_measure(workers, count, rounds, seconds) for count in counts])
    found = concurrency_map(
        layouts, counts, prompt_tokens=PROMPT_TOKENS, output_tokens=OUTPUT_TOKENS
    )
    print(
        f"{'concurrency':>12s} "
        + " ".join(f"{name:>32s}" for name in _LAYOUTS)
        + "   output tokens/s, predicted / measured"
    )
    for column, count in enumerate(counts):
        cells = [
            f"{found.tokens_per_s[row, column]:14.0f} / {measured[row][column]:.0f}"
            for row in range(2)
        ]
        print(f"{count:12d} " + " ".join(f"{cell:>32s}" for cell in cells))
    predicted, real = _break_point(found.tokens_per_s, counts), _break_point(measured, counts)
    print(
        f"break-point predicted {predicted:.0f}, measured {real:.0f} (128 stands for none up to "
        f"{counts[-1]})"
    )
    return [
        Check(
            "5 concurrency from which two replicas win, powers of two off",
            abs(math.log2(predicted / real)),
            1.0,
            "lower",
        )
    ]


def _break_point(rates: Any, counts: tuple[int, ...]) -> float:
    """Return the concurrency from which the second layout stays ahead; 128 when it never does."""
    ahead = np.asarray(rates)[1] > np.asarray(rates)[0]
    behind = np.flatnonzero(~ahead)
    first = behind[-1] + 1 if len(behind) else 0
    return float(counts[first]) if first < len(counts) else 128.0


def _measure(
    workers: list[subprocess.Popen[str]], count: int, rounds: int, seconds: float
) -> float:
    """Return the median output tokens/s of all replicas with `count` requests in flight."""
    replicas = len(workers)
    tasks = [
        {"concurrency": count // replicas + (index < count % replicas), "seconds": seconds}
        for index in range(replicas)
    ]
    return float(
        np.median(
            [sum(item["tokens_per_s"] for item in _together(workers, tasks)) for _ in range(rounds)]
        )
    )


def _together(
    workers: list[subprocess.Popen[str]], tasks: list[dict[str, float]]
) -> list[dict[str, Any]]:
    """Send each replica a task at the same moment and return the answers."""
    for worker, task in zip(workers, tasks, strict=True):
        assert worker.stdin is not None
        worker.stdin.write(json.dumps(task) + "\n")
        worker.stdin.flush()
    return [json.loads(worker.stdout.readline()) for worker in workers if worker.stdout is not None]


@contextlib.contextmanager
def _workers(replicas: int, threads: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Start replicas and stop them at the end."""
    command = [sys.executable, "-m", "benchmarks.serve._replica", str(threads)]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(replicas)
    ]
    try:
        for worker in workers:
            if worker.stdout is None or worker.stdout.readline().strip() != "ready":
                raise BackendError("a replica did not start", hint="read its message above")
        yield workers
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()

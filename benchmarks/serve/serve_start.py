"""How long `steelyard serve` takes from nothing to its first answer, and where that time goes.

Each round runs, in turn, `import torch` alone, which is the larger part of any start; the server
with everything cached; with its own bytecode gone and none written; and as a fresh clone starts,
without bytecode of its own and with no kernel compiled. The first request is sent when the server
says that it listens. Seconds beyond those of the import of the same round are what the server adds.

The engine tells the stages of its start at /metrics, as it does to everyone.
"""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common import Check, median_spread
from benchmarks.serve._native_step import native_speedup
from benchmarks.serve._servers import make_model

import steelyard

PAPER: list[str] = []

_BEYOND_S = 1.0
_FRESH_S = 5.0
_IDLE_S = 5.0
_START = re.compile(r'^steelyard_start_seconds\{stage="(.+)"\} (\S+)$', re.MULTILINE)
_IMPORT = re.compile(r"^import time:\s+(\d+) \|\s+\d+ \|\s+([\w.]+)", re.MULTILINE)
_ENGINE_IMPORTS = (
    "import steelyard.serve.front.engine.process, torch, steelyard.nn.checkpoint, "
    "steelyard.serve.build, steelyard.serve.front.text, steelyard.serve.running.grammar, "
    "steelyard.serve.running.native.trial, steelyard.serve.front.engine.loop, "
    "steelyard.serve.running.embed, tokenizers, llguidance"
)


@dataclass(frozen=True)
class _Start:
    """One start.

    Attributes:
        listens_s: from the start of the process until it says that it listens.
        answers_s: until the first answer was read.
        stages: seconds of the engine's start by stage.
    """

    listens_s: float
    answers_s: float
    stages: dict[str, float] = field(default_factory=dict)


def run(quick: bool) -> list[Check]:
    """Start servers, again and again."""
    has_compiler = shutil.which("g++") is not None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "start"
        millions = make_model(model, hidden_size=512, num_layers=8)
        print(f"{millions:.0f}M parameters; seconds, median (least) of {_rounds(quick)} rounds")
        _first_answer(model, _environment())  # what is not cached yet is not what is measured
        torch, warm, bare, fresh = _interleave(folder, model, _rounds(quick), has_compiler)
        idle = _idle_share(model)
    _print_starts(torch, {"warm": warm, "no bytecode of its own": bare, "fresh clone": fresh})
    _print_stages({"warm": warm, "fresh clone": fresh})
    _print_imports()
    beyond = [item.answers_s - alone for item, alone in zip(warm, torch, strict=True)]
    checks = [
        Check("1 s beyond import torch, warm", statistics.median(beyond), _BEYOND_S, "lower"),
        Check("3 processors the engine uses between requests", idle, 0.01, "lower"),
    ]
    if has_compiler:
        least = median_spread([item.answers_s for item in fresh])
        speedup = native_speedup(20 if quick else 100)
        checks += [
            Check("2 s to the first answer in a fresh clone", least.median, _FRESH_S, "lower"),
            Check("4 step with numba over native", speedup.median, 1.2, "higher"),
        ]
    else:
        print("  no g++: what a fresh clone compiles was not measured")
    return sorted(checks, key=lambda check: check.name)


def _rounds(quick: bool) -> int:
    """Count the rounds."""
    return 2 if quick else 9


def _interleave(
    folder: Path, model: Path, rounds: int, has_compiler: bool
) -> tuple[list[float], list[_Start], list[_Start], list[_Start]]:
    """Run all kinds of start in turn."""
    torch: list[float] = []
    kinds: tuple[list[_Start], ...] = [], [], []
    for number in range(rounds):
        torch.append(_import_torch())
        clone = _clone(folder / f"clone-{number}")
        environments = [_environment(), _environment(clone)]
        if has_compiler:
            environments.append(_environment(clone, folder / f"cache-{number}"))
        for kind, environment in zip(kinds, environments, strict=False):
            kind.append(_first_answer(model, environment))
    return torch, *kinds


def _import_torch() -> float:
    """Time a process that imports torch; taking the interpreter apart afterwards does not count."""
    program = "import os, torch; print(flush=True); os._exit(0)"
    begin_s = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n", "torch cannot be imported"
        return time.perf_counter() - begin_s


def _clone(folder: Path) -> Path:
    """Copy the package without its bytecode, and return the folder to import it from."""
    source = Path(steelyard.__file__).parent
    shutil.copytree(source, folder / "steelyard", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def _environment(clone: Path | None = None, cache: Path | None = None) -> dict[str, str]:
    """Return the variables of a server: of another copy of the package, with another cache."""
    made = dict(os.environ)
    made.pop("PYTHONDONTWRITEBYTECODE", None)
    if clone is not None:
        made |= {"PYTHONPATH": str(clone), "PYTHONDONTWRITEBYTECODE": "1"}
    if cache is not None:
        made["XDG_CACHE_HOME"] = str(cache)
    return made


@contextlib.contextmanager
def _started(model: Path, environment: dict[str, str]) -> Iterator[tuple[int, int]]:
    """Start a server, and end it with all that it started; gives its process and port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "steelyard", "serve", str(model), "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving on "), f"the server did not start: {line!r}"
        yield process.pid, int(line.rpartition(":")[2])
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _first_answer(model: Path, environment: dict[str, str]) -> _Start:
    """Time a start."""
    begin_s = time.perf_counter()
    with _started(model, environment) as (_, port):
        listens_s = time.perf_counter() - begin_s
        body = {"prompt": [1, 2, 3], "max_tokens": 1}
        _ask(port, "POST", "/v1/completions", json.dumps(body))
        answers_s = time.perf_counter() - begin_s
        found = _START.findall(_ask(port, "GET", "/metrics"))
    return _Start(listens_s, answers_s, {name: float(value) for name, value in found})


def _ask(port: int, method: str, path: str, body: str | None = None) -> str:
    """Send one request and return its answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
        assert response.status == 200, text
        return text
    finally:
        connection.close()


def _idle_share(model: Path) -> float:
    """Return how many processors the engine keeps busy while nobody asks for anything."""
    with _started(model, _environment()) as (pid, port):
        body = {"prompt": [1, 2, 3], "max_tokens": 32, "ignore_eos": True}
        _ask(port, "POST", "/v1/completions", json.dumps(body))
        time.sleep(0.5)
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        before_s = sum(map(_processor_s, children))
        time.sleep(_IDLE_S)
        return (sum(map(_processor_s, children)) - before_s) / _IDLE_S


def _processor_s(pid: str) -> float:
    """Return processor seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _print_starts(torch: list[float], starts: dict[str, list[_Start]]) -> None:
    """Print each kind of start beside the import."""
    print(f"  {'import torch alone':24s}{statistics.median(torch):6.2f} ({min(torch):.2f})")
    for name, items in starts.items():
        if not items:
            continue
        seconds = [item.answers_s for item in items]
        beyond = [item.answers_s - alone for item, alone in zip(items, torch, strict=True)]
        print(
            f"  {name:24s}{statistics.median(seconds):6.2f} ({min(seconds):.2f}), beyond the "
            f"import {statistics.median(beyond):5.2f} ({min(beyond):.2f})"
        )


def _print_stages(starts: dict[str, list[_Start]]) -> None:
    """Print the stages side by side."""
    kinds = {name: items for name, items in starts.items() if items}
    rows: dict[str, list[list[float]]] = {}
    for items in kinds.values():
        for stage in items[0].stages:
            rows.setdefault(stage, []).append([item.stages[stage] for item in items])
        # Before the engine's process is started, and from its last stage until the address is told.
        around = [item.listens_s - sum(item.stages.values()) for item in items]
        rows.setdefault("gateway, before and after", []).append(around)
        answer = [item.answers_s - item.listens_s for item in items]
        rows.setdefault("first answer", []).append(answer)
    print(f"  {'stage':26s}" + "".join(f"{name:>16s}" for name in kinds))
    for stage, columns in rows.items():
        cells = [f"{statistics.median(column):8.3f} ({min(column):.3f})" for column in columns]
        print(f"  {stage:26s}" + "".join(f"{cell:>16s}" for cell in cells))


def _print_imports() -> None:
    """Print what the engine's process imports, by package."""
    command = [sys.executable, "-X", "importtime", "-c", _ENGINE_IMPORTS]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    seconds: Counter[str] = Counter()
    for microseconds, module in _IMPORT.findall(text):
        seconds[module.partition(".")[0]] += int(microseconds)
    shown = ", ".join(f"{name} {value / 1e6:.2f}" for name, value in seconds.most_common(8))
    print(f"  the engine's imports, s: {shown}; in all {seconds.total() / 1e6:.2f}")
